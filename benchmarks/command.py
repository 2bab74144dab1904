"""The command: which sections run, at which sizes, and what becomes of the results."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from . import record
from .carried import carried
from .conditions import conditions, sentence
from .decoding import LENGTHS, decoding, drifting
from .memories import memories
from .memory import FLAT_LENGTHS, flatness, memory
from .record import Report
from .single_tokens import single_tokens
from .sizes import LONG, SHORT, default, small
from .startup import startup
from .training import training
from .yardstick import yardstick

Options = argparse.Namespace


@dataclass(frozen=True)
class Section:
    """Something that can be measured by itself.

    Attributes:
        full: the whole of it.
        quick: a part of it in about a minute, with ratios under the same names; None where there is none.
        usual: whether it runs without being named.
    """

    full: Callable[[Options], Report]
    quick: Callable[[Options], Report] | None = None
    usual: bool = True


def _memory(options: Options) -> Report:
    return _joined(memory(SHORT), flatness(FLAT_LENGTHS))


def _decoding(options: Options) -> Report:
    sizes = small(1, 1), default(1, 1)
    one = [decoding(size, LENGTHS, options.rounds) for size in sizes]
    many = [
        decoding(size, lengths, options.rounds, streams=8)
        for size, lengths in zip(sizes, (LENGTHS[:3], LENGTHS[:2]), strict=True)
    ]
    return _joined(*one, *many, drifting(sizes[0]))


def _joined(*reports: Report) -> Report:
    ratios = {key: value for report in reports for key, value in report.ratios.items()}
    return Report("\n\n".join(report.text for report in reports), ratios)


SECTIONS = {
    "training": Section(
        lambda options: training(SHORT, options.rounds),
        lambda options: training(SHORT[:2], min(options.rounds, 3), dropout=False),
    ),
    "memory": Section(_memory, lambda options: memory(SHORT[:1])),
    "decoding": Section(
        _decoding, lambda options: decoding(small(1, 1), LENGTHS[:2], min(options.rounds, 3))
    ),
    "startup": Section(lambda options: startup(options.rounds)),
    "long training": Section(
        lambda options: training(LONG, min(options.rounds, 3), dropout=False), usual=False
    ),
    "long memory": Section(lambda options: memory(LONG), usual=False),
    "yardstick": Section(lambda options: yardstick(options.text, options.seeds, options.set), usual=False),
    "memories": Section(lambda options: memories(options.text, options.seeds, options.set), usual=False),
    "single tokens": Section(lambda options: single_tokens(options.rounds), usual=False),
    "carried": Section(lambda options: carried(options.text, options.seeds, options.set), usual=False),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1 when --check finds something slower or larger than recorded, else 0."""
    options = _parser().parse_args(arguments)
    found = conditions()
    print(sentence(found), flush=True)
    names = _chosen(options)
    here, compared, slower = record.machine(found), [], []
    for name in names:
        print(f"\n{name}:", flush=True)
        section = SECTIONS[name]
        quick = options.quick or options.check
        report = section.quick(options) if quick and section.quick else section.full(options)
        print(f"\n{report.text}", flush=True)
        if options.check and (known := record.recorded().get(here, {}).get(name)) is not None:
            compared.append(name)
            print(f"compared with what was recorded: {sentence(known['conditions'])}")
            slower += [f"{name}, {line}" for line in record.shortfalls(report.ratios, known["ratios"])]
        elif options.check:
            print(f"{name}: nothing recorded on a machine like this one ({here}), so nothing to compare with")
        elif not quick and not options.no_write:
            record.keep(name, report, found)
    if options.check:
        for line in slower:
            print(f"below {record.TOLERATED:.0%} of what was recorded: {line}")
        if slower:
            print(f"check: {len(slower)} below what was recorded")
        elif compared:
            print(f"check: nothing below what was recorded in {', '.join(compared)}")
        else:
            print("check: nothing was compared; measure without --check to record this machine")
    return 1 if slower else 0


def _chosen(options: Options) -> list[str]:
    """The sections that were named, else the usual ones, with --long those too; quick ones only where asked."""
    if options.only:
        return list(options.only)
    names = [name for name, section in SECTIONS.items() if section.usual]
    if options.long:
        names += [name for name in SECTIONS if name.startswith("long ")]
    if options.quick or options.check:
        names = [name for name in names if SECTIONS[name].quick is not None]
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure against plain implementations; write docs/results.md and benchmarks/recorded.json.",
    )
    parser.add_argument("--only", type=_names, help=f"sections, with commas: {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every contestant (5)")
    parser.add_argument(
        "--quick", action="store_true", help="a minute or two of the small sizes; writes nothing"
    )
    parser.add_argument("--long", action="store_true", help="T = 8192 too: minutes, and 10 GB")
    parser.add_argument(
        "--check", action="store_true", help="as --quick, then compare with what was recorded"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument(
        "--text", metavar="FILE", help="tiny Shakespeare, for the yardstick; else it is fetched"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each model of the yardstick (3)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="for the yardstick's recipe"
    )
    return parser


def _names(text: str) -> list[str]:
    names = [name.strip().replace("-", " ") for name in text.split(",")]
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"{name}: no such section; there are {', '.join(SECTIONS)}")
    return names
