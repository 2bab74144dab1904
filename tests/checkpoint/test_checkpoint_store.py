"""What is saved is what is read, and damage of every kind is seen, named and survived."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from wyrmling.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    locate_checkpoint,
    newest_good,
    read_checkpoint,
    read_pointer,
    save_checkpoint,
    write_pointer,
)
from wyrmling.checkpoint.layout import aside_path, clean, step_name
from wyrmling.errors import CheckpointError, WyrmlingError

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def parts_of(step: int) -> dict[str, dict[str, Tensor]]:
    """A small checkpoint whose every number tells the step."""
    weights = {
        "encoder": torch.full((2, 3, 5), float(step)),
        "embedding.weight": torch.full((7, 3), step + 0.5),
    }
    return {"model": weights, "optimizer": {"encoder.step": torch.tensor(float(step))}}


def save_steps(root: Path, *steps: int) -> None:
    for step in steps:
        save_checkpoint(root, step, parts_of(step), {"step": step})


def assert_is_step(checkpoint: Any, step: int) -> None:
    assert checkpoint is not None
    assert checkpoint.step == step
    assert checkpoint.progress == {"step": step}
    for part, tensors in parts_of(step).items():
        assert checkpoint.parts[part].keys() == tensors.keys()
        assert all(torch.equal(checkpoint.parts[part][name], tensors[name]) for name in tensors)


def rewrite_manifest(path: Path, change: Any) -> None:
    """Change the manifest as someone would who also mends its hash."""
    body = json.loads((path / "manifest.json").read_text())
    body.pop("sha256")
    change(body)
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    body["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(body))


@st.composite
def tensors_of_any_kind(draw: st.DrawFn) -> dict[str, Tensor]:
    names = draw(
        st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5, unique=True)
    )
    result = {}
    for name in names:
        if name == "__metadata__":
            continue
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        dtype = draw(st.sampled_from(DTYPES))
        tensor = torch.randint(0, 2, shape).to(dtype)
        if tensor.dim() >= 2 and draw(st.booleans()):
            tensor = tensor.transpose(0, -1)
        if tensor.dim() and tensor.shape[0] > 1 and draw(st.booleans()):
            tensor = tensor[::2]
        result[name] = tensor
    return result


@given(tensors=tensors_of_any_kind())
@settings(max_examples=40, deadline=None)
def test_any_tensors_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Tensor]
) -> None:
    root = tmp_path_factory.mktemp("root")
    path = save_checkpoint(root, 3, {"model": tensors}, {"loss": 0.1 + 0.2, "name": "dragon é"})
    back = read_checkpoint(path)
    assert back.progress == {"loss": 0.1 + 0.2, "name": "dragon é"}
    assert back.parts["model"].keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back.parts["model"][name].dtype == tensor.dtype
        assert back.parts["model"][name].shape == tensor.shape
        assert torch.equal(back.parts["model"][name], tensor)


def test_special_values_keep_their_bits(tmp_path: Path) -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64)
    back = read_checkpoint(save_checkpoint(tmp_path, 1, {"model": {"x": odd}}, {})).parts["model"]["x"]
    assert torch.equal(back.view(torch.int64), odd.view(torch.int64))


def test_tensors_that_share_memory_are_saved_each_whole(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    views = {"all": base, "rows": base.view(3, 4).t(), "middle": base[3:9:2]}
    path = save_checkpoint(tmp_path, 1, {"model": views}, {})
    loaded = load_file(path / "model.safetensors")
    assert all(torch.equal(loaded[name], view) for name, view in views.items())


def test_what_is_read_belongs_to_the_reader(tmp_path: Path) -> None:
    """Changing a tensor that was read leaves the file alone; deleting the file leaves the tensor alone."""
    path = save_checkpoint(tmp_path, 1, parts_of(1), {"step": 1})
    first = read_checkpoint(path)
    first.parts["model"]["encoder"].fill_(-1)
    assert_is_step(read_checkpoint(path), 1)
    (path / "model.safetensors").unlink()
    assert float(first.parts["model"]["encoder"].sum()) == -30.0


def test_the_same_content_makes_the_same_files(tmp_path: Path) -> None:
    one = save_checkpoint(tmp_path / "a", 7, parts_of(7), {"step": 7})
    two = save_checkpoint(tmp_path / "b", 7, parts_of(7), {"step": 7})
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_only_the_parts_asked_for_are_needed_whole(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 5, parts_of(5), {"step": 5})
    flip_byte(path / "optimizer.safetensors")
    assert read_checkpoint(path, ["model"]).parts.keys() == {"model"}
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is damaged"):
        read_checkpoint(path, ["optimizer"])


def test_an_empty_part_is_not_a_missing_one(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 0, {"model": {}, "optimizer": {}}, {})
    assert read_checkpoint(path, ["optimizer"]).parts == {"optimizer": {}}
    with pytest.raises(CheckpointError, match=r"no part 'streams-0' \(it has model, optimizer\)"):
        read_checkpoint(path, ["model", "streams-0"])


@pytest.mark.parametrize("name", ["../model", "a/b", "", ".hidden", "a\\b", "x" * 200])
def test_a_part_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        save_checkpoint(tmp_path, 1, {name: {}}, {})
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    for bad in (
        torch.zeros(2, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
        torch.empty(2, device="meta"),
    ):
        with pytest.raises(ValueError, match="cannot be saved"):
            save_checkpoint(tmp_path, 2, {"model": {"x": bad}}, {})
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, 2, parts_of(2), {"step": object()})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000000001"]


def error_of(action: Callable[[], object]) -> str | None:
    """The one line of the error for people that `action` raises, None when it succeeds."""
    try:
        action()
    except WyrmlingError as error:
        line = str(error)
    else:
        return None
    assert "\n" not in line
    return line


def flip_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def truncate(share: float) -> Any:
    return lambda file: os.truncate(file, int(file.stat().st_size * share))


DAMAGE = {
    "cut to nothing": truncate(0),
    "cut to half": truncate(0.5),
    "cut to 99 percent": truncate(0.99),
    "one bit": flip_byte,
    "missing": Path.unlink,
    "a pickle instead": lambda file: file.write_bytes(pickle.dumps({"model": [1, 2, 3]})),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b" "),
    "a directory instead": lambda file: (file.unlink(), file.mkdir()),
}
FILES = ["model.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"]
# A blank after the manifest's JSON changes nothing that it says: that pair is no damage.
CASES = [
    (file, damage) for file in FILES for damage in DAMAGE if (file, damage) != ("manifest.json", "longer")
]


@pytest.mark.parametrize(("file", "damage"), CASES)
def test_damage_is_one_line_and_the_previous_checkpoint_takes_over(
    tmp_path: Path, file: str, damage: str
) -> None:
    save_steps(tmp_path, 9, 10)
    broken = checkpoint_path(tmp_path, 10)
    DAMAGE[damage](broken / file)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(broken)
    line = str(caught.value)
    assert "\n" not in line
    assert file in line
    assert "step-000000010" in line
    reports: list[tuple[Path, str]] = []
    found = newest_good(tmp_path, on_damaged=lambda path, reason: reports.append((path, reason)))
    assert_is_step(found, 9)
    assert reports == [(broken, line)]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_changed_byte_passes_unseen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any single byte of any file, changed to any other: refused, or the content is the same."""
    path = save_checkpoint(tmp_path_factory.mktemp("root"), 10, parts_of(10), {"step": 10})
    file = path / data.draw(st.sampled_from(FILES))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255).filter(lambda value: value != content[place]))
    file.write_bytes(content)
    line = error_of(lambda: assert_is_step(read_checkpoint(path), 10))
    assert line is None or file.name == "manifest.json" or file.name in line
    assert line is not None or file.name == "manifest.json", "only white space of the manifest may differ"


def test_a_pickle_that_the_manifest_vouches_for_is_refused(tmp_path: Path) -> None:
    """Sizes and hashes that agree do not make a pickle a part."""
    path = save_checkpoint(tmp_path, 10, parts_of(10), {"step": 10})
    payload = pickle.dumps({"encoder": [1.0]})
    (path / "model.safetensors").write_bytes(payload)
    record = {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    rewrite_manifest(path, lambda body: body["files"].update({"model.safetensors": record}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged: not a whole safetensors file"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["extra.safetensors", "model.pt", "optimizer.pkl", "weights.BIN", "x.npy"])
def test_a_file_that_pretends_to_be_a_part_is_refused_unopened(tmp_path: Path, name: str) -> None:
    path = save_checkpoint(tmp_path, 10, parts_of(10), {"step": 10})
    (path / name).write_bytes(pickle.dumps("anything"))
    with pytest.raises(CheckpointError, match=f"{name} is not part of the checkpoint"):
        read_checkpoint(path)


def test_a_note_in_the_directory_does_no_harm(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 10, parts_of(10), {"step": 10})
    (path / "NOTES.txt").write_text("the good one")
    (path / ".DS_Store").write_bytes(b"\0")
    assert_is_step(read_checkpoint(path), 10)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda body: body.update(format_version=2), "format version 2 is newer than 1.*upgrade wyrmling"),
        (lambda body: body.update(format_version="1"), "damaged"),
        (lambda body: body.update(format="other"), "does not say that its format"),
        (lambda body: body["files"].pop("progress.json"), "malformed"),
        (lambda body: body["files"].update({"../../x": {"bytes": 0, "sha256": ""}}), "malformed"),
        (lambda body: body["parts"].update({"../x": {}}), "malformed"),
        (lambda body: body["parts"]["model"]["encoder"].update(shape=[2, 5, 3]), "tensors are not those"),
        (lambda body: body["parts"]["model"]["encoder"].update(dtype="F64"), "tensors are not those"),
        (lambda body: body["parts"]["model"].pop("encoder"), "tensors are not those"),
        (lambda body: body["parts"].update(model=None), "malformed"),
        (lambda body: body.update(step=11), "says step 11"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(tmp_path: Path, change: Any, text: str) -> None:
    path = save_checkpoint(tmp_path, 10, parts_of(10), {"step": 10})
    rewrite_manifest(path, change)
    with pytest.raises(CheckpointError, match=text) as caught:
        read_checkpoint(path)
    assert "manifest.json" in str(caught.value) or "model.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "[" * 100_000, "\xff\xfe"])
def test_a_manifest_that_does_not_parse_is_refused(tmp_path: Path, text: str) -> None:
    path = save_checkpoint(tmp_path, 10, parts_of(10), {"step": 10})
    (path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        read_checkpoint(path)


def test_newest_good_tells_nothing_there_from_nothing_good(tmp_path: Path) -> None:
    """With no checkpoint a run may start; with only damaged ones it must not start over unasked."""
    assert newest_good(tmp_path / "never made") is None
    save_steps(tmp_path, 1, 2)
    for step in (1, 2):
        os.truncate(checkpoint_path(tmp_path, step) / "model.safetensors", 3)
    seen: list[str] = []
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is good; the newest: .*step-000000002"):
        newest_good(tmp_path, on_damaged=lambda path, reason: seen.append(path.name))
    assert seen == ["step-000000002", "step-000000001"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_steps(tmp_path, 4, 5)
    path = save_checkpoint(tmp_path, 5, {"model": {"x": torch.ones(3)}}, {"step": 5, "again": True})
    assert read_checkpoint(path).progress == {"step": 5, "again": True}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-000000004", "step-000000005"]


def test_a_writer_killed_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    save_steps(tmp_path, 5)
    os.replace(tmp_path / step_name(5), aside_path(tmp_path, 5))
    assert list_checkpoints(tmp_path) == [5]
    assert_is_step(newest_good(tmp_path), 5)
    save_steps(tmp_path, 6)
    assert list_checkpoints(tmp_path) == [5, 6]
    assert_is_step(read_checkpoint(tmp_path / step_name(5)), 5)


def test_a_writer_killed_after_the_second_rename_leaves_the_new_one(tmp_path: Path) -> None:
    save_steps(tmp_path, 5)
    os.replace(tmp_path / step_name(5), aside_path(tmp_path, 5))
    os.truncate(aside_path(tmp_path, 5) / "model.safetensors", 1)  # half removed
    other = tmp_path / "other"
    os.replace(save_checkpoint(other, 5, parts_of(5), {"step": 5}), tmp_path / step_name(5))
    assert_is_step(newest_good(tmp_path), 5)
    save_steps(tmp_path, 6)
    assert not aside_path(tmp_path, 5).exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_refusal_at_any_fsync_leaves_the_old_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: int
) -> None:
    """The disk fails at the n-th fsync of a save that replaces step 5: step 5 is whole, old or new."""
    save_steps(tmp_path, 4, 5)
    write_pointer(tmp_path, "latest", 5)
    real, count = os.fsync, 0

    def failing(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    line = error_of(
        lambda: save_checkpoint(tmp_path, 5, {"model": {"x": torch.ones(3)}}, {"step": 5, "new": 1})
    )
    assert (line is not None) == (count >= call)
    assert line is None or "earlier checkpoints are untouched" in line
    assert line is None or number != errno.ENOSPC or "no space left" in line
    monkeypatch.undo()
    assert not list(tmp_path.glob(".tmp-*"))
    good = newest_good(tmp_path)
    assert good is not None
    assert good.progress in ({"step": 5}, {"step": 5, "new": 1})
    assert_is_step(read_checkpoint(checkpoint_path(tmp_path, 4)), 4)


def test_an_interrupt_while_saving_removes_the_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, 4)

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_steps(tmp_path, 5)
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000000004"]


def test_pointers_come_back_and_a_wrong_one_is_none(tmp_path: Path) -> None:
    assert read_pointer(tmp_path, "best") is None
    write_pointer(tmp_path, "best", 10)
    write_pointer(tmp_path, "latest", 1_234_567_890)
    assert read_pointer(tmp_path, "best") == 10
    assert read_pointer(tmp_path, "latest") == 1_234_567_890
    assert (tmp_path / "best").read_text() == "step-000000010\n"
    for content in (b"the one of Tuesday", b"", b"\xff\x00" * 9, b"step-000000010\n" * 1000):
        (tmp_path / "best").write_bytes(content)
        assert read_pointer(tmp_path, "best") is None
    (tmp_path / "best").unlink()
    (tmp_path / "best").mkdir()
    assert read_pointer(tmp_path, "best") is None


def test_the_best_checkpoint_is_what_the_newest_says_whatever_the_pointer_says(tmp_path: Path) -> None:
    for step, best in ((4, None), (8, 4), (12, 4)):
        save_checkpoint(tmp_path, step, {"model": {}}, {"step": step, "best": {"step": best}})
    write_pointer(tmp_path, "best", 12)
    assert locate_checkpoint(tmp_path, "best").name == "step-000000004"
    (tmp_path / "step-000000012" / "progress.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"step-000000012.progress\.json is damaged"):
        locate_checkpoint(tmp_path, "best")
    save_checkpoint(tmp_path, 12, {"model": {}}, {"step": 12})
    assert locate_checkpoint(tmp_path, "best").name == "step-000000012"


def test_a_checkpoint_that_is_half_removed_gives_way_to_the_whole_one_aside(tmp_path: Path) -> None:
    """Where folders cannot be renamed, one that is replaced stands aside as a copy before it is removed in place."""
    save_steps(tmp_path, 5)
    shutil.copytree(tmp_path / step_name(5), aside_path(tmp_path, 5))
    (tmp_path / step_name(5) / "model.safetensors").unlink()
    clean(tmp_path)
    assert_is_step(newest_good(tmp_path), 5)
    assert not aside_path(tmp_path, 5).exists()
