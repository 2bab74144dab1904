"""Mistakes and accidents that people report of programs that train language models, met through the real commands.

Every refusal is an exit code that is not 0 and one line, and leaves nothing half-made behind; everything else must
give the right result. The commands run in this process (`wyrmling.__main__.main`, the entry of the command), except
where the environment of a process is the matter.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from wyrmling.__main__ import main
from wyrmling.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    locate_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from wyrmling.checkpoint.manifest import FileRecord, read_manifest
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model
from wyrmling.watch.jsonl import read_events

BLOCK = 16
TINY = (
    "dataset.type=local_text",
    "dataset.split=ratio",
    f"training.block_size={BLOCK}",
    "training.batch_size=2",
    "training.max_iters=2",
    "training.checkpoint_interval_iters=1",
    "training.log_frequency=1",
    "training.validation_batches=2",
    "optimizer.lr_schedule.warmup_steps=1",
    "generation.prompt=''",
    "generation.max_tokens=4",
    "generation.seed=1",
    "runtime.device=cpu",
    "runtime.dtype=float32",
    "runtime.threads=1",
)
WORDS = ("to", "be", "or", "not", "that", "is", "the", "question", "nobler", "mind", "slings", "arrows")
CHARACTERS = ("dataset.tokenizer.type=char", "dataset.tokenizer.include_unknown=false")
NO_VALIDATION = "dataset.train_split_ratio=1.0"


def small_text(lines: int = 400, seed: int = 0) -> str:
    """Lines of a few words, the same on every machine."""
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) + "\n" for _ in range(lines))


def options(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@dataclass
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str

    def done(self) -> Said:
        assert self.code == 0, self.err
        return self

    def refused(self, *parts: str, code: int = 2, lines: int = 1) -> str:
        """The one line of the refusal, which holds all of `parts`; it stands last of `lines`, and nothing is on
        standard output."""
        assert (self.code, self.out) == (code, ""), self.err
        assert "Traceback" not in self.err
        said = self.err.splitlines()
        assert len(said) == lines or lines == 0, self.err
        assert said[-1].startswith("error: ")
        assert [line for line in said if line.startswith("error:")] == said[-1:]
        for part in parts:
            assert part in said[-1], f"{part!r} is not in {said[-1]!r}"
        return said[-1]


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command with these words."""

    def run(*words: str | Path) -> Said:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run


@pytest.fixture
def train(command: Command) -> Command:
    """Train a tiny model with these `--set` texts on top."""
    return lambda *pairs: command("train", "tiny", *options(*TINY, *pairs))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs that several tests look at; none of them changes anything in it."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "text.txt").write_text(small_text(), encoding="utf-8", newline="")
    (folder / "abc.txt").write_text("abc" * 200, encoding="utf-8")
    shared = (f"run_layout.base_dir={folder / 'runs'}", f"dataset.cache_dir={folder / 'cache'}")
    settings = {
        "dragon": [
            "training.max_iters=6",
            "training.checkpoint_interval_iters=2",
            "training.checkpoint_keep=9",
        ],
        "exact": ["runtime.dtype=float64", "model.dropout=0.5"],
        "letters": [f"dataset.path={folder / 'abc.txt'}", *CHARACTERS],
    }
    constant = "optimizer.lr_schedule.type=constant"
    for name, own in settings.items():
        text = f"dataset.path={folder / 'text.txt'}"
        words = options(*TINY, *shared, text, constant, f"run_layout.name={name}", *own)
        assert main(["train", "tiny", *words]) == 0
    return folder / "runs"


@pytest.fixture
def own(place: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a shared run that may be damaged."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(place / name, tmp_path / "runs" / name))

    return copy


def write(path: Path, content: str | bytes) -> str:
    """Write a file; its path as a `--set` value."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return f'dataset.path="{path.as_posix()}"'


def latest(folder: Path) -> Path:
    """The run made last."""
    return folder / "runs" / (folder / "runs" / "latest").read_text().strip()


def weights(run: Path, step: int) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in checkpoint_path(run / "checkpoint", step).glob("*.safetensors")
    }


def progress(run: Path) -> dict[str, Any]:
    steps = list_checkpoints(run / "checkpoint")
    return json.loads((checkpoint_path(run / "checkpoint", steps[-1]) / "progress.json").read_text())


def nothing_made(folder: Path) -> bool:
    return not (folder / "runs").exists()


# Text


@pytest.mark.parametrize(
    ("text", "ratio", "split", "found"),
    [("hello", 1.0, "train", 5), ("x" * BLOCK, 1.0, "train", BLOCK), ("x" * 100, 0.9, "validation", 10)],
)
@pytest.mark.parametrize("order", ["random", "epochs"])
def test_a_text_shorter_than_a_block_is_refused_before_anything_is_made(
    train: Command, tmp_path: Path, text: str, ratio: float, split: str, found: int, order: str
) -> None:
    path = write(tmp_path / "short.txt", text)
    said = train(path, f"dataset.train_split_ratio={ratio}", f"training.order={order}")
    said.refused("short.txt", f"the {split} split has {found} tokens", f"at least {BLOCK + 1}")
    assert nothing_made(tmp_path)


@pytest.mark.parametrize("tokens", [BLOCK + 1, BLOCK + 2])
@pytest.mark.parametrize("order", ["random", "epochs"])
def test_one_block_and_its_target_are_trained_on(
    train: Command, tmp_path: Path, tokens: int, order: str
) -> None:
    path = write(tmp_path / "short.txt", "x" * tokens)
    train(path, NO_VALIDATION, f"training.order={order}").done()
    assert progress(latest(tmp_path))["step"] == 2
    assert progress(latest(tmp_path))["tokens_seen"] > 0


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_an_empty_file_is_refused_and_leaves_no_run_and_no_tokens(
    train: Command, tmp_path: Path, tokenizer: str
) -> None:
    path = write(tmp_path / "empty.txt", "")
    train(path, f"dataset.tokenizer.type={tokenizer}").refused("empty.txt", "empty")
    records = write(tmp_path / "empty.jsonl", '{"text": ""}\n' * 5)
    train("dataset.type=jsonl", records, f"dataset.tokenizer.type={tokenizer}").refused("empty.jsonl")
    assert nothing_made(tmp_path)
    assert not list((tmp_path / "cache").rglob("*.tokens"))


def test_empty_documents_among_good_ones_are_skipped_and_counted_in_one_line(
    train: Command, tmp_path: Path
) -> None:
    lines = write(tmp_path / "lines.txt", "".join("\n" if n == 50 else f"line {n}\n" for n in range(101)))
    said = train(lines, "dataset.documents=line").done()
    assert [line for line in said.err.splitlines() if "empty document" in line] == [
        "text: 1 empty document skipped"
    ]


@pytest.mark.parametrize("content", [b"\0" * 60, b"\n" * 60])
def test_a_file_of_only_nul_or_only_newlines_is_trained_on(
    train: Command, tmp_path: Path, content: bytes
) -> None:
    """Legal bytes, all equal: finite losses."""
    train(write(tmp_path / "odd.txt", content), NO_VALIDATION).done()
    assert math.isfinite(progress(latest(tmp_path))["loss"])


def test_a_character_outside_the_vocabulary_is_named_with_its_place(
    command: Command, train: Command, place: Path, tmp_path: Path
) -> None:
    """In a prompt, in a text to evaluate, and at the start of a run where only the validation part has it."""
    run = place / "letters"
    command("generate", run, "--prompt", "abd").refused(
        "the prompt", "'d' (U+0064) at byte offset 2", lines=2
    )
    write(tmp_path / "other.txt", "abcabdabc")
    command("evaluate", run, "--text", tmp_path / "other.txt").refused(
        "other.txt", "'d' (U+0064) at byte offset 5"
    )
    accent = write(tmp_path / "accent.txt", "abc" * 100 + "é" + "abc")
    train(accent, *CHARACTERS).refused("accent.txt", "'é' (U+00E9)", "300")
    assert nothing_made(tmp_path)


def test_an_unknown_character_can_be_read_as_unknown_and_this_is_said(
    command: Command, train: Command, tmp_path: Path
) -> None:
    train(write(tmp_path / "abc.txt", "abc" * 100), "dataset.tokenizer.type=char").done()
    said = command("generate", latest(tmp_path), "--prompt", "abd").done()
    assert "1 of 3 tokens are unknown to this run" in said.err


def test_line_ends_and_a_byte_order_mark_change_nothing_when_normalized(
    command: Command, train: Command, tmp_path: Path
) -> None:
    """LF, CR LF, and a mark with mixed ends: one vocabulary, one count of tokens, the same weights; and prompts are
    read alike."""
    lines = small_text(60).splitlines()
    texts = {
        "lf": "".join(f"{line}\n" for line in lines),
        "crlf": "".join(f"{line}\r\n" for line in lines),
        "mixed": "\ufeff" + "".join(line + ("\r\n" if n % 3 else "\n") for n, line in enumerate(lines)),
    }
    vocabulary = ("dataset.tokenizer.type=char", 'dataset.tokenizer.normalize=["newlines"]')
    found, written = set(), set()
    for name, text in texts.items():
        said = train(write(tmp_path / f"{name}.txt", text), *vocabulary, f"run_layout.name={name}").done()
        assert ("byte order mark" in said.err) == (name == "mixed")
        run = tmp_path / "runs" / name
        record = json.loads((run / "config.json").read_text())["data"]
        found.add((record["tokenizer_fingerprint"], record["train_tokens"], tuple(weights(run, 2).items())))
        (tmp_path / "prompt").write_bytes(b"to be\r\nor" if name == "lf" else b"to be\nor")
        written.add(
            command("generate", run, "--prompt-file", tmp_path / "prompt", "--output", "ids").done().out
        )
    assert len(found) == len(written) == 1


def test_line_ends_that_are_kept_are_said_and_come_back(
    command: Command, train: Command, place: Path, tmp_path: Path
) -> None:
    said = train(write(tmp_path / "crlf.txt", "to be\r\n" * 60)).done()
    assert "CR LF" in said.err
    for prompt in (
        "to be\r\nor",
        "to be\nor",
        "e\u0301 and \u00e9",
        "\u201cquoted\u201d",
        "👩\u200d💻\ufe0f",
    ):
        written = command("generate", place / "dragon", "--prompt", prompt, "--output", "json").done().out
        assert json.loads(written)["prompt"] == prompt
        assert json.loads(written)["prompt_ids"] == list(prompt.encode())


def test_composed_and_decomposed_accents_are_one_after_nfc(
    command: Command, train: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "accents.txt", "caf\u00e9 e\u0301t\u00e9\n" * 30)
    train(path, *CHARACTERS, 'dataset.tokenizer.normalize=["nfc"]').done()
    run = latest(tmp_path)
    texts = {
        command("generate", run, "--prompt", p, "--output", "ids").done().out for p in ("\u00e9", "e\u0301")
    }
    assert len(texts) == 1


@pytest.mark.skipif(os.name == "nt", reason="locales are chosen by other means on Windows")
def test_invalid_utf8_trains_to_the_same_weights_in_every_locale(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.txt", b"ok\xff\xfe\n\xc3(\nend\n" * 3)
    words = options(*TINY, path, NO_VALIDATION, "training.max_iters=1")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG"))}
    found = []
    for locale in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}):
        name = f"run_layout.name=locale-{len(found)}"
        done = subprocess.run(
            [sys.executable, "-m", "wyrmling", "train", "tiny", *words, "--set", name],
            env={**clean, **locale},
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        run = tmp_path / "runs" / f"locale-{len(found)}"
        found.append((weights(run, 1), json.loads((run / "config.json").read_text())["data"]))
    assert found[0] == found[1]
    assert found[0][1]["train_tokens"] == 36


def test_invalid_utf8_is_refused_with_its_offset_or_replaced_and_counted(
    train: Command, tmp_path: Path
) -> None:
    """Where tokens are characters. Nothing is ever dropped in silence."""
    path = write(tmp_path / "bad.txt", b"ok\xff\xfe\n\xc3(\nend\n" * 3)
    text = (path, NO_VALIDATION, "dataset.tokenizer.type=char")
    train(*text).refused("bad.txt", "byte offset 2")
    assert nothing_made(tmp_path)
    said = train(*text, "dataset.invalid_utf8=replace").done()
    assert "9 invalid byte sequences replaced" in said.err


@pytest.mark.parametrize("tokens", [BLOCK + 1, BLOCK + 2, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1])
def test_an_epoch_has_every_target_once(train: Command, tmp_path: Path, tokens: int) -> None:
    """The first token alone is never a target, and the last one is."""
    path = write(tmp_path / "text.txt", bytes(range(32, 32 + tokens)))
    train(path, NO_VALIDATION, "training.epochs=2").done()
    assert progress(latest(tmp_path))["tokens_seen"] == 2 * (tokens - 1)


# Configuration


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("[optimizer]\nlerning_rate = 0.1\n", (":2: ", "optimizer.lerning_rate", "optimizer.learning_rate")),
        ("[training]\nlearning_rate = 0.1\n", (":2: ", "training.learning_rate", "optimizer.learning_rate")),
        ("[training]\nbatch-size = 2\n", (":2: ", "training.batch-size", "training.batch_size")),
        ("[optim]\nlearning_rate = 0.1\n", (":1: ", "optim: unknown", "optimizer")),
        ("learning_rate = 0.1\n", (":1: ", "learning_rate: unknown", "optimizer.learning_rate")),
        ("[training]\nbatch_size = 2\nbatch_size = 4\n", (":3:15: ", "duplicate", "batch_size")),
        ("[training\nbatch_size = 2\n", (":1:10: ",)),
        ('{"training": {"batch_size": 2}}\n', (":1:1: ",)),
        ("training:\n  batch_size: 2\n", (":1:9: ",)),
        ("[training]\nbatch_size = 'two'\n", (":2: ", "training.batch_size", "whole number")),
    ],
)
def test_a_configuration_that_says_something_unknown_is_refused_with_its_line(
    command: Command, tmp_path: Path, content: str, parts: tuple[str, ...]
) -> None:
    (tmp_path / "my.toml").write_text(content, encoding="utf-8")
    command("train", tmp_path / "my.toml").refused(f"my.toml{parts[0]}", *parts)
    assert nothing_made(tmp_path)


@pytest.mark.parametrize("name", ["my.json", "my.yaml"])
def test_a_configuration_in_another_format_is_refused_naming_the_right_one(
    command: Command, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text('{"training": {"batch_size": 2}}')
    command("train", tmp_path / name).refused(name, "TOML")
    assert nothing_made(tmp_path)


def test_the_configuration_in_force_is_saved_whole_and_can_be_used_again(
    command: Command, place: Path, tmp_path: Path
) -> None:
    saved = json.loads((place / "dragon" / "training_config.json").read_text())
    assert (saved["training"]["max_iters"], saved["optimizer"]["beta2"]) == (6, 0.95)
    (tmp_path / "empty.toml").write_text("")
    shown = command("config", "show", tmp_path / "empty.toml").done().out
    assert "max_iters = 1000" in shown


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["optimizer.learning_rate", "1e-5"], ("optimizer.learning_rate",)),
        (["foobar=1"], ("foobar=1",)),
        (["--set", "optimizer.learning_rate"], ("optimizer.learning_rate", "key=value")),
        (["--set", "foobar=1"], ("foobar", "unknown")),
        (["--set", "training.batchsize=1"], ("training.batchsize", "training.batch_size")),
        (["--set", "training.batch_size=-1"], ("training.batch_size", "must be > 0", "-1")),
        (["--set", "training.batch_size=0"], ("training.batch_size", "must be > 0", "got 0")),
        (["--set", "training.batch_size=two"], ("training.batch_size", "whole number", "two")),
        (["--set", "training.batch_size="], ("training.batch_size", "value after = is missing")),
        (["--set", "training.block_size=16.5"], ("training.block_size", "whole number", "16.5")),
        (["--set", "model.dropout=1.5"], ("model.dropout", "1.5")),
        (["--set", "optimizer.learning_rate=nan"], ("optimizer.learning_rate", "nan")),
        (["--set", "training.checkpoint_keep=0"], ("training.checkpoint_keep", "0")),
        (["--set", "training.checkpoint_keep=-1"], ("training.checkpoint_keep", "-1")),
        (["--set", "parallel.world_size=2"], ("parallel.world_size", "2")),
        (["--set", "model.n_head=3"], ("model.n_head", "divisible")),
        (["--set", "generation.temperature=-1"], ("generation.temperature", "-1")),
        (
            ["--set", "training.tbptt_chunk_size=999"],
            ("training.tbptt_chunk_size", "must be <= training.block_size"),
        ),
        (["--set", "model.quant.enabled=true"], ("model.quant", "not in this version yet")),
    ],
)
def test_a_bad_option_is_refused_by_name_and_never_dropped(
    command: Command, tmp_path: Path, words: list[str], parts: tuple[str, ...]
) -> None:
    path = write(tmp_path / "text.txt", small_text(20))
    command("train", "tiny", *options(*TINY, path), *words).refused(*parts)
    assert nothing_made(tmp_path)


def test_of_an_option_given_twice_the_later_one_counts_as_documented(train: Command, tmp_path: Path) -> None:
    train(write(tmp_path / "text.txt", small_text(20)), "training.max_iters=1", "training.max_iters=3").done()
    assert progress(latest(tmp_path))["step"] == 3
    page = Path(__file__).parents[2] / "docs" / "config.md"
    assert "when a key is set twice, the later one wins" in " ".join(page.read_text(encoding="utf-8").split())


def test_a_wanted_batch_that_does_not_divide_is_rounded_up_and_this_is_said(
    train: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "text.txt", small_text(20))
    said = train(path, "training.target_effective_batch_size=5").done()
    assert (
        f"batch: 2 rows x 3 (training.target_effective_batch_size asks for 5 rows; {6 * BLOCK} tokens"
        in said.err
    )


@pytest.mark.parametrize(("text", "shared"), [("xyz" * 200, 0), ("abcd" * 150, 3)])
def test_a_vocabulary_of_the_same_or_another_size_is_never_taken_for_the_checkpoints(
    command: Command, train: Command, own: Callable[[str], Path], tmp_path: Path, text: str, shared: int
) -> None:
    """Resuming is refused, and so is starting from weights that share no token, in one line after that of the text; no
    run is made. Shared
    tokens keep what they had, and it is said how many they are."""
    run = own("letters")
    other = write(tmp_path / "other.txt", text)
    before = sorted(tmp_path.rglob("*"))
    command("train", "--resume", run, *options(other, "training.max_iters=4")).refused("other.txt")
    start = ("training.launch_mode=init_from_checkpoint", f"training.init_checkpoint_path={run}")
    said = train(other, *CHARACTERS, *start)
    if shared:
        assert f"{shared} of 4 tokens are known; new: 'd'" in said.done().err
        return
    said.refused("tokenizer", "'x'", lines=2)
    made = {path.name for path in set(tmp_path.rglob("*")) - set(before) if path.parent.name == "runs"}
    assert made == set()


def test_the_tokenizer_of_another_run_is_never_taken_for_a_runs_own(
    command: Command, train: Command, own: Callable[[str], Path], tmp_path: Path
) -> None:
    """As many characters in another order of ids: nothing would fail, and everything would be garbage."""
    run = own("letters")
    train(write(tmp_path / "xyz.txt", "xyz" * 200), *CHARACTERS, "run_layout.name=xyz").done()
    shutil.copyfile(tmp_path / "runs" / "xyz" / "tokenizer.json", run / "tokenizer.json")
    command("train", "--resume", run, *options("training.max_iters=4")).refused(lines=0)
    command("generate", run, "--prompt", "x").refused("tokenizer", lines=0)
    command("evaluate", run, "--text", tmp_path / "xyz.txt").refused("tokenizer", lines=0)


def test_resuming_on_another_text_of_the_same_characters_is_refused(
    command: Command, own: Callable[[str], Path], tmp_path: Path
) -> None:
    other = write(tmp_path / "other.txt", "acb" * 200)
    said = command("train", "--resume", own("letters"), *options(other, "training.max_iters=4"))
    said.refused("trained on another text", lines=2)


# Training


def test_accumulation_changes_neither_weights_nor_losses_nor_rates_nor_norms(
    train: Command, tmp_path: Path
) -> None:
    """Four rows at once, in two or in four parts; the last window of the epoch is padded. Rates follow the closed
    formula of the optimizer step: warm-up from the first step on, the minimum at the last one."""
    path = write(tmp_path / "text.txt", small_text(60)[: 12 * 4 * BLOCK + 30])
    common = (
        path,
        NO_VALIDATION,
        "runtime.dtype=float64",
        "model.dropout=0.1",
        "training.epochs=1",
        "optimizer.lr_schedule.warmup_steps=4",
        "optimizer.lr_schedule.min_lr=1e-4",
    )
    found, steps = [], []
    for rows, parts in ((4, 1), (2, 2), (1, 4)):
        batch = (f"training.batch_size={rows}", f"training.gradient_accumulation_steps={parts}")
        train(*common, *batch, f"run_layout.name=in-{parts}").done()
        run = tmp_path / "runs" / f"in-{parts}"
        steps.append([event for event in read_events(run / "events.jsonl") if event["event"] == "step"])
        folder = checkpoint_path(run / "checkpoint", 13)
        found.append(load_file(folder / "model.safetensors"))
    assert sum(event["tokens"] for event in steps[0]) == 12 * 4 * BLOCK + 30 - 1
    assert steps[0][-1]["tokens"] < 4 * BLOCK  # the padded windows: targets are counted, not places
    for events, tensors in zip(steps[1:], found[1:], strict=True):
        for name in tensors:
            torch.testing.assert_close(tensors[name], found[0][name], rtol=1e-9, atol=1e-10)
        for event, expected in zip(events, steps[0], strict=True):
            for key in ("loss", "gradient_norm", "learning_rate", "tokens"):
                assert event[key] == pytest.approx(expected[key], rel=1e-9)
    rates = [event["learning_rate"] for event in steps[2]]
    half = [1e-4 + (2e-3 - 1e-4) * (1 + math.cos(math.pi * n / 9)) / 2 for n in range(10)]
    assert rates == pytest.approx([2e-3 * step / 4 for step in (1, 2, 3)] + half, rel=1e-12)


def test_the_logged_norm_is_that_before_clipping(train: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "text.txt", small_text(20))
    norms = []
    for name, limit in (("clipped", "1e-6"), ("free", "off")):
        train(path, f"optimizer.grad_clip_norm={limit}", f"run_layout.name={name}").done()
        events = read_events(tmp_path / "runs" / name / "events.jsonl")
        norms.append(next(event["gradient_norm"] for event in events if event["event"] == "step"))
    assert norms[0] == norms[1] > 1e-3


def test_weight_decay_falls_on_matrices_and_on_nothing_else(train: Command, tmp_path: Path) -> None:
    """After one step, weights differ by rate x decay x themselves; gains and biases do not differ at all."""
    path = write(tmp_path / "text.txt", small_text(20))
    tensors = {}
    for decay in ("0.0", "0.5", "1.0"):
        said = train(
            path,
            "training.max_iters=1",
            f"optimizer.weight_decay={decay}",
            "model.normalization.affine=true",
            "runtime.dtype=float64",
            f"run_layout.name=decay-{decay}",
        ).done()
        folder = checkpoint_path(tmp_path / "runs" / f"decay-{decay}" / "checkpoint", 1)
        tensors[decay] = load_file(folder / "model.safetensors")
    assert "on matrix, embedding, head" in said.err
    for name, plain in tensors["0.0"].items():
        half, whole = plain - tensors["0.5"][name], plain - tensors["1.0"][name]
        if name.startswith(("norm.", "memory.")):
            assert float(whole.abs().max()) == 0.0, name
        else:
            assert float(whole.abs().max()) > 1e-6, name
            torch.testing.assert_close(2 * half, whole, rtol=1e-9, atol=1e-15)


def test_dropout_reaches_neither_evaluation_nor_generation(command: Command, place: Path) -> None:
    run = place / "exact"  # trained with dropout 0.5
    for words in (["evaluate", run, "--json"], ["generate", run, "--prompt", "to", "--temperature", "0"]):
        assert command(*words).done().out == command(*words).done().out


def test_reading_in_pieces_of_any_size_gives_the_same_loss(
    command: Command, place: Path, tmp_path: Path
) -> None:
    """With a carried state, every target once: token by token, in odd blocks, and in one pass."""
    write(tmp_path / "text.txt", small_text(10, seed=3)[:130])
    found = []
    for block in (1, 7, 64, 129, 1000):
        words = ["--text", tmp_path / "text.txt", "--block-size", block, "--json"]
        found.append(json.loads(command("evaluate", place / "exact", *words).done().out))
    assert {record["tokens"] for record in found} == {129}
    losses = [record["loss"] for record in found]
    assert losses == pytest.approx([losses[-1]] * 5, rel=1e-12)


@pytest.mark.parametrize("state", ["carry", "reset"])
@pytest.mark.parametrize("rows", [1, 3, 4, 64])
def test_any_number_of_rows_reads_every_target_once(
    command: Command, place: Path, tmp_path: Path, rows: int, state: str
) -> None:
    """Also where the rows run out of text at different times; the batch of training does not matter."""
    write(tmp_path / "text.txt", small_text(10, seed=3)[:101])
    words = ["--text", tmp_path / "text.txt", "--rows", rows, "--block-size", 7, "--state", state, "--json"]
    record = json.loads(command("evaluate", place / "exact", *words).done().out)
    assert record["tokens"] == 100
    assert math.isfinite(record["loss"])


def test_a_state_can_be_carried_through_two_hundred_backward_passes() -> None:
    """It is detached at every border: no pass walks into the one before, and nothing piles up."""
    import gc

    config = ModelConfig(n_layer=2, n_embd=16, n_head=2, latent_total=64, dropout=0.0)
    model = Model(config, 11, seed=1)
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(1))
    state, alive = None, []
    for number in range(200):
        hidden, state = model(tokens, state)
        model.loss_sum(hidden, tokens).backward()
        state = state.detach()
        assert not any(tensor.requires_grad for layer in state.layers for tensor in layer.values())
        if number in (20, 199):
            del hidden
            gc.collect()
            alive.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    assert alive[0] == alive[1]
    assert state.position.tolist() == [1600, 1600]


def test_a_run_that_diverges_stops_names_the_step_and_saves_nothing_that_is_not_finite(
    command: Command, train: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "text.txt", small_text(60))
    said = train(path, "optimizer.weight_decay=1e36", "training.max_iters=4", "run_layout.name=wild")
    assert (said.code, said.out) == (3, "")
    (line,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert "step 2" in line
    assert any(name in line for name in ("embedding.weight", "encoder", "decoder", "lm_head"))
    root = tmp_path / "runs" / "wild" / "checkpoint"
    assert list_checkpoints(root) == [1]
    tensors = read_checkpoint(checkpoint_path(root, 1)).parts["model"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert not (root / "best").exists()  # its validation was not a number
    command("generate", "wild", "--checkpoint", "best").refused("no best checkpoint")
    assert "diverged" in command("runs").done().out


def test_the_advice_after_a_divergence_can_be_followed(
    command: Command, train: Command, tmp_path: Path
) -> None:
    """A fork of the last good checkpoint, with what the message says is to be smaller."""
    path = write(tmp_path / "text.txt", small_text(60))
    assert train(path, "training.max_iters=2", "run_layout.name=calm").code == 0
    settings = options("optimizer.weight_decay=1e36", "training.max_iters=6", "run_layout.name=wild")
    said = command("train", "--fork", "calm", *settings)
    assert said.code == 3
    line = said.err.splitlines()[-1]
    assert "steps 2, 3" in line
    assert "--fork wild" in line
    assert "optimizer.weight_decay" in line
    settings = options(
        "training.resume_checkpoint_step=2", "optimizer.weight_decay=0.1", "run_layout.name=tame"
    )
    assert "diverged at step" not in command("train", "--fork", "wild", *settings).done().err
    assert progress(tmp_path / "runs" / "tame")["step"] == 6
    listed = {run["name"]: run["status"] for run in json.loads(command("runs", "--json").done().out)}
    assert listed == {"calm": "finished", "wild": "diverged", "tame": "finished"}


@pytest.mark.parametrize(
    "settings",
    [
        ("model.rotary_embedding=alibi", "model.alibi_slopes=[1e-9, 200.0]"),
        ("model.rotary_embedding=alibi", "model.alibi_slopes=[1e-9, 200.0]", "runtime.dtype=bfloat16"),
        ("optimizer.learning_rate=1.0", "optimizer.grad_clip_norm=off"),
        ("training.block_size=300", "model.sequence_kernel.executor=chunked", "runtime.dtype=bfloat16"),
    ],
)
def test_extremes_end_in_finite_numbers(train: Command, tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Decays next to 0 and 1, a learning rate a thousand times too high, long sequences of one token."""
    path = write(tmp_path / "text.txt", "a" * 4000)
    said = train(path, "training.max_iters=5", *settings)
    run = latest(tmp_path)
    assert said.code == 0 or (said.code == 3 and "learning_rate" in settings[0]), said.err
    assert math.isfinite(progress(run)["loss"])
    tensors = read_checkpoint(locate_checkpoint(run)).parts["model"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def test_a_long_text_of_one_token_has_the_same_finite_loss_in_one_pass_and_in_blocks(
    command: Command, place: Path, tmp_path: Path
) -> None:
    """Sums that only ever grow, in float32."""
    write(tmp_path / "long.txt", "a" * 8193)
    losses = []
    for block in (8192, 128):
        words = ["--text", tmp_path / "long.txt", "--block-size", block, "--json"]
        losses.append(json.loads(command("evaluate", place / "dragon", *words).done().out)["loss"])
    assert math.isfinite(losses[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# Going on


def test_a_run_cut_in_two_ends_bit_for_bit_as_one_that_never_stopped(
    command: Command, train: Command, own: Callable[[str], Path], tmp_path: Path
) -> None:
    """Weights, moments and step counters, with dropout and validations. A finished run says so and changes nothing."""
    run = own("dragon")
    text = json.loads((run / "training_config.json").read_text())["dataset"]["path"]
    constant = ("optimizer.lr_schedule.type=constant", "training.checkpoint_interval_iters=2")
    train(f"dataset.path={text}", *constant, "training.max_iters=9", "run_layout.name=straight").done()
    command("train", "--resume", run, *options("training.max_iters=9")).done()
    assert weights(run, 9) == weights(tmp_path / "runs" / "straight", 9)
    files = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    said = command("train", "--resume", run).done()
    assert "is finished: 9 of 9 steps are done" in said.err
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == files


def test_a_run_can_be_started_again_from_step_0(
    command: Command, own: Callable[[str], Path], place: Path
) -> None:
    run = own("dragon")
    shutil.rmtree(run / "checkpoint")
    said = command("train", "--resume", run).done()
    assert "stopped before its first checkpoint" in said.err
    assert weights(run, 6) == weights(place / "dragon", 6)


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99, None])
@pytest.mark.parametrize(
    "part", ["model.safetensors", "optimizer.safetensors", "manifest.json", "progress.json"]
)
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(
    command: Command, own: Callable[[str], Path], place: Path, left: float | None, part: str
) -> None:
    """Cut to nothing, to a half, to 99 %, or gone: the one before takes over, and the end is the same."""
    run = own("dragon")
    damaged = checkpoint_path(run / "checkpoint", 6) / part
    if left is None:
        damaged.unlink()
    else:
        damaged.write_bytes(damaged.read_bytes()[: int(left * damaged.stat().st_size)])
    said = command("train", "--resume", run).done()
    (warning,) = [line for line in said.err.splitlines() if line.startswith("warning")]
    assert "step-000000006 is passed over" in warning
    assert weights(run, 6) == weights(place / "dragon", 6)
    assert not list(run.rglob(".tmp-*"))


def test_reading_a_damaged_checkpoint_is_one_line(command: Command, own: Callable[[str], Path]) -> None:
    run = own("dragon")
    damaged = checkpoint_path(run / "checkpoint", 6) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for words in (["generate", run], ["evaluate", run]):
        command(*words).refused("model.safetensors is damaged")
    command("generate", run, "--checkpoint", "4", "--prompt", "to").done()
    command("generate", run, "--checkpoint", "5").refused("no checkpoint of step 5", "2, 4, 6")


def test_no_room_for_a_checkpoint_is_exit_code_4_and_the_earlier_ones_stay(
    command: Command, own: Callable[[str], Path], place: Path
) -> None:
    resource = pytest.importorskip("resource", reason="limits on file size are a Unix facility")
    run = own("dragon")
    before = weights(run, 6)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        said = command("train", "--resume", run, *options("training.max_iters=9"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said.code == 4, said.err
    (line,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert "limit on file size" in line
    assert "earlier checkpoints are untouched" in line
    assert list_checkpoints(run / "checkpoint")[-1] == 6
    assert weights(run, 6) == before
    assert not list(run.rglob(".tmp-*"))
    command("train", "--resume", run, *options("training.max_iters=7")).done()


def test_the_newest_by_number_and_the_best_are_kept_and_found(
    command: Command, train: Command, tmp_path: Path
) -> None:
    """Across 9 to 10, where names would sort otherwise; `latest` is never the best by accident."""
    path = write(tmp_path / "text.txt", small_text(60))
    train(
        path,
        "training.max_iters=11",
        "training.checkpoint_keep=1",
        "training.validation_interval_iters=3",
        "optimizer.lr_schedule.type=constant",
        "optimizer.learning_rate=0.3",
    ).done()
    run = latest(tmp_path)
    best = progress(run)["best"]["step"]
    assert set(list_checkpoints(run / "checkpoint")) == {best, 11}
    for asked, step in (("latest", 11), ("best", best), ("11", 11)):
        said = command("generate", run, "--prompt", "to", "--checkpoint", asked).done()
        assert f"weights of step {step}:" in said.err


def test_a_second_run_of_the_same_name_is_refused(train: Command, place: Path) -> None:
    path = f"dataset.path={place.parent / 'text.txt'}"
    before = sorted(place.rglob("*"))
    train(path, f"run_layout.base_dir={place}", "run_layout.name=dragon").refused(
        "dragon exists already", lines=0
    )
    assert sorted(place.rglob("*")) == before


def test_tied_weights_are_one_tensor_through_training_loading_and_going_on(
    command: Command, train: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "text.txt", small_text(60))
    tied = ("model.tie_embeddings=true", "optimizer.lr_schedule.type=constant")
    train(path, *tied, "run_layout.name=tied").done()
    train(path, *tied, "run_layout.name=longer", "training.max_iters=4").done()
    train(path, "run_layout.name=untied").done()
    runs = tmp_path / "runs"
    saved = load_file(checkpoint_path(runs / "tied" / "checkpoint", 2) / "model.safetensors")
    untied = load_file(checkpoint_path(runs / "untied" / "checkpoint", 2) / "model.safetensors")
    assert set(untied) - set(saved) == {"lm_head"}
    record = json.loads((runs / "tied" / "config.json").read_text())["model_spec"]
    assert record["parameter_count"] == sum(
        t.numel() for name, t in saved.items() if name != "memory.frequencies"
    )
    command("train", "--resume", "tied", *options("training.max_iters=4")).done()
    assert weights(runs / "tied", 4) == weights(runs / "longer", 4)
    start = ("training.launch_mode=init_from_checkpoint", f"training.init_checkpoint_path={runs / 'untied'}")
    train(path, *tied, *start, "run_layout.name=mixed").refused("lm_head", lines=0)
    assert not (runs / "mixed").exists()


def test_without_the_optimizers_state_a_run_is_a_start_for_others_and_cannot_go_on(
    command: Command, train: Command, own: Callable[[str], Path], tmp_path: Path
) -> None:
    run = own("exact")
    whole = read_checkpoint(checkpoint_path(run / "checkpoint", 2))
    shutil.rmtree(run / "checkpoint")
    save_checkpoint(run / "checkpoint", 2, {"model": whole.parts["model"]}, whole.progress)
    command("train", "--resume", run, *options("training.max_iters=4")).refused("no optimizer state", lines=0)
    path = write(tmp_path / "text.txt", small_text(60))
    start = ("training.launch_mode=init_from_checkpoint", f"training.init_checkpoint_path={run}")
    train(path, *start, "run_layout.name=new").done()
    assert progress(tmp_path / "runs" / "new")["step"] == 2


class Malicious:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_in_a_checkpoint_is_refused_on_every_path_and_never_runs(
    command: Command, train: Command, own: Callable[[str], Path], tmp_path: Path
) -> None:
    """In the place of a part, whatever the manifest says of it, and beside the parts."""
    mark = tmp_path / "pwned"
    payload = pickle.dumps(Malicious(mark))
    path = write(tmp_path / "text.txt", small_text(60))
    for where in ("in its place", "beside it"):
        run = own("exact")
        for step in list_checkpoints(run / "checkpoint"):
            folder = checkpoint_path(run / "checkpoint", step)
            if where == "beside it":
                (folder / "model.pt").write_bytes(payload)
                continue
            (folder / "model.safetensors").write_bytes(payload)
            record = FileRecord(len(payload), hashlib.sha256(payload).hexdigest())
            manifest = read_manifest(folder)
            vouching = replace(manifest, files={**manifest.files, "model.safetensors": record})
            (folder / "manifest.json").write_text(vouching.to_json())
        start = ("training.launch_mode=init_from_checkpoint", f"training.init_checkpoint_path={run}")
        command("train", "--resume", run, *options("training.max_iters=4")).refused("model.", lines=0)
        train(path, *start, "run_layout.name=new").refused("model.", lines=0)
        command("generate", run, "--prompt", "to").refused("model.")
        command("evaluate", run).refused("model.")
        command("report", run).done()
        shutil.rmtree(run)
    assert not (tmp_path / "runs" / "new").exists()
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.is_dir()  # the payload would have worked


def test_pickles_in_other_places_are_refused_too(
    command: Command, train: Command, place: Path, tmp_path: Path
) -> None:
    """Weights to import or to start from, a conversation to go on with, an array of Python objects as data."""
    mark = tmp_path / "pwned"
    evil = tmp_path / "evil.pt"
    torch.save({"embed.weight": Malicious(mark)}, evil)
    command("import-bdh", evil).refused("evil.pt")
    start = ("training.launch_mode=init_from_checkpoint", f"training.init_checkpoint_path={evil}")
    text = f"dataset.path={place.parent / 'text.txt'}"
    train(text, *start).refused("evil.pt", lines=0)
    evil.write_bytes(pickle.dumps(Malicious(mark)))
    command("generate", place / "exact", "--state-in", evil).refused("evil.pt", lines=0)
    array = np.array([Malicious(mark)] * 40, dtype=object)
    np.save(tmp_path / "evil.npy", array, allow_pickle=True)
    ids = ("dataset.tokenizer.type=pretokenized", "dataset.tokenizer.vocab_size=9")
    train("dataset.type=pretokenized", f"dataset.path={tmp_path / 'evil.npy'}", *ids).refused("evil.npy")
    assert not mark.exists()
    assert nothing_made(tmp_path)


# Generation


@pytest.mark.parametrize("prompt", [b"", b"\n", b" ", b"\0"])
def test_empty_and_blank_prompts_start_somewhere_or_say_why_not(
    command: Command, place: Path, tmp_path: Path, prompt: bytes
) -> None:
    """Bytes know all of them; a vocabulary of three letters starts from its first where nothing is asked."""
    (tmp_path / "prompt").write_bytes(prompt)
    words = ["--prompt-file", tmp_path / "prompt", "--output", "ids"]
    drawn = command("generate", place / "dragon", *words).done()
    assert len(drawn.out.split()) == 1 + 4
    assert ("is empty: starting from a newline (token 10)" in drawn.err) == (prompt == b"")
    assert (command("generate", place / "dragon", "--output", "ids").done().out == drawn.out) == (
        prompt in b"\n"
    )
    small = command("generate", place / "letters", *words)
    if prompt:
        small.refused("is not in the vocabulary", "byte offset 0", lines=2)
    else:
        assert "is empty: starting from the first token (token 0)" in small.done().err


def test_a_prompt_of_the_configuration_that_is_unknown_is_one_line_and_never_ends_training(
    command: Command, train: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "abc.txt", "abc" * 100)
    train(path, *CHARACTERS, "generation.prompt=' '").done()
    command("generate", latest(tmp_path)).refused("' ' (U+0020)", lines=2)


@pytest.mark.skipif(os.name == "nt", reason="closing standard input is a matter of shells")
def test_a_closed_standard_input_is_one_line(place: Path) -> None:
    line = f'"{sys.executable}" -m wyrmling generate "{place / "dragon"}" --prompt-file - <&-'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --prompt-file - reads standard input, which is closed")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK])
def test_a_prompt_longer_than_a_block_is_read_whole(
    command: Command, place: Path, tmp_path: Path, length: int
) -> None:
    """The same text as when the prompt is given in two parts through a saved conversation; then three blocks more."""
    prompt = small_text(40, seed=5)[:length]
    more = ["--max-tokens", 3 * BLOCK, "--output", "json", "--temperature", "0"]
    whole = json.loads(command("generate", place / "exact", "--prompt", prompt, *more).done().out)
    assert len(whole["ids"]) == 3 * BLOCK
    talk = tmp_path / "talk"
    greedy = ["--max-tokens", "1", "--temperature", "0", "--output", "json"]
    first = command("generate", place / "exact", "--prompt", prompt, *greedy, "--state-out", talk).done()
    rest = command("generate", place / "exact", "--state-in", talk, *more).done()
    assert (json.loads(first.out)["ids"] + json.loads(rest.out)["ids"])[: 3 * BLOCK] == whole["ids"]


def test_a_window_is_announced_on_standard_error(command: Command, place: Path) -> None:
    said = command("generate", place / "exact", "--prompt", "to be " * 20, "--context-window", BLOCK).done()
    assert f"120 tokens, the window {BLOCK}" in said.err
    assert said.out.startswith("to be to be ")


@pytest.mark.parametrize(
    "words",
    [
        ["--temperature", "-1"],
        ["--temperature", "nan"],
        ["--temperature", "inf"],
        ["--top-k", "0"],
        ["--top-k", "-3"],
        ["--top-p", "0"],
        ["--top-p", "1.1"],
        ["--top-p", "nan"],
        ["--seed", "-1"],
        ["--max-tokens", "0"],
    ],
)
def test_a_setting_out_of_its_range_is_refused_before_the_run_is_looked_for(
    command: Command, words: list[str]
) -> None:
    """There is no such run, and the setting is what is said."""
    name = words[0].removeprefix("--").replace("-", "_")
    command("generate", "no-such-run", *words).refused(name)


def test_the_edges_of_sampling_are_greedy_or_no_filter_at_all(command: Command, place: Path) -> None:
    def text(*words: str) -> str:
        return (
            command(
                "generate",
                place / "dragon",
                "--prompt",
                "to",
                "--output",
                "ids",
                "--max-tokens",
                "12",
                *words,
            )
            .done()
            .out
        )

    greedy = text("--temperature", "0")
    for words in (
        ["--temperature", "0", "--seed", "9"],
        ["--temperature", "1e-8"],
        ["--top-k", "1"],
        ["--top-p", "1e-9"],
        ["--top-k", "1", "--top-p", "1e-9", "--temperature", "1e30"],
    ):
        assert text(*words) == greedy, words
    free = text("--seed", "5")
    assert free == text("--seed", "5") != text("--seed", "6")
    for words in (
        ["--top-k", "256"],
        ["--top-k", "257"],
        ["--top-p", "1"],
        ["--top-k", "300", "--top-p", "1"],
    ):
        assert text("--seed", "5", *words) == free, words
    assert len(text("--temperature", "1e30").split()) == 14
