"""Which checkpoints stay: the newest by number, and the best, at every instant."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.checkpoint import (
    checkpoint_path,
    clean,
    is_better,
    list_checkpoints,
    locate_checkpoint,
    newest_good,
    prune,
    read_checkpoint,
    read_pointer,
    save_checkpoint,
    set_aside_newer,
    write_pointer,
)
from wyrmling.errors import CheckpointError, ConfigError


def save(root: Path, *steps: int) -> None:
    for step in steps:
        save_checkpoint(root, step, {"model": {"x": torch.tensor([float(step)])}}, {"step": step})


def test_the_newest_by_number_and_the_best_stay(tmp_path: Path) -> None:
    save(tmp_path, 9, 10, 11, 99, 100)
    assert prune(tmp_path, keep=2, best=10) == [9, 11]
    assert list_checkpoints(tmp_path) == [10, 99, 100]


def test_keep_one_with_the_best_elsewhere(tmp_path: Path) -> None:
    save(tmp_path, 9, 10, 11, 99, 100)
    prune(tmp_path, keep=1, best=10)
    assert list_checkpoints(tmp_path) == [10, 100]
    prune(tmp_path, keep=1, best=None)
    assert list_checkpoints(tmp_path) == [100]
    prune(tmp_path, keep=1, best=100)
    assert list_checkpoints(tmp_path) == [100]


@pytest.mark.parametrize(
    ("steps", "losses", "left"),
    [
        (range(1, 31), {19: 0.5}, [19, 29, 30]),
        (range(1, 31), {29: 0.5}, [29, 30]),
        (range(1, 5), {1: 3.0, 2: 2.0, 3: 2.5, 4: 1.5}, [3, 4]),
        (range(1, 8), {2: 0.5}, [2, 6, 7]),
    ],
)
def test_the_described_sequences(
    tmp_path: Path, steps: range, losses: dict[int, float], left: list[int]
) -> None:
    """The best so far is known at every save, so it is never one of those that go."""
    best: int | None = None
    for step in steps:
        if is_better(losses.get(step, 9.0), None if best is None else losses.get(best, 9.0)):
            best = step
        save(tmp_path, step)
        prune(tmp_path, keep=2, best=best)
    assert list_checkpoints(tmp_path) == left


def test_folders_that_cannot_be_renamed_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came with the image of a container lies in a layer of its own: renaming it is refused with EXDEV."""
    save(tmp_path, 1, 2, 3)
    old = {tmp_path / f"step-{step:09d}" for step in (1, 2, 3)}
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(source) in old:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    assert prune(tmp_path, keep=2, best=None) == [1]
    save_checkpoint(tmp_path, 2, {"model": {"x": torch.tensor([5.0])}}, {"step": 2})
    assert read_checkpoint(checkpoint_path(tmp_path, 2)).parts["model"]["x"].item() == 5.0
    assert set_aside_newer(tmp_path, 2) == [3]
    assert list_checkpoints(tmp_path) == [2]
    assert read_checkpoint(tmp_path / "superseded" / "step-000000003").step == 3
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_is_refused(tmp_path: Path, keep: int) -> None:
    save(tmp_path, 1, 2)
    with pytest.raises(ConfigError, match=f"checkpoint_keep is {keep}"):
        prune(tmp_path, keep=keep, best=None)
    assert list_checkpoints(tmp_path) == [1, 2]


@given(
    steps=st.lists(st.integers(0, 10**11), min_size=1, max_size=7, unique=True),
    keep=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_whatever_the_order_of_saving(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], keep: int, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("root")
    save(root, *steps)
    assert list_checkpoints(root) == sorted(steps)
    best = data.draw(st.sampled_from(steps))
    removed = prune(root, keep, best)
    left = sorted({*sorted(steps)[-keep:], best})
    assert list_checkpoints(root) == left
    assert sorted([*removed, *left]) == sorted(steps)
    assert not list(root.glob(".*"))


def test_strange_names_are_nobodys_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 7)
    for name in ("step-12", "step-00000001x", "step--00000001", "epoch-000000003", "superseded"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000000099").write_text("a file")
    assert list_checkpoints(tmp_path) == [7]
    prune(tmp_path, 1, None)
    assert (tmp_path / "step-12").is_dir()


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path, 7)
    (tmp_path / ".tmp-step-000000008-4242").mkdir()
    (tmp_path / ".tmp-step-000000008-4242" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-latest-4242").write_text("step-0")
    assert sorted(clean(tmp_path)) == [".tmp-latest-4242", ".tmp-step-000000008-4242"]
    assert clean(tmp_path) == []
    assert clean(tmp_path / "missing") == []
    assert list_checkpoints(tmp_path) == [7]


def test_a_fall_back_is_not_undone_by_retention(tmp_path: Path) -> None:
    """Step 100 is damaged, the run goes on from 90 and saves 95: 95 must count as the newest."""
    save(tmp_path, 90, 100)
    write_pointer(tmp_path, "latest", 100)
    write_pointer(tmp_path, "best", 90)
    (checkpoint_path(tmp_path, 100) / "model.safetensors").write_bytes(b"")
    good = newest_good(tmp_path)
    assert good is not None
    assert set_aside_newer(tmp_path, good.step) == [100]
    assert (read_pointer(tmp_path, "latest"), read_pointer(tmp_path, "best")) == (None, 90)
    save(tmp_path, 95)
    prune(tmp_path, keep=1, best=None)
    assert list_checkpoints(tmp_path) == [95]
    assert (tmp_path / "superseded" / "step-000000100").is_dir()


def test_an_abandoned_course_is_kept_apart_however_often(tmp_path: Path) -> None:
    save(tmp_path, 50, 100)
    assert set_aside_newer(tmp_path, 50) == [100]
    save(tmp_path, 100)
    assert set_aside_newer(tmp_path, 50) == [100]
    assert set_aside_newer(tmp_path, 50) == []
    assert len(list((tmp_path / "superseded").iterdir())) == 2
    good = newest_good(tmp_path)
    assert good is not None
    assert good.step == 50


@given(new=st.floats(), old=st.none() | st.floats())
def test_what_is_not_finite_is_never_better(new: float, old: float | None) -> None:
    if not math.isfinite(new):
        assert not is_better(new, old)
    elif old is None or not math.isfinite(old):
        assert is_better(new, old)
    else:
        assert is_better(new, old) == (new < old)


def test_locate_understands_run_root_and_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "checkpoint"
    save(root, 9, 10, 100)
    write_pointer(root, "best", 10)
    for place in (tmp_path, root, checkpoint_path(root, 9)):
        assert locate_checkpoint(place, 10) == checkpoint_path(root, 10)
        assert locate_checkpoint(place, "latest") == checkpoint_path(root, 100)
        assert locate_checkpoint(place, "best") == checkpoint_path(root, 10)
    assert locate_checkpoint(tmp_path) == checkpoint_path(root, 100)
    assert locate_checkpoint(checkpoint_path(root, 9)) == checkpoint_path(root, 9)
    assert locate_checkpoint(tmp_path, 9) == checkpoint_path(root, 9)


def test_locate_says_what_there_is(tmp_path: Path) -> None:
    save(tmp_path, 9, 10)
    with pytest.raises(CheckpointError, match="no checkpoint of step 11; it has 9, 10"):
        locate_checkpoint(tmp_path, 11)
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        locate_checkpoint(tmp_path, "best")
    with pytest.raises(CheckpointError, match="no run or checkpoint at"):
        locate_checkpoint(tmp_path / "elsewhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* yet"):
        locate_checkpoint(tmp_path / "empty")
    (tmp_path / "bdh.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file"):
        locate_checkpoint(tmp_path / "bdh.pt")
