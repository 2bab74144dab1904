"""The probe of the state: two readings of one text, compared by distance from where a state was emptied."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import wyrmling
from wyrmling import Config
from wyrmling.errors import ConfigError, DataError
from wyrmling.training import LoadedRun, load_run, probe
from wyrmling.training.evaluate import _split
from wyrmling.training.probing import edges, longest_period

Make = Callable[..., Config]


@pytest.fixture
def loaded(tiny_config: Make) -> LoadedRun:
    config = tiny_config("dataset.train_split_ratio=0.5", "runtime.dtype=float64")
    return load_run(wyrmling.train(config).run.path)


@pytest.fixture
def documents_run(tiny_config: Make, tmp_path: Path) -> LoadedRun:
    """Trained document by document, on lines of 1 to 210 characters."""
    config = tiny_config(
        "dataset.documents=line",
        "dataset.split=documents",
        "dataset.train_split_ratio=0.5",
        "training.order=streaming",
        "runtime.dtype=float64",
    )
    lines = (("to be or not to be " * 11)[: 1 + 37 * n % 210] for n in range(60))
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    return load_run(wyrmling.train(config).run.path)


def test_distances_double() -> None:
    assert edges(64) == [0, 64]
    assert edges(512) == [0, 64, 128, 256, 512]
    assert edges(320) == [0, 64, 128, 256, 320]


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_the_longest_stretch_leaves_enough_segments(rows: int) -> None:
    for targets in (2_000, 111_000, 10_000_000):
        period = longest_period(np.full(rows, targets // rows))
        assert 64 <= period <= 65536
        if period > 64:
            assert (targets // rows // period - 1) * rows >= 32


def test_it_scores_what_two_plain_readings_score(loaded: LoadedRun) -> None:
    """All tokens of a single row, by hand: read on, and read anew after every 128 tokens."""
    found = probe(loaded, rows=1, period=128)
    split = _split(loaded, "validation", print)
    tokens = torch.from_numpy(split.read(0, len(split)))
    with torch.no_grad():
        hidden, _ = loaded.model(tokens[None, :-1])
        live = loaded.model.token_losses(hidden, tokens[None, 1:])[0]
        reset = torch.cat(
            [
                loaded.model.token_losses(loaded.model(part[None])[0], wanted[None])[0]
                for part, wanted in zip(tokens[:-1].split(128), tokens[1:].split(128), strict=True)
            ]
        )
    distance = torch.arange(len(live)) % 128
    counted = torch.arange(len(live)) >= 128
    assert [(d.after, d.upto) for d in found] == [(0, 64), (64, 128)]
    for d in found:
        here = counted & (distance >= d.after) & (distance < d.upto)
        assert d.tokens == int(here.sum())
        assert d.live == pytest.approx(float(live[here].mean()), rel=1e-9)
        assert d.reset == pytest.approx(float(reset[here].mean()), rel=1e-9)
        assert d.interval > 0


def test_the_command_prints_a_table_and_writes_two_files(loaded: LoadedRun) -> None:
    from wyrmling.cli.main import app

    arguments = ["evaluate", str(loaded.run.path), "--probe-state", "--probe-length", "128", "--rows", "2"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert "65-128" in outcome.output
    record = json.loads((loaded.run.path / "probe_state.json").read_text())
    assert [entry["upto"] for entry in record["distances"]] == [64, 128]
    assert (loaded.run.path / "probe_state.png").read_bytes().startswith(b"\x89PNG")


def test_documents_are_probed_from_their_own_starts(documents_run: LoadedRun) -> None:
    """By hand, document by document: distances count from its start, and the first stretch of each is left out."""
    found = probe(documents_run, period=64)
    split = _split(documents_run, "validation", print)
    live, reset = [], []
    model = documents_run.model
    for start, stop in pairwise([*split.document_starts.tolist(), len(split)]):
        tokens = torch.from_numpy(split.read(start, stop - start))[None]
        with torch.no_grad():
            live.append(model.token_losses(model(tokens[:, :-1])[0], tokens[:, 1:])[0, 64:])
            for at in range(64, stop - start - 1, 64):
                inputs, wanted = (
                    tokens[:, at : at + 64][:, : stop - start - 1 - at],
                    tokens[:, at + 1 : at + 65],
                )
                reset.append(model.token_losses(model(inputs)[0], wanted)[0])
    assert [(d.after, d.upto) for d in found] == [(0, 64)]
    assert found[0].tokens == sum(map(len, live)) > 500
    assert found[0].live == pytest.approx(float(torch.cat(live).mean()), rel=1e-9)
    assert found[0].reset == pytest.approx(float(torch.cat(reset).mean()), rel=1e-9)
    with pytest.raises(DataError, match=r"documents of up to .* tokens hold no two stretches of 256"):
        probe(documents_run, period=256)


def test_lengths_that_cannot_be_are_refused(loaded: LoadedRun) -> None:
    with pytest.raises(ConfigError, match="a multiple of 64 tokens, not after 100"):
        probe(loaded, period=100)
    with pytest.raises(DataError, match="hold no two stretches of 65,536 tokens; probe with fewer rows"):
        probe(loaded, rows=2, period=65536)
