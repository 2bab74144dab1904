"""Names that can be a directory's on every system, and that leave random generators alone."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.errors import ConfigError
from wyrmling.runs import names


def test_every_name_that_can_be_drawn_is_allowed() -> None:
    for adjective, noun in itertools.product(names._ADJECTIVES, names._NOUNS):
        assert names.checked_name(f"{adjective}-{noun}", "drawn") == f"{adjective}-{noun}"


def test_the_words_are_many_and_different() -> None:
    for words in (names._ADJECTIVES, names._NOUNS):
        assert len(set(words)) == len(words) >= 80
        assert all(word.isascii() and word.islower() and word.isalpha() for word in words)


def test_candidates_are_random_names_then_the_clock() -> None:
    drawn = list(itertools.islice(names.candidate_names(), names.TRIES + 2))
    assert all("-" in name and not name.startswith("run-") for name in drawn[: names.TRIES])
    first, second = (int(name.removeprefix("run-")) for name in drawn[names.TRIES :])
    assert second == first + 1


def test_drawing_a_name_leaves_the_generators_of_others_alone() -> None:
    random.seed(5)
    before = random.getstate()
    names.random_name()
    assert random.getstate() == before


@given(st.text("aZ09._- /\\:\né", max_size=6))
def test_what_is_allowed_is_one_plain_path_component(text: str) -> None:
    with contextlib.suppress(ConfigError):
        name = names.checked_name(text, "here")
        assert name == text
        assert name.isascii()
        assert not set(name) & set('/\\:*?"<>| \t\n')
        assert not name.startswith((".", "-"))
        assert not name.endswith(".")


@pytest.mark.parametrize(
    "name", ["", "latest", "a/b", "..", ".x", "a\nb", "a b", "é", "aux", "Con.x", "x.", "a" * 201]
)
def test_a_name_that_is_none_is_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=r"here = .* cannot be a run's name") as caught:
        names.checked_name(name, "here")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["a", "amber-wyvern", "2024-05-01_try.3", "A" * 200, "console", "com10", "nullify"]
)
def test_ordinary_names_are_allowed(name: str) -> None:
    assert names.checked_name(name, "here") == name
