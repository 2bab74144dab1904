"""Whatever a file holds, it becomes a configuration or one line of refusal."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.config import Config
from wyrmling.config.known import known_keys
from wyrmling.config.refusals import REFUSED_KEYS, REFUSED_VALUES, RENAMED_KEYS
from wyrmling.errors import ConfigError

KEYS = st.sampled_from([*known_keys(), *REFUSED_KEYS, *RENAMED_KEYS, "model.init", "what", "training.what"])
WORDS = [value for answers in REFUSED_VALUES.values() for value in answers] + [
    "none",
    "off",
    "",
    "local_text",
    "csv",
    "parquet",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "kind", "enabled", "path", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key in draw(st.lists(KEYS, max_size=4)):
        *parents, last = key.split(".")
        table = data
        for name in parents:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                break
            table = inner
        else:
            table[last] = draw(VALUES)
    return data


@settings(max_examples=400)
@given(tables())
def test_anything_is_read_or_refused_in_one_line(data: dict[str, Any]) -> None:
    try:
        config = Config.from_dict(data, "file")
    except ConfigError as error:
        message = str(error)
    else:
        message = "file: "
        assert Config.from_dict(config.to_dict()) == config
    assert message.startswith("file: ")
    assert "\n" not in message
