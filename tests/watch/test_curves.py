"""Curves: every point inside the frame, spikes kept, ticks round and around the data."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.watch.curves import HEIGHT, WIDTH, Chart, Curve, draw_png, draw_svg, thin, ticks

finite = st.floats(-1e6, 1e6)
point_lists = st.lists(finite, min_size=1, max_size=200).map(
    lambda values: tuple((step * 3 + 1, value) for step, value in enumerate(values))
)


def chart(points: tuple[tuple[float, float], ...], *, from_zero: bool = False, noisy: bool = True) -> Chart:
    curves = (Curve("a<b", "train", points, noisy=noisy), Curve("v", "validation", points[::7], marked=True))
    return Chart("loss", "Loss & more", curves, "{:.3g}".format, from_zero, resumed_at=(2,))


@given(point_lists, st.booleans())
@settings(deadline=None, max_examples=60)
def test_everything_drawn_lies_inside_the_frame(
    points: tuple[tuple[float, float], ...], from_zero: bool
) -> None:
    root = ElementTree.fromstring(draw_svg(chart(points, from_zero=from_zero)))
    places = [
        tuple(map(float, pair.split(",")))
        for line in root.iter("polyline")
        for pair in line.attrib["points"].split()
    ]
    assert len(places) >= len(points)
    for x, y in places:
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_higher_values_are_drawn_higher_and_later_ones_to_the_right() -> None:
    drawing = draw_svg(chart(((1, 0.0), (2, 1.0), (3, 2.0)), noisy=False))
    line = re.search(r'<polyline class="train line" points="([^"]*)"', drawing)
    assert line is not None
    xs, ys = zip(*(map(float, pair.split(",")) for pair in line[1].split()), strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys, reverse=True)


@given(st.lists(finite, max_size=3000), st.integers(2, 100))
@settings(deadline=None, max_examples=40)
def test_thinning_keeps_order_and_extremes(values: list[float], most: int) -> None:
    points = list(enumerate(values))
    kept = thin(points, most)
    assert len(kept) <= max(most, 1)
    assert kept == sorted(set(kept))
    assert set(kept) <= set(points)
    if points:
        assert {min(values), max(values)} <= {value for _, value in kept}


@given(finite, finite)
def test_ticks_are_round_evenly_spaced_and_enclose_the_data(one: float, other: float) -> None:
    low, high = sorted((one, other))
    marks = ticks(low, high)
    assert len(marks) >= 2
    slack = 1e-6 * max(abs(low), abs(high), high - low)
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack
    assert len(marks) <= 9


def test_ticks_are_1_2_or_5_times_a_power_of_ten_apart() -> None:
    for high in (0.003, 0.7, 1, 9.5, 33, 480, 1.2e9):
        marks = ticks(0, high)
        spacing = marks[1] - marks[0]
        mantissa = spacing / 10 ** math.floor(math.log10(spacing) + 1e-9)
        assert min(abs(mantissa - factor) for factor in (1, 2, 5)) < 1e-6


def test_a_picture_is_a_png(tmp_path: Path) -> None:
    points = tuple((step, math.sin(step)) for step in range(1, 90))
    draw_png([chart(points)] * 3, tmp_path / "curves", "run $1_2$ <name>")
    assert (tmp_path / "curves").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_run_without_curves_still_gives_a_picture(tmp_path: Path) -> None:
    draw_png([], tmp_path / "curves.png", "empty")
    assert (tmp_path / "curves.png").stat().st_size > 0
