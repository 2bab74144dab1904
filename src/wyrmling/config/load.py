"""From files, recipes and options to a `Config`, and the one line that is said when that fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError
from .known import fields_at, forms_at, unknown_keys
from .locations import KeyPath
from .merge import merge
from .messages import shown, value_problems
from .overrides import apply_override
from .reading import read_layer
from .recipes import DEFAULT_RECIPE
from .refusals import drop_neutral, refusals, use_present_names
from .rules import RuleError
from .schema import Config
from .schema.mamba import largest_head
from .tree import DEFAULT, Node, Origin, build, dotted, one_line

Names = str | Path | Sequence[str | Path]


def load_config(paths: Names = (), overrides: Iterable[str] = ()) -> Config:
    """Read a configuration.

    Args:
        paths: TOML files or names of shipped recipes, each laid over the ones before it; none: the default
            recipe.
        overrides: `key=value` texts, laid over the files in order; the later one wins.

    Raises:
        ConfigError: one line with file, line, key, and the accepted form.
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    return _with_options(read_layers(names), overrides)


def read_layers(names: Sequence[str | Path], beside: tuple[Path, str] | None = None) -> Node:
    """Files and recipes laid over each other, the default recipe where there is none; `beside` as for `read_layer`."""
    tree = Node({}, DEFAULT)
    for name in names or [DEFAULT_RECIPE]:
        tree = merge(tree, read_layer(name, beside))
    return tree


def config_from_dict(data: Mapping[str, Any], origin: str = "given") -> Config:
    """The configuration of a dictionary, such as one that `Config.to_dict` made.

    Raises:
        ConfigError: as `load_config`; `origin` stands in the place of the file.
    """
    return config_from_tree(use_present_names(build(data, lambda _: Origin(origin))))


def recorded_config(data: Mapping[str, Any], origin: str) -> Config:
    """The configuration that a run recorded: what was not a key yet has the value that it had then.

    Runs from before `dataset.document_separator` had nothing between documents. Runs from before
    `optimizer.decay_convolutions` let no convolution decay, and the heads of their Mamba memories have up to 128
    channels where `headdim` is unset.

    Raises:
        ConfigError: as `config_from_dict`.
    """
    dataset = data.get("dataset")
    if isinstance(dataset, Mapping) and "document_separator" not in dataset:
        data = {**data, "dataset": {**dataset, "document_separator": ""}}
    optimizer, model = data.get("optimizer"), data.get("model")
    if not isinstance(optimizer, Mapping) or "decay_convolutions" in optimizer:
        return config_from_dict(data, origin)
    data = {**data, "optimizer": {**optimizer, "decay_convolutions": False}}
    mamba = model.get("mamba") if isinstance(model, Mapping) else None
    if isinstance(model, Mapping) and isinstance(mamba, Mapping) and mamba.get("headdim") is None:
        width, expand = model.get("n_embd"), mamba.get("expand")
        if isinstance(width, int) and isinstance(expand, int) and width * expand > 0:
            head = largest_head(expand * width, 128)
            data["model"] = {**model, "mamba": {**mamba, "headdim": head}}
    return config_from_dict(data, origin)


def with_overrides(config: Config, overrides: Iterable[str]) -> Config:
    """A configuration with `key=value` texts laid over it; the rest keeps its values and origins.

    Raises:
        ConfigError: as `load_config`.
    """

    def origin_of(path: KeyPath) -> Origin:
        return Origin(config.origin(dotted(path)))

    return _with_options(build(config.to_dict(secrets=True), origin_of), overrides)


def _with_options(tree: Node, overrides: Iterable[str]) -> Config:
    for option in overrides:
        tree = apply_override(tree, option)
    return config_from_tree(tree)


def config_from_tree(tree: Node) -> Config:
    """Check a merged tree and make a `Config` of it."""
    tree = drop_neutral(tree)
    data = tree.plain()
    problems = [*refusals(tree)]
    refused = {path for path, _ in problems}
    problems += [item for item in unknown_keys(data) if not _under(item[0], refused)]
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems += [
            (path, text + _example(tree, path))
            for path, text in value_problems(error, data)
            if not _under(path, refused)
        ]
    except RuleError as error:
        problems += [(_blame(tree, problem.keys), problem.text) for problem in error.problems]
    if problems:
        raise ConfigError(_one_line(tree, problems))
    config._origins.update(_origins(tree))
    return config


def _example(tree: Node, path: KeyPath) -> str:
    """A value that a key set by an option would have taken."""
    node = tree.find(path)
    if node is None or node.origin.option is None:
        return ""
    forms = forms_at(path, tree.plain())
    items = forms.items
    if items is not None and not forms.text and not isinstance(node.value, list):
        return f" (such as {'[0.5, 1]' if items.kinds else '[a, b]'})"
    defaults = [field.default for field in fields_at(path, tree.plain())]
    plain = [default for default in defaults if isinstance(default, int | float | str) and default != ""]
    return f" (its default is {shown(plain[0])})" if plain else ""


def _under(path: KeyPath, refused: set[KeyPath]) -> bool:
    """Whether a mistake follows from something that was refused already."""
    return any(path[: len(other)] == other or other[: len(path)] == path for other in refused)


def _blame(tree: Node, keys: Sequence[str]) -> KeyPath:
    """The key of a broken rule to point at: one set by an option, else in a file, else in a recipe."""
    written: dict[KeyPath, Origin] = {}
    for key in keys:
        path: KeyPath = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
        node = tree.find(path)
        if node is not None and node.origin != DEFAULT:
            written[path] = node.origin

    def remoteness(path: KeyPath) -> tuple[bool, bool]:
        return written[path].label != "--set", written[path].label.startswith("recipes/")

    return min(written, key=remoteness, default=())


def _one_line(tree: Node, problems: list[tuple[KeyPath, str]]) -> str:
    path, text = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    node = tree.nearest(path)
    if node.is_table and "type" in node.value and tree.find(path) is not node:
        node = node.value["type"]
    return one_line(f"{node.origin.prefix if path else ''}{text}{more}")


def _origins(tree: Node) -> dict[str, str]:
    return {
        dotted(path): str(node.origin)
        for path, node in tree.walk()
        if not node.is_table and node.origin != DEFAULT
    }
