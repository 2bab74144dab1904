"""Every command with places that cannot be used: one line, the documented exit code, nothing half-made or lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from small_texts import small_text
from wyrmling import load_config
from wyrmling import train as run_training
from wyrmling.__main__ import main
from wyrmling.checkpoint import list_checkpoints

unix = pytest.mark.skipif(os.name == "nt", reason="links, pipes and devices of Unix")
SETTINGS = (
    "dataset.type=local_text",
    "dataset.split=ratio",
    "training.block_size=16",
    "training.batch_size=2",
    "training.max_iters=4",
    "training.checkpoint_interval_iters=2",
    "training.validation_batches=1",
    "optimizer.lr_schedule.warmup_steps=1",
    "generation.max_tokens=2",
    "runtime.dtype=float32",
    "runtime.threads=1",
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a run `a`, which nothing here changes."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "text.txt").write_text(small_text(), encoding="utf-8")
    run_training(load_config("tiny", settings(folder, f"run_layout.base_dir={folder}", "run_layout.name=a")))
    (folder / "bundle.toml").write_text(
        f'name = "b"\nconfig = "tiny"\nset = {list(settings(folder))!r}\n[[stages]]\nname = "one"\n',
        encoding="utf-8",
    )
    return folder


def settings(shared: Path, *more: str) -> tuple[str, ...]:
    return (*SETTINGS, f"dataset.path={shared / 'text.txt'}", f"dataset.cache_dir={shared / 'cache'}", *more)


def training(shared: Path, *more: str) -> list[str]:
    return ["train", "tiny", *(word for pair in settings(shared, *more) for word in ("--set", pair))]


Words = Callable[[Path, str], list[str]]

WRITTEN: dict[str, Words] = {
    "train in a root": lambda shared, place: training(shared, f"run_layout.base_dir={place}"),
    "train by a name": lambda shared, place: training(
        shared, f"run_layout.base_dir={place}", "run_layout.name=x", "run_layout.category=c"
    ),
    "train with a cache": lambda shared, place: training(shared, f"dataset.cache_dir={place}"),
    "train with a learned vocabulary": lambda shared, place: training(
        shared, f"dataset.cache_dir={place}", "dataset.tokenizer={type='bpe', vocab_size=260}"
    ),
    "bundle": lambda shared, place: [
        "bundle",
        str(shared / "bundle.toml"),
        "--set",
        f"run_layout.base_dir={place}",
    ],
    "report": lambda shared, place: ["report", str(shared / "a"), "--output", f"{place}/page.html"],
    "config docs": lambda _, place: ["config", "docs", "--output", f"{place}/page.md"],
    "runs": lambda _, place: ["runs", "--root", place],
}
"""Commands that need a folder."""

READ: dict[str, Words] = {
    "a configuration": lambda _, place: ["config", "show", place],
    "a bundle": lambda _, place: ["bundle", place],
    "a run to resume": lambda _, place: ["train", "--resume", place],
    "a run to fork": lambda _, place: ["train", "--fork", place],
    "weights to begin with": lambda shared, place: training(
        shared, "training.launch_mode=init_from_checkpoint", f"training.init_checkpoint_path={place}"
    ),
    "a text": lambda shared, place: training(shared, f"dataset.path={place}"),
    "a run to evaluate": lambda _, place: ["evaluate", place],
    "a text to evaluate": lambda shared, place: ["evaluate", str(shared / "a"), "--text", place],
    "a run that writes": lambda _, place: ["generate", place],
    "a prompt": lambda shared, place: ["generate", str(shared / "a"), "--prompt-file", place],
    "a conversation": lambda shared, place: ["generate", str(shared / "a"), "--state-in", place],
    "a run to report": lambda _, place: ["report", place],
    "published weights": lambda _, place: ["import-bdh", place],
}
"""Commands that need something which is there."""


def bad_place(kind: str, folder: Path) -> Path:
    """A place of this kind, where neither a folder nor a file can be made or read."""
    place = folder / "place"
    match kind:
        case "a file":
            place.write_text("precious")
        case "below a file":
            place.write_text("precious")
            place = place / "inner"
        case "a dangling link":
            place.symlink_to(folder / "not" / "mounted")
        case "a link to itself":
            place.symlink_to(place)
        case "a pipe":
            os.mkfifo(place)
        case "a long name":
            place = folder / ("n" * 300)
        case "below a device":
            place = Path("/dev/null/inner")
    return place


def told_once(code: int, error: str) -> None:
    """A refusal: one line, which is neither a traceback nor a defect."""
    assert code in (2, 4), error
    assert [line for line in error.splitlines() if line.startswith("error: ")] == error.splitlines()[-1:]
    assert "Traceback" not in error
    assert "defect" not in error


KINDS = (
    "a file",
    "below a file",
    "a dangling link",
    "a link to itself",
    "a pipe",
    "a long name",
    "below a device",
)


@unix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", WRITTEN)
def test_a_place_that_is_no_folder_is_refused_with_4(
    command: str, kind: str, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = bad_place(kind, tmp_path)
    code = main(WRITTEN[command](shared, str(place)))
    told_once(code, capsys.readouterr().err)
    assert code == 4
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name not in ("runs", "cache")) == [
        entry for entry in ["place"] if kind not in ("a long name", "below a device")
    ]
    assert kind not in ("a file", "below a file") or (tmp_path / "place").read_text() == "precious"


@unix
@pytest.mark.parametrize("kind", ["below a file", "a link to itself", "a pipe", "a long name"])
@pytest.mark.parametrize("command", READ)
def test_what_is_not_there_is_refused(
    command: str, kind: str, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = bad_place(kind, tmp_path)
    told_once(main(READ[command](shared, str(place))), capsys.readouterr().err)


@unix
@pytest.mark.parametrize("place", ["~nobody-has-this-name/x", os.fsdecode(b"no-utf8-\xff")])
@pytest.mark.parametrize("command", READ)
def test_names_that_mean_nothing_are_refused(
    command: str, place: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told_once(main(READ[command](shared, place)), capsys.readouterr().err)


@unix
@pytest.mark.parametrize("form", ["page.md", "conversation"])
@pytest.mark.parametrize("kind", ["a folder", "a link to itself", "a pipe", "a device that is full"])
def test_an_output_that_is_no_file_is_refused_or_written_never_replaced(
    form: str, kind: str, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path("/dev/full") if "full" in kind else bad_place(kind, tmp_path)
    if kind == "a folder":
        place.mkdir()
    before = place.lstat()
    if form == "page.md":
        code = main(["config", "docs", "--output", str(place)])
    else:
        code = main(["generate", str(shared / "a"), "--seed", "1", "--state-out", str(place)])
    assert code == 4
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: cannot write {place}: ")
    assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)


@unix
def test_a_link_keeps_leading_to_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("old")
    (tmp_path / "link").symlink_to("page.md")
    assert main(["config", "docs", "--output", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert len((tmp_path / "page.md").read_text(encoding="utf-8")) > 1000
    assert main(["config", "docs", "--output", "/dev/null"]) == 0
    assert not Path("/dev/null").is_file()


REFUSING = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EXDEV, errno.ENOENT)


@pytest.mark.parametrize("number", REFUSING)
@pytest.mark.parametrize("function", ["replace", "fsync", "mkdir"])
def test_whatever_the_system_refuses_while_a_run_goes_on_is_told_once(
    function: str,
    number: int,
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the second step on: the system's functions, each with each reason. What was saved before stays."""
    real, root = getattr(os, function), tmp_path / "runs"

    def refuse(*arguments: object, **more: object) -> object:
        named = [str(argument) for argument in arguments if isinstance(argument, str | Path)]
        if list_checkpoints(root / "x" / "checkpoint") and (not named or named[0].startswith(str(root))):
            raise OSError(number, os.strerror(number), *named[:1])
        return real(*arguments, **more)

    monkeypatch.setattr(os, function, refuse)
    code = main(
        training(shared, f"run_layout.base_dir={root}", "run_layout.name=x", "training.checkpoint_keep=9")
    )
    monkeypatch.undo()
    assert code == 4
    told_once(code, capsys.readouterr().err.splitlines()[-1])
    assert main(["evaluate", str(root / "x")]) == 0
