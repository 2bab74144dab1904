"""The report of a run: one HTML page made from what the run's directory holds.

The page is a single file without scripts or links to elsewhere. Every headline number carries the exact
value it was made from (`data-figure`, `data-value`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..checkpoint import list_checkpoints
from ..config import Config
from ..config.schema import DEFAULT_ORIGIN
from ..errors import CheckpointError
from ..files import make_folder, publish, read_record, storage_errors, temporary_sibling, write_atomically
from ..runs import RunDirectory
from . import page, quantities
from .curves import Chart, charts_of, draw_png, draw_svg
from .figures import Event, Figures, count_figures, of_kind
from .jsonl import read_events
from .overview import cut_short
from .page import Card
from .profile import STAGE_PROFILE

_SAMPLES_SHOWN = 3


def write_report(run_directory: Path, output: Path | None = None) -> Path:
    """Write the report of a run and return its path (`report.html` in the run's directory unless given).

    Works at any time, also while the run goes on. What a directory does not hold is left out.

    Raises:
        DataError: the directory holds no events.
        CheckpointError: a record of the run does not parse.
        StorageError: the page cannot be written.
    """
    target = output or run_directory / "report.html"
    run = RunDirectory(run_directory, run_directory.name)
    events = read_events(run.events_path)
    record, settings = _read(run.config_json), _read(run.training_config_path)
    figures = count_figures(events)
    sections = [
        page.cards(headline(figures)),
        _charts(charts_of(events)),
        _samples(of_kind(events, "sample")),
        _choices(record.get("choices") or _announced(events)),
        _settings(settings, record.get("origins")),
        _time(events),
        _messages(of_kind(events, "message")),
        _facts(record),
    ]
    name = figures.name or run_directory.name
    saved = list_checkpoints(run.checkpoints)
    status = (cut_short(figures, saved[-1]) if saved else None) or figures.status
    html = page.page(name, _lead(status, figures), [part for part in sections if part])
    make_folder(target.parent)
    write_atomically(target, html)
    return target


def write_curves(run_directory: Path, output: Path | None = None) -> Path:
    """Write the curves of a run as a PNG and return its path (`report.png` unless given).

    Raises:
        DataError: the directory holds no events.
        StorageError: the picture cannot be written.
    """
    target = output or run_directory / "report.png"
    events = read_events(RunDirectory(run_directory, run_directory.name).events_path)
    temporary = temporary_sibling(target)
    with storage_errors(target):
        try:
            draw_png(charts_of(events), temporary, count_figures(events).name or run_directory.name)
            publish(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    return target


def headline(figures: Figures) -> list[Card]:
    """The cards on top of the page."""
    loss = quantities.loss
    of = "" if figures.total_steps is None else f"of {figures.total_steps}"
    last = "" if figures.last_checkpoint is None else f"last at step {figures.last_checkpoint}"
    cards = [
        Card("validation_loss", "Validation loss", loss(figures.validation_loss), figures.validation_loss),
        Card("loss", "Training loss", loss(figures.loss), figures.loss, "last logged step"),
        Card("step", "Steps", str(figures.step), figures.step, of),
        Card("tokens", "Tokens seen", quantities.count(figures.tokens), figures.tokens),
        Card("seconds", "Time", quantities.duration(figures.seconds), figures.seconds),
        Card(
            "tokens_per_second",
            "Tokens per second",
            quantities.count(figures.tokens_per_second),
            figures.tokens_per_second,
            "median",
        ),
        Card(
            "memory_bytes", "Memory", quantities.size(figures.memory_bytes), figures.memory_bytes, "largest"
        ),
        Card("parameters", "Parameters", quantities.count(figures.parameters), figures.parameters),
        Card("checkpoints", "Checkpoints", str(figures.checkpoints), figures.checkpoints, last),
    ]
    if figures.best_loss is not None:
        note = f"at step {figures.best_step}"
        best = Card("best_loss", "Best validation loss", loss(figures.best_loss), figures.best_loss, note)
        cards.insert(1, best)
    if figures.bits_per_byte is not None:
        cards.insert(
            2, Card("bits_per_byte", "Bits per byte", f"{figures.bits_per_byte:.3f}", figures.bits_per_byte)
        )
    for key, label in (("epochs", "Epochs"), ("resumed", "Times resumed"), ("warnings", "Warnings")):
        if count := getattr(figures, key):
            cards.append(Card(key, label, str(count), count))
    return cards


def _lead(status: str, figures: Figures) -> str:
    if figures.started is None:
        return status
    moment = datetime.fromtimestamp(figures.started).astimezone()
    return f"{status}, begun {moment:%Y-%m-%d %H:%M %Z}"


def _charts(charts: Sequence[Chart]) -> str:
    if not charts:
        return ""
    drawn = []
    for chart in charts:
        drawing = draw_svg(chart, 1100, 320) if chart is charts[0] else draw_svg(chart)
        legend = [(curve.role, curve.label) for curve in chart.curves if curve.points]
        drawn.append(page.figure(chart.title, drawing, legend if len(legend) > 1 else ()))
    return page.section("Curves", f'<div class="charts">{"".join(drawn)}</div>', key="curves")


def _samples(samples: Sequence[Event]) -> str:
    if not samples:
        return ""
    drawn = [
        page.sample(f"step {event['step']}", event["prompt"], event["text"]) for event in reversed(samples)
    ]
    older = drawn[_SAMPLES_SHOWN:]
    body = "".join(drawn[:_SAMPLES_SHOWN])
    if older:
        body += page.fold(f"{len(older)} earlier", "".join(older))
    return page.section("What the model writes", body, key="samples")


def _choices(choices: Any) -> str:
    """`choices`: a list of {name, value, reason}, or a table name -> {value, reason}."""
    if isinstance(choices, Mapping):
        choices = [{"name": name, **entry} for name, entry in choices.items()]
    if not choices:
        return ""
    rows = [[str(entry.get(key, "")) for key in ("name", "value", "reason")] for entry in choices]
    return page.section("Automatic choices", page.table(("What", "Value", "Why"), rows), key="choices")


def _announced(events: Sequence[Event]) -> list[dict[str, str]]:
    """The choices as the run told them, the last of each name."""
    told = {event["name"]: event["text"] for event in of_kind(events, "message")}
    prefix = "choice."
    return [
        {"name": name.removeprefix(prefix), "value": text}
        for name, text in told.items()
        if name.startswith(prefix)
    ]


def _settings(settings: Mapping[str, Any], origins: Mapping[str, str] | None) -> str:
    """Every setting with where its value comes from; those that somebody chose come first and stand out.

    A record without origins still tells what differs from the defaults.
    """
    flat = [(key, value) for key, value in _flat(settings) if value is not None and value != {}]
    if not flat:
        return ""
    where = _differences(flat) if origins is None else origins
    rows = [(key, _shown(value), _origin(where, key)) for key, value in flat]
    head = ("Setting", "Value", "From")
    marked = [number for number, row in enumerate(rows) if row[2] != DEFAULT_ORIGIN]
    body = page.table(head, [rows[number] for number in marked]) if marked else ""
    body += page.fold(f"all {len(rows)} settings", page.table(head, rows, marked=marked))
    return page.section("Settings", body, key="settings")


def _differences(flat: Sequence[tuple[str, Any]]) -> dict[str, str]:
    defaults = dict(_flat(Config().to_dict()))
    return {key: "chosen" for key, value in flat if key not in defaults or defaults[key] != value}


def _time(events: Sequence[Event]) -> str:
    """The last stage profile that the run reported."""
    profiles = [event for event in of_kind(events, "message") if event["name"] == STAGE_PROFILE]
    if not profiles:
        return ""
    pairs = [part.partition("=") for part in profiles[-1]["text"].split() if "=" in part]
    spent = {key.removesuffix("_ns"): int(value) for key, _, value in pairs if key.endswith("_ns")}
    total = spent.pop("total", 0)
    rows = [
        (stage, quantities.duration(ns / 1e9), f"{ns / total:.1%}")
        for stage, ns in sorted(spent.items(), key=lambda item: -item[1])
        if total and ns
    ]
    if not rows:
        return ""
    return page.section("Where the time went", page.table(("Stage", "Time", "Share"), rows), key="time")


def _messages(messages: Sequence[Event]) -> str:
    if not messages:
        return ""
    warnings = [number for number, event in enumerate(messages) if event["level"] == "warning"]
    rows = [(str(event["step"]), event["name"], event["text"]) for event in messages]
    table = page.table(("Step", "About", "Message"), rows, marked=warnings)
    return page.section(
        "Messages", page.fold(f"{len(messages)} messages", table, opened=bool(warnings)), key="messages"
    )


def _facts(record: Mapping[str, Any]) -> str:
    """What the run records about its model, its data and the versions it began with."""
    kinds = ("model_spec", "data", "versions", "environment")
    rows = [
        (f"{kind.removesuffix('_spec')}.{key}", _shown(value))
        for kind in kinds
        if isinstance(record.get(kind), Mapping)
        for key, value in _flat(record[kind])
    ]
    if not rows:
        return ""
    table = page.table(("What", "Value"), rows)
    return page.section("Model, data, versions", page.fold(f"{len(rows)} facts", table), key="facts")


def _origin(origins: Mapping[str, str], key: str) -> str:
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return DEFAULT_ORIGIN


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        record = read_record(path)
        if not record:
            raise ValueError("it is empty")
        return record
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; restore it, or remove it to go without") from None
