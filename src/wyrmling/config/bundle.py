"""A bundle: configurations that are run one after the other, each from where an earlier one ended if it says so.

    name = "curriculum"
    config = "tiny"

    [[stages]]
    name = "short"
    set = ["training.block_size=32"]

    [[stages]]
    name = "long"
    init_from = "short"
    init_checkpoint = "best"
    set = ["training.block_size=128"]

The configuration of a stage is that of `config` (the bundle's files, then the stage's) with the `set` texts of the
bundle, of the stage and of the command laid over it in this order. Here it is read and checked; nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from ..errors import ConfigError
from .load import config_from_tree, read_layers
from .locations import KeyPath
from .messages import value_problems
from .overrides import apply_override
from .paths import bundle_folder, run_folder
from .reading import locate, read_layer
from .rules.layout import is_folder_name
from .schema import Config
from .schema.base import UNSET, Table, Text, Texts
from .toml import toml_value
from .tree import Node

LONGEST_NAME = 90
_NAME_FORM = (
    f"use at most {LONGEST_NAME} letters, digits, '.', '_' and '-', beginning with a letter or digit, and no reserved "
    "word"
)

Names = Annotated[Texts, BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
Which = Literal["latest", "best"]

_SET_INSTEAD = 'belongs to a configuration: put it into a file that config names, or into set = ["{key}=..."]'
_OTHER_NAMES = {
    "init_checkpoint_from_stage": "has a new name: use init_from",
    "depends_on": "is not needed: stages run in the order of the file",
    "backend": 'has a new place: use set = ["runtime.device=..."]',
    "dataset_manifest_from_stage": "is not built: name the files of the data in the stage's configuration",
    "type": "is not needed: every stage trains",
    "launch_mode": "is not needed: a stage begins new or from init_from, and goes on where it was interrupted",
    "output_dir": 'has a new name: use set = ["run_layout.base_dir=..."]',
    "resume_from_last_completed_stage": "is not needed: stages that are finished are never run again",
}


T = TypeVar("T", bound=Table)


class StageTable(Table):
    """`[[stages]]` as it stands in the file."""

    name: Text
    config: Names = ()
    set: Texts = ()
    init_from: Text | None = None
    init_checkpoint: Which | None = None


class BundleTable(Table):
    """The whole file."""

    name: Text | None = None
    config: Names = ()
    set: Texts = ()
    stages: Annotated[tuple[dict[str, Any], ...], Field(strict=False, min_length=1)]


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        config: complete; says where the run lies and what it is called. With `init_from` it names the run that lends
            the weights, but no step: which one that is shows when the lender has ended. A tokenizer that would be
            learned from text is the lender's, unless embedding and head may come from elsewhere.
        init_from: the earlier stage that lends its weights; None: none does.
        init_checkpoint: which of its checkpoints.
    """

    name: str
    config: Config
    init_from: str | None
    init_checkpoint: Which

    @property
    def run(self) -> Path:
        """The directory of the stage's run (it need not exist)."""
        return run_folder(self.config) / str(self.config.run_layout.name)


@dataclass(frozen=True)
class Bundle:
    """Stages in the order in which they run; `folder` holds their runs and the state, `file` is for messages."""

    name: str
    file: str
    folder: Path
    stages: tuple[Stage, ...]


def load_bundle(path: str | Path, overrides: Iterable[str] = (), name: str | None = None) -> Bundle:
    """Read a bundle and check the configurations of all its stages.

    Args:
        path: the TOML file; configurations that it names are recipes, or files relative to it.
        overrides: `key=value` texts laid over every stage, `stage:key=value` over one.
        name: of the bundle, instead of the file's own.

    Raises:
        ConfigError: one line with file, line or stage, key, and what to do.
    """
    place = locate(str(path))
    node = read_layer(path)
    table, stages = _tables(node)
    title = name or table.name or place[0].stem
    if not _is_name(title):
        raise ConfigError(f"{_at(node, ('name',))}name = {title[:60]!r} cannot be a folder's: {_NAME_FORM}")
    options = _options(overrides, [stage.name for stage in stages])
    done: dict[str, Stage] = {}
    for index, stage in enumerate(stages):
        _check_stage(stage, done, node, index)
        texts = [*table.set, *stage.set, *options[stage.name]]
        try:
            tree = read_layers([*table.config, *stage.config], place)
            for text in texts:
                tree = apply_override(tree, text)
            done[stage.name] = _stage(stage, tree, title, done)
        except ConfigError as error:
            raise ConfigError(f"{place[1]}: stage {stage.name}: {error}") from error
    folders = {bundle_folder(stage.config) for stage in done.values()}
    if len(folders) > 1:
        raise ConfigError(
            f"{place[1]}: the stages of a bundle lie in one folder: give run_layout.base_dir and run_layout.category "
            "to all of them, with set at the top of the file"
        )
    return Bundle(title, place[1], folders.pop(), tuple(done.values()))


def _is_name(name: str) -> bool:
    return is_folder_name(name) and len(name) <= LONGEST_NAME


def _at(node: Node, path: KeyPath) -> str:
    return node.nearest(path).origin.prefix


def _tables(node: Node) -> tuple[BundleTable, list[StageTable]]:
    """The tables of the file, checked one by one."""
    data = node.plain()
    table = _validated(BundleTable, data, node, ())
    stages = [
        _validated(StageTable, stage, node, ("stages", index)) for index, stage in enumerate(data["stages"])
    ]
    return table, stages


def _validated(cls: type[T], data: Mapping[str, Any], node: Node, path: KeyPath) -> T:
    where = "stages." if path else ""
    for key in data:
        if key not in cls.model_fields:
            raise ConfigError(f"{_at(node, (*path, key))}{where}{key} {_about_unknown(key, cls)}")
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        (at, text), *_ = value_problems(error, data, cls)
        raise ConfigError(f"{_at(node, (*path, *at))}{where}{text}") from error


def _about_unknown(key: str, cls: type[Table]) -> str:
    import difflib

    if key in _OTHER_NAMES:
        return _OTHER_NAMES[key]
    if key in Config.model_fields:
        return _SET_INSTEAD.format(key=f"{key}.KEY")
    near = difflib.get_close_matches(key, cls.model_fields, 1)
    hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(cls.model_fields)}"
    return f"is no key of a bundle ({hint})"


def _options(overrides: Iterable[str], stages: Sequence[str]) -> dict[str, list[str]]:
    """The texts of the command, by stage."""
    found: dict[str, list[str]] = {name: [] for name in stages}
    for text in overrides:
        stage, colon, rest = text.partition(":")
        if not colon or "=" in stage:
            for texts in found.values():
                texts.append(text)
        elif stage in found:
            found[stage].append(rest)
        else:
            raise ConfigError(
                f"--set {text}: there is no stage {stage!r} in this bundle; its stages are {', '.join(stages)}"
            )
    return found


def _check_stage(stage: StageTable, earlier: Mapping[str, Stage], node: Node, index: int) -> None:
    """Raises ConfigError when a stage's name or lender cannot be."""

    def refuse(key: str, text: str) -> ConfigError:
        return ConfigError(f"{_at(node, ('stages', index, key))}{text}")

    if not _is_name(stage.name):
        raise refuse("name", f"stages.name = {stage.name[:60]!r} cannot be a folder's: {_NAME_FORM}")
    if stage.name.lower() in map(str.lower, earlier):
        raise refuse(
            "name", f"stages.name = {stage.name!r} is given twice; every stage needs a name of its own"
        )
    if stage.init_from is not None and stage.init_from not in earlier:
        known = (
            f"those before {stage.name} are {', '.join(earlier)}" if earlier else "there is none before it"
        )
        raise refuse("init_from", f"stages.init_from = {stage.init_from!r} is no earlier stage; {known}")
    if stage.init_checkpoint is not None and stage.init_from is None:
        raise refuse("init_checkpoint", "stages.init_checkpoint requires stages.init_from")


def _stage(table: StageTable, tree: Node, bundle: str, earlier: Mapping[str, Stage]) -> Stage:
    """The stage of a merged tree: where it lies and what it begins from is laid over it."""
    for key in ("bundle", "stage"):
        if tree.find(("run_layout", key)) is not None:
            raise ConfigError(f"run_layout.{key} follows from the bundle: leave it out")
    settings = [f"run_layout.bundle={toml_value(bundle)}", f"run_layout.stage={toml_value(table.name)}"]
    own = tree.find(("run_layout", "name"))
    if own is None or own.value == UNSET:
        settings.append(f"run_layout.name={toml_value(f'{bundle}-{table.name}')}")
    lender = None if table.init_from is None else earlier[table.init_from]
    settings += _launch(tree, lender)
    for text in settings:
        tree = apply_override(tree, text)
    config = config_from_tree(tree)
    if lender is not None and _takes_tokens(config, lender.config):
        path = toml_value((lender.run / "tokenizer.json").as_posix())
        config = config_from_tree(apply_override(tree, f"dataset.tokenizer.vocab_path={path}"))
    if lender is not None:
        if table.init_checkpoint == "best" and not _validates(lender.config):
            raise ConfigError(
                f'stage {lender.name} has no validation and so no best checkpoint: set init_checkpoint = "latest"'
            )
        for text in _misfits(config, lender.config):
            raise ConfigError(
                f"the weights of stage {lender.name} do not fit: {text}; give both the same, or leave init_from out"
            )
    return Stage(table.name, config, table.init_from, table.init_checkpoint or "latest")


def _launch(tree: Node, lender: Stage | None) -> list[str]:
    """How a new run of the stage begins, as texts to lay over it."""
    mode = tree.find(("training", "launch_mode"))
    if mode is not None and str(mode.value).startswith("resume"):
        raise ConfigError(
            f"training.launch_mode = {toml_value(mode.value)} has no place in a bundle, which goes on by "
            "itself; leave it out"
        )
    if lender is None:
        return []
    for key in ("init_checkpoint_path", "init_checkpoint_step"):
        if tree.find(("training", key)) is not None:
            raise ConfigError(f"training.{key} cannot be combined with init_from: leave one of them out")
    return [
        "training.launch_mode=init_from_checkpoint",
        f"training.init_checkpoint_path={toml_value(lender.run.as_posix())}",
    ]


def _takes_tokens(config: Config, lender: Config) -> bool:
    """Whether a stage whose tokenizer would be made from its own text takes that of its lender instead."""
    tokenizer = config.dataset.tokenizer
    learns = getattr(tokenizer, "vocab_path", tokenizer) is None
    return learns and not _other_surfaces(config) and tokenizer.type == lender.dataset.tokenizer.type


def _other_surfaces(config: Config) -> bool:
    """Whether embedding and head may come from elsewhere than the lender."""
    transfer = config.training.init_transfer
    return transfer.fresh_surfaces or transfer.interface_checkpoint_path is not None


def _validates(config: Config) -> bool:
    """Whether there will be a validation."""
    dataset = config.dataset
    own = dataset.validation is not None or bool(getattr(dataset, "validation_files", ()))
    return own or dataset.train_split_ratio < 1


def _misfits(config: Config, lender: Config) -> Iterator[str]:
    """What keeps the weights of one configuration out of another, as far as shows before anything is read."""
    ours, theirs = config.effective_model, lender.effective_model
    for key, here, there in (
        ("model.sequence_kernel", ours.sequence_kernel.memory_system, theirs.sequence_kernel.memory_system),
        ("model.n_embd", ours.n_embd, theirs.n_embd),
    ):
        if here != there:
            yield f"{key} is {toml_value(there)} there and {toml_value(here)} here"
    for what, few, many in (
        ("model.n_head is", ours.n_head, theirs.n_head),
        (
            "a head's neurons (model.latent_total / model.n_head) are",
            ours.neurons_per_head,
            theirs.neurons_per_head,
        ),
    ):
        if few < many:
            yield f"{what} {many} there and {few} here, and a model cannot shrink"
    kinds = (config.dataset.tokenizer.type, lender.dataset.tokenizer.type)
    if "pretokenized" in kinds and kinds[0] != kinds[1] and not _other_surfaces(config):
        yield f"dataset.tokenizer.type is {toml_value(kinds[1])} there and {toml_value(kinds[0])} here"
