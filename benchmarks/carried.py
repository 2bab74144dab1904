"""What carrying the state is worth: the recipe `shakespeare-carried`, and the same one with states that start anew.

Both train in turn, seed by seed, on the same blocks in the same order. Each is scored as it was trained (the carried
run with its state carried through the whole validation part, the other one in windows from an empty state) and the
other way round; and a probe scores the last weights of both with a living and an emptied state, by distance.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from wyrmling.training import load_run, probe
from wyrmling.training.probing import Distance

from . import harness
from .record import Report
from .yardstick import HEADER, Outcome, row, text_settings, trained

RECIPE = "shakespeare-carried"
CARRIED, RESET = "state carried", "state reset"
SETTINGS = {CARRIED: [], RESET: ["training.tbptt_persist_across_steps=false"]}
PERIOD, ROWS = 2048, 8  # forty stretches of the validation part: enough for an interval


def carried(text: str | None, seeds: int, extra: list[str]) -> Report:
    """Train both, compare, and probe.

    Args:
        text: the file of tiny Shakespeare; None lets the recipe fetch it.
        extra: more `--set` texts for both.
    """
    data = text_settings(text)
    outcomes: dict[str, list[Outcome]] = {who: [] for who in SETTINGS}
    probes: dict[str, list[list[Distance]]] = {who: [] for who in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            for who, settings in SETTINGS.items():
                place = Path(folder, who.replace(" ", "-"))
                run = trained(RECIPE, place, [*data, *settings, *extra], seed, who=who)
                outcomes[who].append(run.outcome)
                probes[who].append(probe(load_run(run.path.name, root=place), period=PERIOD, rows=ROWS))
                print(" | ".join(row(run.outcome)), flush=True)
    return _report(outcomes, probes)


def own(outcome: Outcome) -> float:
    """Nats per character, scored as the run was trained."""
    return outcome.losses[CARRIED] if outcome.who == CARRIED else next(iter(outcome.losses.values()))


def _report(outcomes: dict[str, list[Outcome]], probes: dict[str, list[list[Distance]]]) -> Report:
    losses = {who: [own(outcome) for outcome in found] for who, found in outcomes.items()}
    means = {who: statistics.mean(found) for who, found in losses.items()}
    lines = [
        f"{who} {means[who]:.3f} ({min(found):.3f} to {max(found):.3f})" for who, found in losses.items()
    ]
    margin = means[RESET] - means[CARRIED]
    rows = [row(outcome) for pair in zip(*outcomes.values(), strict=True) for outcome in pair]
    text = (
        "Tiny Shakespeare, the last tenth, each run scored as it was trained; nats per character, mean and range over "
        f"the seeds: {'; '.join(lines)}. Carrying the state is worth {margin:.3f}.\n\n{harness.table(HEADER, rows)}\n\n"
        f"The same weights with a living state and with one that is emptied every {PERIOD} characters, by distance "
        "from that point; the gain is emptied - living in nats per character, with its 95 % interval, seed by seed:\n\n"
        f"{_probe_table(probes)}"
    )
    return Report(text, {"loss, state reset / state carried": means[RESET] / means[CARRIED]})


def _probe_table(probes: dict[str, list[list[Distance]]]) -> str:
    seeds = len(next(iter(probes.values())))
    header = ["trained with", "distance", "living", "emptied", *(f"gain, seed {i + 1}" for i in range(seeds))]
    rows = []
    for who, found in probes.items():
        for distances in zip(*found, strict=True):
            rows.append(
                [
                    who,
                    f"{distances[0].after + 1:,} to {distances[0].upto:,}",
                    f"{statistics.mean(d.live for d in distances):.3f}",
                    f"{statistics.mean(d.reset for d in distances):.3f}",
                    *(f"{d.gain:+.3f} ± {d.interval:.3f}" for d in distances),
                ]
            )
    return harness.table(header, rows)
