"""Every file of a run, a checkpoint, a bundle and a conversation is replaced by something else, for every command.

Whatever stands there, a command does what it did before, or says in one line what is wrong (exit code 2, or 4 for a
place that cannot be used). It never ends as a defect, never waits, and never does something else in silence.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from small_texts import small_text
from wyrmling import Callback
from wyrmling.__main__ import main
from wyrmling.checkpoint import locate_checkpoint
from wyrmling.config import load_bundle, with_overrides
from wyrmling.files import read_record, sealed
from wyrmling.runs import RunDirectory
from wyrmling.training.bundles import run_bundle
from wyrmling.watch.events import StepReport

SMALL = [
    "dataset.type=local_text",
    "dataset.path=text.txt",
    "dataset.split=ratio",
    "model.n_embd=16",
    "model.n_head=2",
    "model.latent_total=64",
    "training.block_size=16",
    "training.batch_size=2",
    "training.checkpoint_interval_iters=4",
    "training.checkpoint_keep=2",
    "training.validation_interval_iters=4",
    "training.validation_batches=1",
    "training.log_frequency=2",
    "generation.max_tokens=4",
    'generation.prompt="to be"',
    "runtime.dtype=float32",
    "runtime.threads=1",
    "runtime.compile=off",
    "optimizer.lr_schedule=none",  # so that going on from an earlier checkpoint comes to the same weights
]
LIVELY = [
    "run_layout.name=a",
    "training.tbptt_chunk_size=8",
    "training.tbptt_persist_across_steps=true",
    "training.continual_backprop.enabled=true",
    "training.continual_backprop.maturity_steps=1",
    "training.continual_backprop.sample_interval_steps=1",
    "training.continual_backprop.replace_interval_steps=2",
    "training.continual_backprop.replacement_rate=0.05",
]
BUNDLE = """name = "b"
config = "tiny"
set = {settings}
[[stages]]
name = "one"
[[stages]]
name = "two"
init_from = "one"
set = ["training.max_iters=8"]
"""
PATIENCE = 60  # seconds that a command may take before it is said to wait


def sets(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


FROM_A = ["training.launch_mode=init_from_checkpoint", 'training.init_checkpoint_path="runs/a"']
GREEDY = ("--temperature", "0", "--seed", "1")
COMMANDS: dict[str, list[str]] = {
    "resume": ["train", "--resume", "a", *sets("training.max_iters=16")],
    "evaluate": ["evaluate", "a"],
    "evaluate best": ["evaluate", "a", "--checkpoint", "best"],
    "generate": ["generate", "a", *GREEDY],
    "talk": ["generate", "a", *GREEDY, "--state-in", "talk", "--prompt", " or"],
    "warm start": ["train", "tiny", *sets(*SMALL, *FROM_A, "training.max_iters=4", "run_layout.name=w")],
    "fork": ["train", "--fork", "a", *sets("run_layout.name=f", "training.max_iters=14")],
    "latest": ["evaluate"],
    "runs": ["runs", "--json"],
    "report": ["report", "a"],
    "bundle": ["bundle", "b.toml"],
}
MADE = {"resume": "a", "warm start": "w", "fork": "f", "bundle": "bundles/b/stages/two/b-two"}
"""The runs that commands leave."""


class Stop(Callback):
    def on_step(self, report: StepReport) -> None:
        if report.step == 6:
            report.control.stop("the test asked for it")


@dataclass
class Result:
    """What a command came to: its exit code, what it wrote, and what that amounts to."""

    code: int
    output: str
    errors: str
    value: Any = None


@contextlib.contextmanager
def within(place: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WYRMLING_RUN_ROOT", "runs")
        patch.setenv("WYRMLING_CACHE_DIR", "cache")
        patch.chdir(place)
        yield


def run(place: Path, arguments: list[str]) -> Result:
    """The command in `place`, in this process; ended by an alarm where it waits for what never comes."""

    def give_up(number: int, frame: Any) -> None:
        raise TimeoutError(f"wyrmling {' '.join(arguments)} waits")

    output, errors = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        if hasattr(signal, "SIGALRM"):
            stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, give_up))
            stack.callback(signal.alarm, 0)
            signal.alarm(PATIENCE)
        stack.enter_context(within(place))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(errors))
        code = main(arguments)
    return Result(code, output.getvalue(), errors.getvalue())


def result(place: Path, command: str) -> Result:
    """A command of `COMMANDS` with what has to be the same whenever it succeeds: weights, figures, texts."""
    found = run(place, COMMANDS[command])
    if found.code:
        return found
    if command in MADE:
        newest = locate_checkpoint(place / "runs" / MADE[command])
        found.value = {file.name: file.read_bytes() for file in newest.glob("*.safetensors")}
        found.value["step"] = newest.name
    elif command == "report":
        page = (place / "runs/a/report.html").read_text(encoding="utf-8")
        found.value = page
    elif command == "runs":
        found.value = {entry.pop("name"): {**entry, "latest": None} for entry in json.loads(found.output)}
    else:
        found.value = found.output
    return found


@dataclass
class Base:
    """A folder with undamaged runs, an older copy, one with other runs of the same names, and what is expected."""

    now: Path
    older: Path
    other: Path
    expected: dict[str, Result] = field(default_factory=dict)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    root = tmp_path_factory.mktemp("damage")
    base = Base(root / "now", root / "older", root / "other")
    for place, seed in ((base.now, 3), (base.other, 4)):
        place.mkdir()
        (place / "text.txt").write_text(small_text(), encoding="utf-8", newline="")
        settings = [*SMALL, "training.max_iters=4", f"training.seed={seed}"]
        (place / "b.toml").write_text(BUNDLE.format(settings=json.dumps(settings)))
        mine = sets(*SMALL, *LIVELY, "training.max_iters=8", f"training.seed={seed}")
        assert run(place, ["train", "tiny", *mine]).code == 0
        assert run(place, ["bundle", "b.toml", "--stop-after", "one"]).code == 0
        if place == base.now:
            assert run(place, ["generate", "a", *GREEDY, "--state-out", "talk"]).code == 0
            shutil.copytree(base.now, base.older)
        assert run(place, ["train", "--resume", "a", *sets("training.max_iters=12")]).code == 0
        with within(place):
            assert run_bundle(load_bundle("b.toml"), callbacks=[Stop()]).exit_code == 0
        assert run(place, ["generate", "a", *GREEDY, "--state-out", "talk"]).code == 0
    return base


def nested(path: Path) -> bytes:
    return b'{"a": ' * 100_000 + b"1" + b"}" * 100_000


def torn(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: len(content) // 2]


DAMAGES: dict[str, Callable[[Path], bytes]] = {
    "empty": lambda path: b"",
    "{}": lambda path: b"{}",
    "[]": lambda path: b"[]",
    "null": lambda path: b"null",
    "text": lambda path: b'"step-000000012"\n',
    "random bytes": lambda path: random.Random(1).randbytes(max(path.stat().st_size, 100)),
    "zeros": lambda path: bytes(path.stat().st_size),
    "deep nesting": nested,
    "torn": torn,
}
PLACES = ("missing", "folder", "pipe", "older", "other")


def damaged(base: Base, place: Path, file: str, damage: str) -> bool:
    """A copy of the undamaged folder with one file replaced; False where there is nothing to replace it by."""
    shutil.copytree(base.now, place)
    path = place / file
    if damage in DAMAGES:
        path.write_bytes(DAMAGES[damage](path))
        return True
    if damage in ("older", "other"):
        whence = (base.older if damage == "older" else base.other) / file
        if damage == "older" and not whence.exists():
            whence = base.older / file.replace("step-000000012", "step-000000008")
        if not whence.exists() or whence.read_bytes() == path.read_bytes():
            return False
        shutil.copy(whence, path)
        return True
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "pipe":
        if not hasattr(os, "mkfifo"):
            return False
        os.mkfifo(path)
    return True


def told(found: Result, command: str) -> bool:
    """Whether a command that did something else has said so."""
    if command == "warm start":  # it began with the weights of an earlier checkpoint
        return "is passed over" in found.errors
    if command in ("runs", "report"):
        return any(text in str(found.value) for text in ("unreadable: ", "its events end before"))
    return False


def unknowable(file: str, damage: str, command: str) -> bool:
    """Whether what stands there now is as good as what stood there, or its absence says nothing."""
    name = file.rpartition("/")[2]
    if file == "runs/latest":  # that run was the latest once
        return damage in ("older", "other")
    if command == "report" and name in ("config.json", "training_config.json"):
        return damage in ("missing", "older", "other")
    return command in ("runs", "report") and name == "events.jsonl" and damage == "other"


def whole(base: Base, place: Path, command: str) -> Any:
    """What a command comes to where nothing is damaged."""
    if command not in base.expected:
        shutil.copytree(base.now, place)
        base.expected[command] = result(place, command)
        shutil.rmtree(place)
        assert base.expected[command].code == 0, base.expected[command].errors
    return base.expected[command].value


def wrong(base: Base, place: Path, file: str, damage: str, command: str) -> str | None:
    """What is wrong with what a command does of a damaged file; None: nothing."""
    expected = whole(base, place.with_name("whole"), command)
    try:
        if unknowable(file, damage, command) or not damaged(base, place, file, damage):
            return None
        found = result(place, command)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    lines = found.errors.strip().splitlines() or [""]
    if found.code in (2, 4):
        return None if lines[-1].startswith("error: ") and len(lines[-1]) < 1500 else f"says {lines[-1]}"
    if found.code:
        return f"exit code {found.code}: {' | '.join(lines[-3:])}"
    if found.value == expected or told(found, command):
        return None
    return f"another result in silence: {lines[-3:]}"


LOADS = ("resume", "evaluate", "evaluate best", "warm start", "fork")
READERS: dict[str, tuple[str, ...]] = {
    "cache/tokens/*.tokens": ("resume", "evaluate"),
    "runs/latest": ("latest", "runs", "resume", "fork"),
    "runs/a/config.json": (*LOADS, "generate", "runs", "report"),
    "runs/a/training_config.json": (*LOADS, "generate", "runs", "report"),
    "runs/a/tokenizer.json": (*LOADS, "generate", "runs", "report"),
    "runs/a/events.jsonl": ("resume", "fork", "evaluate", "runs", "report"),
    "runs/a/checkpoint/latest": ("resume", "evaluate", "fork"),
    "runs/a/checkpoint/best": ("resume", "evaluate best", "fork"),
    "runs/a/checkpoint/step-000000012/*": LOADS,
    "runs/a/checkpoint/step-000000008/*": ("resume", "evaluate best"),
    "runs/bundles/b/bundle_state.json": ("bundle",),
    "runs/bundles/b/stages/*/latest": ("bundle", "latest"),
    "runs/bundles/b/stages/*/*/*.json*": ("bundle",),
    "runs/bundles/b/stages/*/*/checkpoint/*": ("bundle",),
    "runs/bundles/b/stages/*/*/checkpoint/*/*": ("bundle",),
    "talk": ("talk",),
}
"""Files by pattern, and the commands that read them."""
SOME = {
    "runs/a/config.json": [("{}", "resume"), ("[]", "evaluate"), ("older", "resume"), ("pipe", "report")],
    "runs/a/training_config.json": [("{}", "evaluate"), ("null", "resume"), ("deep nesting", "fork")],
    "runs/a/tokenizer.json": [("other", "evaluate"), ("random bytes", "generate"), ("folder", "resume")],
    "runs/a/events.jsonl": [
        ("torn", "runs"),
        ("older", "report"),
        ("random bytes", "resume"),
        ("pipe", "resume"),
    ],
    "runs/a/checkpoint/latest": [("folder", "resume"), ("pipe", "resume")],
    "runs/a/checkpoint/best": [("random bytes", "resume"), ("older", "evaluate best")],
    "runs/a/checkpoint/step-000000012/manifest.json": [
        ("older", "resume"),
        ("torn", "evaluate"),
        ("pipe", "fork"),
    ],
    "runs/a/checkpoint/step-000000012/progress.json": [("older", "resume"), ("folder", "evaluate best")],
    "runs/a/checkpoint/step-000000012/optimizer.safetensors": [("zeros", "resume"), ("older", "fork")],
    "runs/a/checkpoint/step-000000012/model.safetensors": [("other", "evaluate"), ("missing", "warm start")],
    "runs/a/checkpoint/step-000000012/streams-0.safetensors": [("older", "resume")],
    "runs/bundles/b/bundle_state.json": [("[]", "bundle"), ("missing", "bundle"), ("pipe", "bundle")],
    "runs/bundles/b/stages/one/b-one/training_config.json": [("deep nesting", "bundle")],
    "runs/bundles/b/stages/two/b-two/training_config.json": [("null", "bundle"), ("other", "bundle")],
    "runs/latest": [("random bytes", "latest"), ("pipe", "fork")],
    "talk": [("zeros", "talk"), ("other", "talk"), ("{}", "talk")],
}
"""Of all files, kinds of damage and commands, those that are tried every time: file -> (damage, command)."""


@pytest.mark.parametrize("file", SOME)
def test_a_damaged_file_is_told_or_changes_nothing(base: Base, tmp_path: Path, file: str) -> None:
    for damage, command in SOME[file]:
        assert wrong(base, tmp_path / "place", file, damage, command) is None, (damage, command)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("pattern", READERS)
def test_every_file_damaged_in_every_way_for_every_command(base: Base, tmp_path: Path, pattern: str) -> None:
    files = [path.relative_to(base.now).as_posix() for path in base.now.glob(pattern) if path.is_file()]
    assert files
    found = {
        (file, damage, command): fault
        for file in sorted(files)
        for damage in (*DAMAGES, *PLACES)
        for command in READERS[pattern]
        if (fault := wrong(base, tmp_path / "place", file, damage, command)) is not None
    }
    assert not found


EDITS: list[tuple[str, Any]] = [
    ("model.n_layer", 5),
    ("model.dropout", 0.5),
    ("optimizer.learning_rate", 0.5),
    ("training.seed", 7),
    ("training.batch_size", 4),
    ("training.max_iters", 99),
    ("generation.prompt", "not"),
    ("runtime.dtype", "float64"),
    ("dataset.split", "lines"),
]


@pytest.mark.parametrize("command", ["evaluate", "resume"])
@pytest.mark.parametrize("edit", EDITS, ids=[key for key, _ in EDITS])
def test_a_configuration_that_was_edited_is_refused_with_the_key(
    base: Base, tmp_path: Path, edit: tuple[str, Any], command: str
) -> None:
    place, (key, value) = tmp_path / "place", edit
    shutil.copytree(base.now, place)
    path = place / "runs/a/training_config.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    table, _, name = key.partition(".")
    record[table][name] = value
    path.write_text(json.dumps(record), encoding="utf-8")
    found = run(place, COMMANDS[command])
    assert found.code == 2
    assert "training_config.json" in found.errors
    assert f"{key}: " in found.errors
    assert len(found.errors.splitlines()) == 1


@pytest.mark.parametrize("key", ["model.n_layer", "optimizer.learning_rate", "training.seed"])
def test_a_configuration_of_another_run_is_refused_although_it_is_whole(
    base: Base, tmp_path: Path, key: str
) -> None:
    """As the file of a run of an earlier version, which has no hash of its content; and the other way round."""
    place = tmp_path / "place"
    shutil.copytree(base.now, place)
    path = place / "runs/a/training_config.json"
    record = read_record(path)
    table, _, name = key.partition(".")
    record[table][name] = record[table][name] * 2
    path.write_text(json.dumps(record), encoding="utf-8")
    for command in ("evaluate", "resume", "warm start", "fork"):
        found = run(place, COMMANDS[command])
        assert found.code == 2
        assert f"is not the configuration of step-000000012: {key}: " in found.errors
    if key == "training.seed":
        shutil.rmtree(place)
        shutil.copytree(base.now, place)
        newest = "runs/a/checkpoint/step-000000012"
        shutil.rmtree(place / newest)
        shutil.copytree(base.other / newest, place / newest)
        for command in ("evaluate", "resume"):
            assert "training.seed: 4 -> 3" in run(place, COMMANDS[command]).errors


def test_what_the_program_changes_itself_is_no_edit(base: Base, tmp_path: Path) -> None:
    """A longer run, killed before its next checkpoint; a checkpoint saved before that; a moved run; one more time."""
    place = tmp_path / "place"
    shutil.copytree(base.now, place)
    folder = RunDirectory(place / "runs/a", "a")
    longer = with_overrides(folder.training_config(), ["training.max_iters=16", "training.log_frequency=1"])
    folder.write_training_config(longer)
    assert run(place, COMMANDS["evaluate"]).code == 0
    shutil.move(place / "runs/a", place / "runs/moved")
    assert run(place, ["train", "--resume", "moved"]).code == 0
    shutil.move(place / "runs/moved", place / "runs/a")
    assert run(place, ["evaluate", "a", "--checkpoint", "12"]).code == 0
    assert result(place, "resume").value == {
        **whole(base, tmp_path / "whole", "resume"),
        "step": "step-000000016",
    }


def test_a_run_of_an_earlier_version_loads_as_it_did(base: Base, tmp_path: Path) -> None:
    """Without hashes in its records, and with manifests that say nothing of the run."""
    place = tmp_path / "place"
    shutil.copytree(base.now, place)
    for path in [place / "runs/a/config.json", place / "runs/a/training_config.json"]:
        path.write_text(json.dumps(read_record(path)), encoding="utf-8")
    for path in (place / "runs/a/checkpoint").glob("*/manifest.json"):
        record = read_record(path)
        del record["run"]
        path.write_text(json.dumps(sealed(record)), encoding="utf-8")
    for command in ("evaluate", "resume"):
        assert result(place, command).value == whole(base, tmp_path / "whole", command)


def test_a_warm_start_without_its_first_checkpoint_does_not_begin_with_new_weights(
    base: Base, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    shutil.copytree(base.now, place)
    assert run(place, COMMANDS["warm start"]).code == 0
    shutil.rmtree(place / "runs/w/checkpoint")
    found = run(place, ["train", "--resume", "w", *sets("training.max_iters=8")])
    assert found.code == 2
    assert "no checkpoint is left" in found.errors
