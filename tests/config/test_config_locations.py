"""The line of every key of a TOML text."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config.locations import KeyPath, key_lines

KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True), st.text(alphabet="a.#\"'=[]{} é\n\\", max_size=5)
)
SCALARS = st.sampled_from(
    [
        "1",
        "-2.5e3",
        "true",
        "nan",
        '"# no comment ] } ="',
        "'\\ [ { \" #'",
        '"""\nfirst\n"quoted" \\""" # x\nlast"""',
        '""""three quotes at the end"""""',
        "'''\n[table]\nkey = 'x' ''\n'''",
        "1979-05-27 07:32:00",
    ]
)


def paths_of(data: Any, path: KeyPath = ()) -> list[KeyPath]:
    inner: list[tuple[str | int, Any]] = []
    if isinstance(data, dict):
        inner = list(data.items())
    elif isinstance(data, list):
        inner = list(enumerate(data))
    return [path, *(found for key, child in inner for found in paths_of(child, (*path, key)))]


class Writer:
    """Writes TOML and remembers on which line each key was written."""

    def __init__(self) -> None:
        self.text = ""
        self.expected: dict[KeyPath, int] = {}

    def put(self, text: str) -> None:
        self.text += text

    def key(self, path: KeyPath) -> None:
        self.expected[path] = self.text.count("\n") + 1
        part = str(path[-1])
        bare = part.replace("-", "").replace("_", "").isalnum() and part.isascii()
        self.put(part if bare else json.dumps(part, ensure_ascii=False))

    def value(self, draw: st.DrawFn, path: KeyPath, depth: int) -> None:
        kind = draw(st.sampled_from(["scalar", "list", "table"])) if depth else "scalar"
        if kind == "scalar":
            self.put(draw(SCALARS))
        elif kind == "list":
            self.put("[")
            for index in range(draw(st.integers(0, 3))):
                self.put(draw(st.sampled_from(["", " ", "\n", " # note ] \n\t"])))
                self.expected[(*path, index)] = self.text.count("\n") + 1
                self.value(draw, (*path, index), depth - 1)
                self.put(draw(st.sampled_from([",", " ,", "\n,"])))
            self.put("]")
        else:
            keys = draw(st.lists(KEYS, max_size=3, unique=True))
            self.put("{")
            for index, key in enumerate(keys):
                self.put(", " if index else " ")
                self.key((*path, key))
                self.put(" = ")
                self.value(draw, (*path, key), depth - 1)
            self.put("}")

    def pairs(self, draw: st.DrawFn, table: KeyPath, keys: list[str]) -> None:
        for key in keys:
            self.put(draw(st.sampled_from(["", "\n", "# comment = 1\n", "\t"])))
            self.key((*table, key))
            self.put(draw(st.sampled_from(["=", " = "])))
            self.value(draw, (*table, key), 2)
            self.put(draw(st.sampled_from(["\n", " # [x]\n"])))


@st.composite
def documents(draw: st.DrawFn) -> Writer:
    writer = Writer()
    names = draw(st.lists(KEYS, max_size=8, unique=True))
    cut = draw(st.integers(0, len(names)))
    writer.pairs(draw, (), names[:cut])
    for name in names[cut:]:
        many = draw(st.booleans())
        for index in range(draw(st.integers(1, 2)) if many else 1):
            path: KeyPath = (name, index) if many else (name,)
            writer.expected.setdefault(path, writer.text.count("\n") + 1)
            writer.put("[[ " if many else "[")
            first = writer.expected.get((name,))
            writer.key((name,))
            writer.expected[(name,)] = first or writer.expected[(name,)]
            writer.put(" ]]\n" if many else "]\n")
            writer.pairs(draw, path, draw(st.lists(KEYS, max_size=3, unique=True)))
    return writer


@given(documents())
def test_every_key_and_item_is_found_on_the_line_where_it_is_written(document: Writer) -> None:
    found = key_lines(document.text)
    assert set(found) == {path for path in paths_of(tomllib.loads(document.text)) if path}
    assert found == document.expected


def test_dotted_keys_and_headers_name_every_table_on_the_way() -> None:
    lines = key_lines(
        "a.'b c'.d = 1\na.e = 2\n\n[x.y]\nz = 3\n[x.w]\n[[q.r]]\ns = 1\n[q.r.t]\nu = 1\n[[q.r]]\n"
    )
    assert lines[("a",)] == lines[("a", "b c")] == lines[("a", "b c", "d")] == 1
    assert lines[("a", "e")] == 2
    assert lines[("x",)] == lines[("x", "y")] == 4
    assert (lines[("x", "y", "z")], lines[("x", "w")]) == (5, 6)
    assert (lines[("q", "r")], lines[("q", "r", 0)], lines[("q", "r", 0, "s")]) == (7, 7, 8)
    assert lines[("q", "r", 0, "t", "u")] == 10
    assert lines[("q", "r", 1)] == 11
