"""Runs in folders of their own: made where `run_layout` says, never outside the root, found by name all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config import Config, run_folder, run_root
from wyrmling.errors import CheckpointError, ConfigError
from wyrmling.runs import RunDirectory, create_run, find_run, latest_run, newest_in, run_names


def config(**run_layout: object) -> Config:
    return Config.from_dict({"run_layout": run_layout})


def fill(run: RunDirectory) -> None:
    """What marks a run as one."""
    for path in (run.training_config_path, run.config_json):
        path.write_text("{}", encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of runs that the environment of the tests names."""
    return tmp_path / "runs"


def test_folders_are_those_of_the_described_layout(root: Path) -> None:
    whole = config(category="ablations/shakespeare", bundle="kernel_compare", stage="train", variant="mamba2")
    place = "ablations/shakespeare/bundles/kernel_compare/stages/train/variants/mamba2"
    assert run_folder(whole) == root / place
    assert run_folder(config()) == root
    assert run_folder(config(category="a", stage="s")) == root / "a/stages/s"
    run = create_run(whole, fill)
    assert run.path.parent == root / place
    assert find_run(run.name) == find_run("latest") == latest_run(run.path.parent) == run


@given(st.text("aZ0._-/\\: é~", max_size=8), st.sampled_from(["category", "bundle", "stage", "variant"]))
def test_no_name_leads_out_of_the_root(text: str, key: str) -> None:
    """Whatever is accepted lies below the root, by its plain text and after the system has resolved it."""
    try:
        chosen = config(**{key: text})
    except ConfigError:
        return
    base, folder = run_root(chosen), run_folder(chosen)
    assert Path(os.path.normpath(folder)) == folder
    assert folder.resolve().is_relative_to(base.resolve())


@pytest.mark.parametrize(
    "text", ["..", "a/../../b", "/etc", "a//b", "a/", ".hidden", "latest", "a/checkpoint", "nul", "a/b/c/d/e"]
)
@pytest.mark.parametrize("key", ["category", "bundle", "stage", "variant"])
def test_names_that_cannot_be_folders_are_refused_with_their_key(key: str, text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^run_layout\.{key} must name folders below the folder of the runs"
    ):
        config(**{key: text})


def test_one_name_in_two_folders_is_asked_about(root: Path) -> None:
    first = create_run(config(category="a", name="amber"), fill)
    second = create_run(config(category="b", name="amber"), fill)
    with pytest.raises(
        CheckpointError, match=r"2 runs in .* are called 'amber': a/amber, b/amber; say which"
    ):
        find_run("amber")
    assert find_run("b/amber") == find_run(second.path) == second
    assert find_run("a/amber").path == first.path
    assert find_run("latest") == second
    top = create_run(config(name="amber"), fill)
    assert find_run("amber") == top


def test_the_end_of_a_path_is_enough(root: Path) -> None:
    run = create_run(config(bundle="plays", stage="short", name="plays-short"), fill)
    other = create_run(config(bundle="plays", stage="long", name="plays-long"), fill)
    assert find_run("short/plays-short") == run
    assert find_run("bundles/plays/stages/long/plays-long") == other
    with pytest.raises(CheckpointError, match=r"did you mean bundles/plays/stages/short/plays-short"):
        find_run("plays-shrt")
    for wanted in ("", ".", "..", "/", "short"):
        with pytest.raises(CheckpointError):
            find_run(wanted, root)


def test_all_runs_are_listed_and_nothing_else(root: Path) -> None:
    create_run(config(name="top"), fill)
    deep = create_run(config(category="x/y", bundle="b", stage="s", variant="v", name="deep"), fill)
    inner = deep.path / "copies" / "inner"
    inner.mkdir(parents=True)
    fill(RunDirectory(inner, "inner"))
    foreign = root / "x" / "weights"
    foreign.mkdir()
    (foreign / "config.json").write_text("{}")
    (root / ".tmp-half-1-2").mkdir()
    fill(RunDirectory(root / ".tmp-half-1-2", "half"))
    assert set(run_names(root)) == {"top", "x/y/bundles/b/stages/s/variants/v/deep"}


@pytest.mark.skipif(os.name == "nt", reason="Windows needs a privilege for links")
def test_a_circle_of_links_is_not_followed(root: Path) -> None:
    create_run(config(category="x", name="one"), fill)
    (root / "x" / "back").symlink_to(root)
    assert run_names(root) == ["x/one"]


def test_latest_does_not_lead_out_of_the_root(root: Path, tmp_path: Path) -> None:
    outside = create_run(config(base_dir=str(tmp_path / "elsewhere"), name="outside"), fill)
    create_run(config(name="inside"), fill)
    for text in ("../elsewhere/outside", str(outside.path)):
        (root / "latest").write_text(text)
        assert latest_run(root) is None
        with pytest.raises(CheckpointError, match="not a run there"):
            find_run("latest", root)


def test_the_newest_of_a_folder_is_not_in_a_folder_below(root: Path) -> None:
    assert newest_in(root) is None
    create_run(config(category="x", name="below"), fill)
    assert newest_in(root) is None
    own = create_run(config(name="own"), fill)
    assert newest_in(root) == own
    below = create_run(config(category="x", name="later"), fill)
    assert (newest_in(root), newest_in(root / "x"), latest_run(root)) == (own, below, below)


def test_a_file_put_into_an_older_run_does_not_make_it_the_newest(root: Path) -> None:
    """A report written into a run, say, changes the time of its folder."""
    for day, name in enumerate(("older", "newer"), start=1):
        made = create_run(config(name=name), fill)
        made.config_json.write_text(f'{{"created": "2026-01-0{day}T00:00:00+00:00"}}', encoding="utf-8")
    create_run(config(category="x", name="below"), fill)
    os.utime(root / "newer", (1, 1))
    found = newest_in(root)
    assert found is not None
    assert found.name == "newer"


def test_no_run_is_made_inside_another(root: Path) -> None:
    run = create_run(config(name="amber"), fill)
    for layout in ({"category": "amber"}, {"category": "amber/notes"}):
        with pytest.raises(
            ConfigError, match=r"but .*amber is a run itself; choose another run_layout\.category"
        ):
            create_run(config(**layout), fill)
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "training_config.json"]
