"""Which line of a TOML file gives which key.

`tomllib` says what a file holds, not where. `key_lines` walks the text once more and finds the lines. It
reads only text that `tomllib` has accepted, so it needs to know where keys, strings and brackets begin and
end, nothing more.
"""

from __future__ import annotations

import re
import tomllib

KeyPath = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}\n#]+")
_BLANK = re.compile(r"[ \t\r\n]*(?:#[^\n]*(?:\n[ \t\r\n]*|$))*")
_STRING_ENDS = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*"{3,5}', re.DOTALL),
    "'''": re.compile(r"(?:[^']|'(?!''))*'{3,5}", re.DOTALL),
    '"': re.compile(r'(?:[^"\\]|\\.)*"'),
    "'": re.compile(r"[^']*'"),
}


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (counted from 1) on which each key, table and list item of a valid TOML text is first named.

    Lists are numbered from 0: `a.b[2]` is `("a", "b", 2)`, for values and for arrays of tables alike.
    """
    return _Walk(text).run()


class _Walk:
    """A position in the text, and the lines found so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.counts: dict[KeyPath, int] = {}
        self._counted_to = 0
        self._line = 1

    def run(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self.skip_blank()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)
            self.skip_blank()
        return self.lines

    def line(self) -> int:
        """The line of the current position."""
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line

    def note(self, path: KeyPath) -> None:
        self.lines.setdefault(path, self.line())

    def skip_blank(self) -> None:
        """Step over spaces, line ends and comments."""
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def header(self) -> KeyPath:
        """Read `[a.b]` or `[[a.b]]`; return the path of the table that begins."""
        many = self.text.startswith("[[", self.at)
        self.at += 2 if many else 1
        parts = self.key()
        path: KeyPath = ()
        for position, part in enumerate(parts):
            path += (part,)
            self.note(path)
            if many and position == len(parts) - 1:
                self.counts[path] = self.counts.get(path, 0) + 1
            if path in self.counts:
                path += (self.counts[path] - 1,)
                self.note(path)
        self.at = self.text.index("]", self.at) + (2 if many else 1)
        return path

    def pair(self, table: KeyPath) -> None:
        """Read `a.b = value`."""
        path = table
        for part in self.key():
            path += (part,)
            self.note(path)
        self.at = self.text.index("=", self.at) + 1
        self.skip_blank()
        self.value(path)

    def key(self) -> list[str]:
        """Read a key and return its parts; quotes are taken off."""
        parts: list[str] = []
        while True:
            self.skip_blank()
            begin = self.at
            quote = self.text[begin]
            if quote in "\"'":
                self.string(quote)
                parts.extend(tomllib.loads(f"{self.text[begin : self.at]} = 0"))
            else:
                match = _BARE_KEY.match(self.text, begin)
                assert match is not None, "tomllib accepted a key that is not one"
                self.at = match.end()
                parts.append(match.group())
            self.skip_blank()
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def string(self, quote: str) -> None:
        """Step over a string that begins here."""
        match = _STRING_ENDS[quote].match(self.text, self.at + len(quote))
        assert match is not None, "tomllib accepted a string that does not end"
        self.at = match.end()

    def value(self, path: KeyPath) -> None:
        """Step over a value and note what lies inside it."""
        for quote in _STRING_ENDS:
            if self.text.startswith(quote, self.at):
                return self.string(quote)
        first = self.text[self.at]
        if first == "[":
            self.items(path, "]")
        elif first == "{":
            self.items(path, "}")
        else:
            match = _BARE_VALUE.match(self.text, self.at)
            self.at = match.end() if match else self.at + 1
        return None

    def items(self, path: KeyPath, closing: str) -> None:
        """Read the inside of a list or of an inline table."""
        self.at += 1
        index = 0
        self.skip_blank()
        while self.text[self.at] != closing:
            if closing == "}":
                self.pair(path)
            else:
                self.note((*path, index))
                self.value((*path, index))
                index += 1
            self.skip_blank()
            if self.text[self.at] == ",":
                self.at += 1
                self.skip_blank()
        self.at += 1
