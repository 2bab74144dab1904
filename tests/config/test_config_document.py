"""The generated pages say what the schema says, and the command prints them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from wyrmling.cli.config import app
from wyrmling.config import Config, list_recipes, load_config
from wyrmling.config.document import config_page, json_schema, json_schema_text
from wyrmling.config.known import walk_keys
from wyrmling.config.toml import as_toml
from wyrmling.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = [recipe.name for recipe in list_recipes()]


def accepted(data: dict[str, Any]) -> bool:
    validator = jsonschema.Draft202012Validator(json_schema())
    return bool(validator.is_valid(data))


def test_the_page_and_the_schema_file_are_up_to_date() -> None:
    assert (DOCS / "config.md").read_text(encoding="utf-8") == config_page(), "run `make docs`"
    assert (DOCS / "config.schema.json").read_text(encoding="utf-8") == json_schema_text(), "run `make docs`"


def test_every_key_has_a_description_and_a_line_on_the_page() -> None:
    sections = {}
    for part in config_page().split("\n## `[")[1:]:
        name, _, body = part.partition("]`")
        sections[name] = body
    for path, field, _ in walk_keys():
        assert field.description, path
        table = ".".join(map(str, path[:-1]))
        if table == "" or table.startswith("dataset.validation"):
            continue
        if path[-1] == "type" and '.type = "' in sections[table]:
            assert f'{table}.type = "{field.default}"' in sections[table]
        else:
            assert f"| `{path[-1]}` |" in sections[table], path


@pytest.mark.parametrize("name", RECIPES)
def test_the_schema_accepts_every_recipe_and_every_resolved_configuration(name: str) -> None:
    path = next(recipe.path for recipe in list_recipes() if recipe.name == name)
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert accepted(tomllib.loads(path.read_text(encoding="utf-8")))
    assert accepted(load_config(name).to_dict())
    assert accepted(tomllib.loads(as_toml(load_config(name))))


@pytest.mark.parametrize(
    ("data", "right"),
    [
        ({}, True),
        ({"extends": ["a", "b.toml"]}, True),
        ({"extends": 3}, False),
        ({"dataset": {"tokenizer": {"type": "char"}}}, True),
        ({"dataset": {"path": "x"}}, False),
        ({"dataset": {"type": "jsonl"}}, False),
        ({"dataset": {"type": "jsonl", "path": "x"}}, True),
        ({"dataset": {"type": "shakespeare", "path": "x"}}, False),
        ({"training": {"lerning_rate": 1}}, False),
        ({"training": {"batch_size": 0}}, False),
        ({"training": {"max_iters": "none"}}, True),
        ({"training": {"batch_size": "none"}}, False),
        ({"model": {"sequence_kernel": "linear_attention"}}, True),
        ({"model": {"sequence_kernel": "mamba1"}}, False),
        ({"optimizer": {"grad_clip_norm": "off"}}, True),
        ({"optimizer": {"lr_schedule": {"min_lr": 0.1}}}, False),
    ],
)
def test_the_schema_and_the_program_agree(data: dict[str, Any], right: bool) -> None:
    assert accepted(data) is right
    if "extends" in data:
        return
    try:
        Config.from_dict(data | {"training": data.get("training", {}) | ({"epochs": 1} if right else {})})
    except ConfigError:
        assert not right
    else:
        assert right


@given(st.text(), st.floats(0, 1e6, allow_subnormal=False), st.sampled_from(RECIPES))
def test_the_printed_configuration_can_be_loaded_again(prompt: str, temperature: float, name: str) -> None:
    config = load_config(name).to_dict()
    config["generation"] |= {"prompt": prompt, "temperature": temperature}
    made = Config.from_dict(config)
    assert Config.from_dict(tomllib.loads(as_toml(made))) == made


def test_the_command_shows_values_with_their_origins(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('extends = "tiny"\n[training]\nseed = 3\n')
    result = CliRunner().invoke(app, ["show", str(file), "--set", "training.batch_size=5"])
    assert result.exit_code == 0
    lines = [line.split("  #") for line in result.output.splitlines() if "  #" in line]
    shown = {line.strip(): origin.strip() for line, origin in lines}
    assert shown["seed = 3"] == f"{file}:3"
    assert shown["batch_size = 5"] == "--set"
    assert shown["n_layer = 2"].startswith("recipes/tiny.toml:")
    assert shown['device = "auto"'] == "default"


def test_the_command_writes_the_pages_and_lists_the_recipes(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert run(app, ["docs", "--output", str(tmp_path / "c.md")]).exit_code == 0
    assert run(app, ["schema", "--output", str(tmp_path / "c.json")]).exit_code == 0
    assert (tmp_path / "c.md").read_text(encoding="utf-8") == config_page()
    assert json.loads((tmp_path / "c.json").read_text(encoding="utf-8")) == json_schema()
    assert run(app, ["schema"]).output == json_schema_text()
    listing = run(app, ["recipes"]).output
    assert all(f"{recipe.name}: {recipe.description}" in listing for recipe in list_recipes())


def test_a_wrong_configuration_leaves_the_command_with_its_one_line() -> None:
    result = CliRunner().invoke(app, ["show", "tiny", "--set", "training.batch_size=0"])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.exit_code == 2


def test_every_recipe_says_what_it_is_and_the_default_comes_first() -> None:
    assert RECIPES[0] == "shakespeare"
    for recipe in list_recipes():
        assert len(recipe.description) > 40
        assert recipe.path.read_text(encoding="utf-8").startswith("# ")
