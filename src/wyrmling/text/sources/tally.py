"""What a pass over a source met that a person should know, and how it is told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..utf8 import count_invalid, find_invalid
from .content import count_controls

_SHOWN_NAMES = 3


@dataclass
class Tally:
    """Counts of one pass over a source."""

    documents: int = 0
    empty_documents: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_malformed: str = ""
    remarks: dict[str, tuple[int, str]] = field(default_factory=dict)
    spanning: int = 0
    longest_span: tuple[int, str] = (0, "")
    byte_order_marks: list[str] = field(default_factory=list)
    decoded_though_utf8: list[str] = field(default_factory=list)
    text_bytes: int = 0
    token_ids: int = 0
    nul: int = 0
    controls: int = 0
    invalid: int = 0
    crlf: int = 0
    replaced: int = 0
    separated: int = 0
    separator: bytes = b""
    limit_reached: int | None = None

    def count_text(self, data: bytes) -> None:
        """Count the bytes of a part of a text, and those of them that are none."""
        self.text_bytes += len(data)
        if b"\r" in data:  # far faster to find than the two
            self.crlf += data.count(b"\r\n")
        found = count_controls(data)
        if found:
            nul = data.count(b"\0")
            self.nul, self.controls = self.nul + nul, self.controls + found - nul
        if find_invalid(data) is not None:
            self.invalid += count_invalid(data)

    def line(self, names: Sequence[str], documents: int) -> str:
        """What was read, in numbers: files, documents, bytes or ids, and the share of bytes that are no text."""
        files = names[0] if len(names) == 1 else f"{len(names)} files ({listed(names)})"
        sizes = [counted(self.text_bytes, "byte")] if self.text_bytes else []
        sizes += [counted(self.token_ids, "token id")] if self.token_ids else []
        text = f"{files}: {', '.join([counted(documents, 'document'), *sizes])}"
        odd = [f"{self.nul:,} NUL"] if self.nul else []
        odd += [counted(self.controls, "control character")] if self.controls else []
        odd += [f"{self.invalid:,} not UTF-8: is dataset.encoding another?"] if self.invalid else []
        if odd:
            share = (self.nul + self.controls + self.invalid) / self.text_bytes
            text += f", of which {share:.2%} are no text ({', '.join(odd)})"
        return text

    def skip(self, kind: str, reason: str) -> None:
        """Count a record that is left out by the kind of its fault; the first reason is kept."""
        self.skipped[kind] += 1
        self.first_malformed = self.first_malformed or reason

    def remark(self, what: str, place: str) -> None:
        """Count something odd that was taken as it is; the first place is kept."""
        count, first = self.remarks.get(what, (0, place))
        self.remarks[what] = count + 1, first

    def span(self, lines: int, place: str) -> None:
        """Count a record that quotes carry over several lines; the longest is kept."""
        self.spanning += 1
        self.longest_span = max(self.longest_span, (lines, place), key=lambda span: span[0])

    def skips(self) -> str:
        """How many records were left out, by kind, the most frequent first; nothing when none was."""
        if not self.skipped:
            return ""
        kinds = sorted(self.skipped.items(), key=lambda item: (-item[1], item[0]))
        text = f"{counted(self.skipped.total(), 'record')} skipped: "
        text += ", ".join(f"{number} {kind}" for kind, number in kinds)
        return f"{text}; the first: {self.first_malformed}"

    def sentences(self) -> list[str]:
        """One short line per fact, in a fixed order."""
        lines = []
        if self.byte_order_marks:
            lines.append(f"stripped a byte order mark from the start of {listed(self.byte_order_marks)}")
        if self.decoded_though_utf8:
            lines.append(
                f"{listed(self.decoded_though_utf8)}: would be valid UTF-8 too; check dataset.encoding"
            )
        if self.crlf:
            lines.append(
                f'{counted(self.crlf, "CR LF line end")} (kept, unless tokenizer.normalize has "newlines")'
            )
        if self.empty_documents:
            lines.append(f"{counted(self.empty_documents, 'empty document')} skipped")
        if self.skipped:
            lines.append(self.skips())
        if self.spanning:
            lines.append(
                f"{counted(self.spanning, 'record')} carried over several lines by quotes, the longest over "
                f"{self.longest_span[0]} ({self.longest_span[1]}); if quotes are plain characters there, "
                'set dataset.quote = "off"'
            )
        lines += [f"{what}: {count}, the first: {place}" for what, (count, place) in self.remarks.items()]
        if self.replaced:
            lines.append(f"{counted(self.replaced, 'invalid byte sequence')} replaced by U+FFFD")
        if self.separated:
            lines.append(
                f"documents are kept apart by {json.dumps(self.separator.decode())}, added to "
                f"{self.separated} of {self.documents} (dataset.document_separator)"
            )
        if self.limit_reached is not None:
            lines.append(f"stopped after max_records = {self.limit_reached}")
        return lines


def counted(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _SHOWN_NAMES
    text = ", ".join(names[:_SHOWN_NAMES])
    return f"{text} and {more} more" if more > 0 else text
