"""The look of a report: one HTML page that needs nothing from anywhere else.

Colours follow the reader's light or dark setting. Every text from outside is escaped, and a policy in the
page's head forbids scripts and every connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from . import quantities


@dataclass(frozen=True)
class Card:
    """A headline number: what is shown, and the exact value it was made from (`data-value` in the page)."""

    key: str
    label: str
    text: str
    value: object
    note: str = ""


def page(title: str, lead: str, sections: Iterable[str]) -> str:
    """The whole document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<header><h1>{text(title)}</h1><p class="lead">{text(lead)}</p></header>\n'
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def cards(entries: Iterable[Card]) -> str:
    """The headline numbers, as a list of terms."""
    parts = [
        f'<div class="card"><dt>{text(card.label)}</dt>'
        f'<dd data-figure="{text(card.key)}" data-value="{text(repr(card.value))}">{text(card.text)}</dd>'
        + (f'<dd class="note">{text(card.note)}</dd>' if card.note else "")
        + "</div>"
        for card in entries
    ]
    return f'<dl class="cards">{"".join(parts)}</dl>'


def section(title: str, body: str, *, key: str) -> str:
    """A part of the page, with an anchor."""
    return f'<section id="{text(key)}"><h2>{text(title)}</h2>{body}</section>'


def figure(title: str, drawing: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    """A chart with its title; `legend` holds (role, label)."""
    keys = "".join(f'<span class="key {text(role)}">{text(label)}</span>' for role, label in legend)
    return f"<figure><figcaption>{text(title)}{keys}</figcaption>{drawing}</figure>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, marked: Iterable[int] = ()) -> str:
    """A table; the rows whose numbers are in `marked` stand out."""
    strong = set(marked)
    top = "".join(f"<th>{text(cell)}</th>" for cell in head)
    body = "".join(
        ('<tr class="changed">' if number in strong else "<tr>")
        + "".join(f"<td>{text(cell)}</td>" for cell in row)
        + "</tr>"
        for number, row in enumerate(rows)
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def fold(summary: str, body: str, *, opened: bool = False) -> str:
    """Something that the reader can open and close."""
    return f"<details{' open' if opened else ''}><summary>{text(summary)}</summary>{body}</details>"


def sample(caption: str, prompt: str, continuation: str) -> str:
    """Text of the model, the prompt told apart."""
    return (
        f'<figure class="sample"><figcaption>{text(caption)}</figcaption>'
        f"<pre><b>{text(prompt)}</b>{text(continuation)}</pre></figure>"
    )


def text(content: str) -> str:
    """Escaped for HTML, control characters and lone surrogates made visible."""
    return escape(quantities.printable(content, "utf-8"))


_STYLE = """
:root { color-scheme: light dark;
  --back: #fbfbfa; --face: #ffffff; --ink: #1c1f24; --dim: #667080; --rule: #e3e6ea;
  --train: #2563eb; --validation: #db2777; --other: #0f766e; --mark: #fff7e0; }
@media (prefers-color-scheme: dark) { :root {
  --back: #14161a; --face: #1c1f25; --ink: #e6e8eb; --dim: #98a2b0; --rule: #2e333b;
  --train: #74a4ff; --validation: #ff7ab8; --other: #4fd1b5; --mark: #2f2a1a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.6rem 0 0.9rem; }
.lead { color: var(--dim); margin: 0.3rem 0 1.6rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: 0.75rem;
  margin: 0; }
.card, figure, details { background: var(--face); border: 1px solid var(--rule); border-radius: 10px; }
.card { padding: 0.8rem 0.95rem; }
.card dt { color: var(--dim); font-size: 0.8rem; }
.card dd { margin: 0; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.card dd.note { color: var(--dim); font-size: 0.8rem; font-weight: 400; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr));
  gap: 0.9rem; }
.charts figure:first-child { grid-column: 1 / -1; }
figure { margin: 0; padding: 0.8rem 0.9rem 0.4rem; }
figcaption { font-size: 0.85rem; font-weight: 600; display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; }
.key { font-weight: 400; color: var(--dim); }
.key::before { content: ""; display: inline-block; width: 0.9em; height: 3px; border-radius: 2px;
  margin-right: 0.4em; vertical-align: middle; background: var(--other); }
.key.train::before { background: var(--train); }
.key.validation::before { background: var(--validation); }
.chart { width: 100%; height: auto; display: block; }
.chart .grid { stroke: var(--rule); }
.chart .resumed { stroke: var(--dim); stroke-dasharray: 3 4; }
.chart .tick { fill: var(--dim); font-size: 11px; font-variant-numeric: tabular-nums; }
.chart polyline { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.chart .train { stroke: var(--train); } .chart .validation { stroke: var(--validation); }
.chart .other { stroke: var(--other); } .chart .raw { opacity: 0.3; stroke-width: 1; }
.chart circle { stroke: none; } .chart circle.validation { fill: var(--validation); }
.sample { margin-bottom: 0.75rem; }
pre { margin: 0.5rem 0; font: 13.5px/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
pre b { color: var(--dim); }
details { margin: 0.75rem 0; padding: 0.6rem 0.9rem; }
summary { cursor: pointer; font-weight: 600; font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; margin: 0.5rem 0; }
th { text-align: left; color: var(--dim); font-weight: 500; }
th, td { padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid var(--rule); vertical-align: top;
  overflow-wrap: break-word; }
td:first-child { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 0.82rem; }
tr.changed td { background: var(--mark); }
@media print { body { background: none; } main { max-width: none; padding: 0; }
  figure { break-inside: avoid; } }
"""
