"""Curves of a run: as SVG that takes its colours from the page around it, or as a PNG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any

from . import quantities
from .figures import Event, Point, of_kind, series

WIDTH, HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 26, 14, 34
_MOST_POINTS = 1200
_SMOOTH_FROM = 60
_COLOURS = {"train": "#2563eb", "validation": "#db2777", "other": "#0f766e"}


@dataclass(frozen=True)
class Curve:
    """Points in order of steps. `role` chooses the colour: train, validation, other.

    `noisy` curves of many points get a smoothed line over the faint real one; `marked` ones show each point.
    """

    label: str
    role: str
    points: tuple[Point, ...]
    noisy: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over optimizer steps that share an axis; `write` turns a value of the axis into text."""

    key: str
    title: str
    curves: tuple[Curve, ...]
    write: Callable[[float], str]
    from_zero: bool = False
    resumed_at: tuple[int, ...] = ()


def charts_of(events: Sequence[Event]) -> list[Chart]:
    """The charts that these events can fill: loss, learning rate, throughput, gradient norm, memory."""
    resumed = tuple(event["step"] for event in of_kind(events, "resumed"))
    losses = (
        Curve("training", "train", tuple(series(events, "step", "loss")), noisy=True),
        Curve("validation", "validation", tuple(series(events, "validation", "loss")), marked=True),
    )
    charts = [Chart("loss", "Loss, nats per token", losses, "{:.4g}".format, resumed_at=resumed)]
    others: tuple[tuple[str, str, Callable[[float], str], bool], ...] = (
        ("learning_rate", "Learning rate", "{:.2g}".format, False),
        ("tokens_per_second", "Tokens per second", "{:,.0f}".format, True),
        ("gradient_norm", "Gradient norm before clipping", "{:.3g}".format, True),
        ("memory_bytes", "Memory", quantities.size, False),
    )
    for field, title, write, noisy in others:
        curve = Curve(title, "other", tuple(series(events, "step", field)), noisy)
        charts.append(Chart(field, title, (curve,), write, from_zero=True, resumed_at=resumed))
    return [chart for chart in charts if any(len(curve.points) > 1 for curve in chart.curves)]


def draw_svg(chart: Chart, width: int = WIDTH, height: int = HEIGHT) -> str:
    """One `<svg>` element, without colours of its own: the page gives them by class."""
    x_ticks, y_ticks = _axes(chart)
    y_low, y_high = y_ticks[0], y_ticks[-1]
    last_step = _last_step(chart) or 1

    def place(point: Point) -> tuple[float, float]:
        x = _LEFT + point[0] / last_step * (width - _LEFT - _RIGHT)
        y = height - _BOTTOM - (point[1] - y_low) / (y_high - y_low) * (height - _TOP - _BOTTOM)
        return x, y

    parts = [
        f'<svg class="chart" data-chart="{escape(chart.key)}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(chart.title)}">'
    ]
    for value in y_ticks:
        y = place((0, value))[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(chart.write(value))}</text>"
        )
    for value in x_ticks:
        x = place((value, y_low))[0]
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{height - 14}" text-anchor="middle">{value:,.0f}</text>'
        )
    for step in chart.resumed_at:
        x = place((step, y_low))[0]
        parts.append(
            f'<line class="resumed" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}">'
            f"<title>resumed after step {step}</title></line>"
        )
    for curve in chart.curves:
        parts += _draw_curve(curve, place, chart.write)
    parts.append("</svg>")
    return "".join(parts)


def draw_png(charts: Sequence[Chart], path: Path, title: str) -> None:
    """All charts on one sheet, written to `path` (not atomically: hand in a temporary name)."""
    from matplotlib.figure import Figure  # not pyplot, whose windows and backend are the program's

    columns = 2 if len(charts) > 1 else 1
    rows = max(1, -(-len(charts) // columns))
    figure = Figure(figsize=(6.4 * columns, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(charts) :]:
        axis.remove()
    for axis, chart in zip(axes.flat, charts, strict=False):
        _plot(axis, chart)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, parse_math=False)
    figure.savefig(path, format="png", dpi=140)


def _plot(axis: Any, chart: Chart) -> None:
    for curve in chart.curves:
        if not curve.points:
            continue
        smooth = _smooth(curve.points) if curve.noisy else None
        colour = _COLOURS[curve.role]
        raw = {"alpha": 0.3} if smooth else {"label": curve.label, "marker": "o" if curve.marked else None}
        axis.plot(*zip(*curve.points, strict=True), color=colour, markersize=4, **raw)
        if smooth:
            axis.plot(*zip(*smooth, strict=True), color=colour, label=f"{curve.label}, smoothed")
    for step in chart.resumed_at:
        axis.axvline(step, color="#94a3b8", linestyle=":", linewidth=1)
    axis.set_title(chart.title, loc="left", fontsize=11)
    axis.set_xlabel("optimizer step", fontsize=9)
    axis.yaxis.set_major_formatter(lambda value, _: chart.write(value))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if chart.from_zero:
        axis.set_ylim(bottom=0)
    if len(chart.curves) > 1:
        axis.legend(frameon=False, fontsize=9)


def thin(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """At most `most` points, in order: of each stretch the lowest and the highest, so that spikes stay."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    kept: list[Point] = []
    for i in range(stretches):
        stretch = points[i * len(points) // stretches : (i + 1) * len(points) // stretches]
        extremes = {
            min(range(len(stretch)), key=lambda k: stretch[k][1]),
            max(range(len(stretch)), key=lambda k: stretch[k][1]),
        }
        kept += [stretch[k] for k in sorted(extremes)]
    return kept


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from at most `low` to at least `high`."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        spread = abs(low) * 0.1 or 1.0
        low, high = low - spread, high + spread
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    spacing = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999999)
    first, last = math.floor(low / spacing + 1e-9), math.ceil(high / spacing - 1e-9)
    return [float(f"{k * spacing:.12g}") for k in range(first, last + 1)]


def _axes(chart: Chart) -> tuple[list[float], list[float]]:
    values = [value for curve in chart.curves for _, value in curve.points]
    low = min(0.0, *values) if chart.from_zero else min(values)
    inside = [value for value in ticks(0, _last_step(chart), 8) if value <= _last_step(chart)]
    return inside, ticks(low, max(values))


def _last_step(chart: Chart) -> float:
    return max(curve.points[-1][0] for curve in chart.curves if curve.points)


def _smooth(points: Sequence[Point]) -> list[Point] | None:
    """Means of about a fiftieth of the points around each; None when there are too few to need it."""
    if len(points) < _SMOOTH_FROM:
        return None
    reach = max(1, len(points) // 100)
    sums = [0.0, *accumulate(value for _, value in points)]
    smooth = []
    for i, (step, _) in enumerate(points):
        near = min(reach, i, len(points) - 1 - i)
        smooth.append((step, (sums[i + near + 1] - sums[i - near]) / (2 * near + 1)))
    return smooth


def _draw_curve(
    curve: Curve, place: Callable[[Point], tuple[float, float]], write: Callable[[float], str]
) -> list[str]:
    if not curve.points:
        return []
    smooth = _smooth(curve.points) if curve.noisy else None
    parts = [_path(thin(curve.points), place, f"{curve.role} {'raw' if smooth else 'line'}")]
    if smooth:
        parts.append(_path(thin(smooth), place, f"{curve.role} line"))
    if curve.marked:
        for point in thin(curve.points):
            x, y = place(point)
            parts.append(
                f'<circle class="{curve.role}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
                f"<title>{escape(f'{curve.label} {write(point[1])} at step {point[0]:.0f}')}</title></circle>"
            )
    return parts


def _path(points: Sequence[Point], place: Callable[[Point], tuple[float, float]], css: str) -> str:
    places = " ".join("{:.1f},{:.1f}".format(*place(point)) for point in points)
    return f'<polyline class="{css}" points="{places}"/>'
