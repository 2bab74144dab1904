"""What a run says of itself, in every mode: each figure that is printed or recorded, against one counted apart.

The learning rate is so small that no weight moves. So the loss of the only logged step is the mean over the whole
epoch, and can be found with the first weights: by reading each row's text in one pass where the state is carried, by
reading every window from nothing where it is not.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

import wyrmling
from small_texts import small_text
from wyrmling import Callback
from wyrmling.__main__ import main
from wyrmling.checkpoint import checkpoint_path, list_checkpoints, read_checkpoint
from wyrmling.config import load_bundle, with_overrides
from wyrmling.config.launching import to_go_on
from wyrmling.data import EpochWindows
from wyrmling.model import Model
from wyrmling.runs import RunDirectory, find_run
from wyrmling.training import profiling
from wyrmling.training.bundles import run_bundle
from wyrmling.watch.events import Message, RunEnded, RunStarted, StepReport, ValidationReport

BLOCK, ROWS = 32, 2
TEXT = small_text(60).replace("question", "quéstion")
"""2,600 bytes or so, some characters of which have two."""


class Mode(NamedTuple):
    carried: bool
    chunk: int | None
    window: int
    accumulation: int
    tokenizer: str
    way: str
    """"straight", "resumed" (stopped after a step and gone on with) or "bundle"."""


CHUNKS: list[tuple[int | None, int]] = [(None, 1), (8, 1), (8, 3)]
WAYS = ["straight", "resumed", "bundle"]
EVERY = [
    Mode(carried, chunk, window, accumulation, tokenizer, way)
    for carried, (chunk, window), accumulation, tokenizer, way in itertools.product(
        [False, True], CHUNKS, [1, 2], ["byte", "char", "bpe"], WAYS
    )
]
# Each setting with each other one, somewhere.
FEW = [
    Mode(False, None, 1, 1, "byte", "straight"),
    Mode(False, 8, 1, 2, "char", "resumed"),
    Mode(False, 8, 3, 1, "bpe", "bundle"),
    Mode(True, None, 1, 2, "bpe", "resumed"),
    Mode(True, 8, 1, 1, "byte", "bundle"),
    Mode(True, 8, 3, 2, "char", "straight"),
]


class Told(Callback):
    """Everything that is told, by kind; stops a run after a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.started: list[RunStarted] = []
        self.steps: list[StepReport] = []
        self.validations: list[ValidationReport] = []
        self.ended: list[RunEnded] = []
        self.messages: dict[str, str] = {}

    def on_start(self, report: RunStarted) -> None:
        self.started.append(report)

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)
        if report.step == self.stop_at:
            report.control.stop("the test asked for it")

    def on_validation(self, report: ValidationReport) -> None:
        self.validations.append(report)

    def on_message(self, report: Message) -> None:
        self.messages[report.name] = report.text

    def on_end(self, report: RunEnded) -> None:
        self.ended.append(report)


def vocabulary(folder: Path) -> Path:
    """A byte-level vocabulary of 280 tokens, made from the text."""
    path = folder / "tokenizer.json"
    library = Library(models.BPE())
    library.decoder = decoders.ByteLevel()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet))
    library.save(str(path))
    return path


def settings(mode: Mode, folder: Path) -> list[str]:
    text = folder / "text.txt"
    text.write_bytes(TEXT.encode())
    found = [
        "dataset.type=local_text",
        f'dataset.path="{text.as_posix()}"',
        "dataset.split=ratio",
        f"dataset.tokenizer.type={mode.tokenizer}",
        f"training.block_size={BLOCK}",
        f"training.batch_size={ROWS}",
        f"training.gradient_accumulation_steps={mode.accumulation}",
        "training.epochs=1",
        "training.checkpoint_interval_iters=7",
        "training.checkpoint_keep=99",
        "training.log_frequency=9999",
        "training.validation_batches=2",
        "optimizer.learning_rate=1e-30",
        "optimizer.lr_schedule=none",
        "generation.max_tokens=2",
        "generation.prompt=to",
        "runtime.dtype=float64",
        "runtime.threads=1",
        f"training.tbptt_persist_across_steps={str(mode.carried).lower()}",
        f"training.tbptt_window={mode.window}",
    ]
    if mode.chunk is not None:
        found.append(f"training.tbptt_chunk_size={mode.chunk}")
    if mode.tokenizer == "bpe":
        found.append(f'dataset.tokenizer.vocab_path="{vocabulary(folder).as_posix()}"')
    return found


def trained(mode: Mode, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunDirectory, Told]:
    """The run, made in the way that the mode says, and what its last process told."""
    told = Told()
    if mode.way == "bundle":
        lines = ",\n".join(json.dumps(item) for item in settings(mode, folder))
        path = folder / "b.toml"
        path.write_text(f'name = "b"\nconfig = "tiny"\nset = [{lines}]\n[[stages]]\nname = "one"\n')
        run_bundle(load_bundle(path), callbacks=[told])
        return find_run("b-one"), told
    config = wyrmling.load_config("tiny", settings(mode, folder))
    if mode.way == "straight":
        return wyrmling.train(config, callbacks=[told], profile="summary").run, told
    first = wyrmling.train(config, callbacks=[Told(stop_at=5)]).run
    again = with_overrides(first.training_config(), to_go_on(first.path))
    return wyrmling.train(again, callbacks=[told], profile="summary").run, told


def tokens_of(mode: Mode, folder: Path, run: RunDirectory) -> list[int]:
    """The whole text as ids, by other means than the dataset's."""
    if mode.tokenizer == "byte":
        ids = list(TEXT.encode())
    elif mode.tokenizer == "char":
        known = {run.tokenizer().decode([number]): number for number in range(run.tokenizer().vocab_size)}
        ids = [known[character] for character in TEXT]
    else:
        ids = Library.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    eos = run.tokenizer().eos_id
    return ids if eos is None else [*ids, eos]


def losses_of(model: Model, ids: list[int]) -> torch.Tensor:
    """Nats of every token after the first, float64."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        hidden, _ = model(tokens[:, :-1])
        return (
            torch.log_softmax(model.logits(hidden).double(), -1).gather(2, tokens[:, 1:, None])[0, :, 0].neg()
        )


def epoch_of(mode: Mode, ids: list[int], seed: int) -> list[tuple[int, int]]:
    """(start, targets) of every stretch of the training split that is read from a fresh state."""
    rows, targets = ROWS * mode.accumulation, len(ids) - 1
    if not mode.carried:
        order = EpochWindows(len(ids), BLOCK, rows, seed, "train")
        found = [order.windows(step, torch.arange(rows).numpy()) for step in range(order.steps_per_epoch)]
        return [
            (int(start), int(length))
            for windows in found
            for start, length in zip(windows.starts, windows.lengths, strict=True)
            if length
        ]
    blocks = -(-targets // BLOCK)  # one document: its blocks are dealt to the rows in contiguous shares
    borders = [row * blocks // rows * BLOCK for row in range(rows)] + [targets]
    return [(begin, min(end, targets) - begin) for begin, end in itertools.pairwise(borders)]


def pairs(line: str) -> dict[str, str]:
    """The `key=value` pairs of a line."""
    return dict(pair.split("=", 1) for pair in line.replace(",", " ").split())


def check(mode: Mode, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(profiling.run_profile, "matrix_rate", lambda *_, **__: 1e12)
    run, told = trained(mode, folder, monkeypatch)
    config, record = run.training_config(), run.record()
    steps = list_checkpoints(run.checkpoints)
    final = read_checkpoint(checkpoint_path(run.checkpoints, steps[-1]))
    model = wyrmling.load_run(run.path).model
    ids = tokens_of(mode, folder, run)
    train = ids[: int(len(ids) * 0.9)]
    rows, targets = ROWS * mode.accumulation, len(train) - 1

    # how long, how much
    stretches = epoch_of(mode, train, config.training.seed)
    assert sum(length for _, length in stretches) == targets
    longest = (
        -(-targets // BLOCK) if mode.carried else EpochWindows(len(train), BLOCK, rows, 0, "train").count
    )
    total = -(-longest // rows)
    assert record["data"]["train_tokens"] == len(train)
    assert record["data"]["train_tokens"] + record["data"]["validation_tokens"] == len(ids)
    assert record["data"]["steps_per_epoch"] == record["data"]["total_steps"] == total
    assert record["training_effective_batch_size"] == rows
    assert record["training_gradient_accumulation_steps"] == mode.accumulation
    assert record["training_execution_form"] == ("default_stateful" if mode.chunk is None else "tbptt")
    (started,), (ended,) = told.started, told.ended
    assert started.total_steps == ended.step == final.progress["step"] == steps[-1] == total
    begun = 5 if mode.way == "resumed" else 0
    assert (started.step, started.resumed) == (begun, begun > 0)
    assert [report.step for report in told.steps] == list(range(begun + 1, total + 1))
    here = sum(report.tokens for report in told.steps)
    assert here == targets or (begun and 0 < here < targets)
    assert told.steps[-1].tokens_seen == ended.tokens == final.progress["tokens_seen"] == targets
    lines = {name: pairs(text) for name, text in started.fingerprint}
    assert lines["train schedule"]["total_steps"] == str(total)
    assert lines["train schedule"]["dataset_steps_per_epoch"] == str(total)
    assert lines["training batching"]["effective_batch_size"] == str(rows)
    assert lines["training path fingerprint"]["execution_form"] == record["training_execution_form"]
    assert lines["training path fingerprint"]["kernel_block_size"] == str(mode.chunk or BLOCK)

    # how large
    assert (
        started.parameters
        == record["model_spec"]["parameter_count"]
        == sum(p.numel() for p in model.parameters())
    )
    held = rows if mode.carried else ROWS
    state = model(torch.zeros(held, 2, dtype=torch.int64))[1]
    assert started.state_bytes == state.nbytes()

    # how good
    losses = torch.cat([losses_of(model, train[begin : begin + n + 1]) for begin, n in stretches])
    loss = float(losses.mean())
    logged = [report.loss for report in told.steps if report.loss is not None]
    assert logged == [pytest.approx(loss, rel=1e-9)]
    assert ended.loss == final.progress["loss"] == logged[0]
    texts = [run.tokenizer().decode_bytes([token]) for token in train[1:]]
    # of all targets: every one is read once, in whatever stretch
    nats = float(losses.sum())
    assert told.steps[-1].bits_per_byte == pytest.approx(nats / math.log(2) / sum(map(len, texts)), rel=1e-9)

    # what is kept and listed
    events = [json.loads(line) for line in run.events_path.read_text().splitlines()]
    for event in events:
        if event["event"] == "checkpoint":
            files = checkpoint_path(run.checkpoints, event["step"]).iterdir()
            assert event["bytes"] == sum(file.stat().st_size for file in files)
    capsys.readouterr()
    assert main(["runs", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    wanted = {"name": run.name, "status": "finished", "step": total, "total_steps": total, "tokens": targets}
    wanted |= {"loss": logged[0], "epochs": 1, "resumed": int(begun > 0), "last_checkpoint": total}
    wanted |= {"parameters": started.parameters, "validation_loss": ended.validation_loss}
    assert {key: listed[key] for key in wanted} == wanted
    assert listed["checkpoints"] == len(steps)
    if mode.way != "bundle":
        profile = json.loads((run.path / "profile.json").read_text())
        assert (profile["first_step"], profile["last_step"]) == (begun + 1, total)
        assert (profile["speed"]["steps"], profile["speed"]["tokens"]) == (total - begun, here)


@pytest.mark.parametrize("mode", FEW, ids=lambda mode: "-".join(map(str, mode)))
def test_every_figure_is_one_that_was_counted(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(mode, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", [mode for mode in EVERY if mode not in FEW], ids=lambda mode: "-".join(map(str, mode))
)
def test_every_figure_in_every_mode(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(mode, tmp_path, monkeypatch, capsys)
