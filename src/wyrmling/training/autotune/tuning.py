"""`[runtime.startup_autotune]`: the largest micro-batch whose training step fits in the memory, found by trying.

Each number of rows is tried by a process of its own (`batch_probe`), which takes real steps: what runs out of memory
there ends that process, and counts as not fitting. What was found is a choice of the run, `batch_size`: recorded,
and taken again when the run goes on, without another try.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...config import Config
from ...config.rules import resolve_gradient_accumulation
from ...data.dataset import Dataset
from ...errors import ConfigError, DataError, UserError, WyrmlingError
from ...model import Geometry
from ...runs import Choice
from ...watch import quantities
from ...watch.device_memory import DeviceMemory
from ...watch.events import Message
from ..machine import KEPT, allocator, choose_machine
from ..plan import Plan
from ..session import Parts, vocabulary_of
from .batch_search import bounds, largest_fitting, nearest_to_target

TABLE = "runtime.startup_autotune"
CHOICE = "batch_size"
REPORT = "startup_autotune.json"
MIB = 1 << 20
# What a run needs besides its steps: data, validation, the buffers of a checkpoint. A step fits in the rest.
MARGIN = 0.1
# Chosen once, before the first probe, so that all probes and the run agree.
SETTLED = ("device", "dtype", "threads")

Request = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True)
class Probe:
    """What came of trying a number of rows.

    Attributes:
        status: "fit", "over_target", "out_of_memory", "died" (a signal ended the process), "refused" (a rule or the
            data forbids it).
        peak, in_use: bytes; None where nobody lived to tell.
    """

    rows: int
    status: str
    peak: int | None = None
    in_use: int | None = None
    tokens_per_second: float | None = None
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the report; memory in MiB."""
        return {
            "batch_size": self.rows,
            "reserved_mb": _mib(self.peak),
            "in_use_mb": _mib(self.in_use),
            "fit_target": self.status == "fit",
            "status": self.status,
            "tokens_per_second": self.tokens_per_second,
            "detail": self.detail,
        }

    def describe(self) -> str:
        """One line."""
        facts = [f"{_rows(self.rows)}: {self.status.replace('_', ' ')}"]
        if self.peak is not None:
            facts.append(f"peak {quantities.size(self.peak)}")
        if self.tokens_per_second is not None:
            facts.append(f"{quantities.count(self.tokens_per_second)} tokens/s")
        if self.detail:
            facts.append(self.detail)
        return ", ".join(facts)


@dataclass(frozen=True)
class Tuned:
    """A configuration with the rows that were found for it.

    Attributes:
        config: with `training.batch_size` in it.
        stored: choices that `build_parts` takes as made.
        choices: this one, and those that were made before the search.
        report: for the record; None where nothing was searched.
    """

    config: Config
    stored: Mapping[str, str] | None = None
    choices: tuple[Choice, ...] = ()
    report: Mapping[str, Any] | None = None

    def finish(self, parts: Parts, asked: Config) -> Parts:
        """Parts that remember what was asked for, and what was chosen for it and why."""
        made = {choice.name: choice for choice in self.choices}
        found = CHOICE in made
        choices = [made.pop(choice.name, choice) for choice in parts.choices]
        if found:  # the number of rows comes before what follows from it
            place = next(i for i, choice in enumerate(choices) if choice.name == "batch")
            reason = choices[place].reason.replace("as configured", f"rows as chosen ({CHOICE})")
            choices[place : place + 1] = [made.pop(CHOICE), replace(choices[place], reason=reason)]
        return replace(parts, choices=(*choices, *made.values()), asked=asked, autotune=self.report)


def tune(
    config: Config,
    dataset: Dataset,
    stored: Mapping[str, str] | None,
    tell: Callable[[Message], None],
    ask: Callable[[Request], Answer] | None = None,
) -> Tuned:
    """Find the rows of a micro-batch, or take the recorded ones; nothing changes where the search is off.

    Args:
        stored: the choices of a run that goes on; None for a new one.
        ask: tries a number of rows; None: `ask_process`.
    Raises:
        ConfigError: not even the smallest number of rows fits, or free memory is not known here.
        DataError: the text has too few blocks for the smallest number of rows.
        WyrmlingError: a probe failed for another reason than memory.
    """
    if stored is not None and CHOICE in stored:
        choice = Choice(CHOICE, stored[CHOICE], "as when the run was created")
        return Tuned(as_recorded(config, stored), stored, (choice,))
    if stored is not None or not config.runtime.startup_autotune.enabled:
        return Tuned(config, stored)
    return _Search(config, dataset, tell, ask or ask_process).run()


def with_rows(config: Config, rows: int) -> Config:
    """The configuration with another `training.batch_size`."""
    return config.model_copy(update={"training": config.training.model_copy(update={"batch_size": rows})})


def as_recorded(config: Config, recorded: Mapping[str, str]) -> Config:
    """The configuration with the rows that a run's choices (name -> value) name; unchanged where none were chosen."""
    return with_rows(config, int(recorded[CHOICE])) if CHOICE in recorded else config


class _Search:
    """One search: asks about numbers of rows, keeps what came of each.

    What is measured once is measured when it is made: the device, the type of products, the threads, and from free
    memory the target.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        tell: Callable[[Message], None],
        ask: Callable[[Request], Answer],
    ) -> None:
        self.config, self.dataset, self.tell, self.ask = config, dataset, tell, ask
        self.settings, training = config.runtime.startup_autotune, config.training
        self.wanted = training.target_effective_batch_size
        self.low, self.high = bounds(
            training.batch_size, self.settings.min_batch_size, self.settings.max_batch_size, self.wanted
        )
        self.probes: list[Probe] = []
        smallest = with_rows(config, self.low)
        self.tokens = _tokens(smallest, Plan.of(smallest, dataset))
        self.vocabulary = vocabulary_of(config, dataset)
        # a probe is too short for compiled kernels to pay
        self.compiling = {} if config.runtime.compile == "on" else {"kernels": "eager"}
        geometry = Geometry.of(config.effective_model, self.vocabulary)
        machine = choose_machine(smallest, geometry, self.compiling, tokens=self.tokens)
        self.made = tuple(choice for choice in machine.choices if choice.name in SETTLED)
        self.settled = {choice.name: choice.value for choice in self.made}
        self.device = machine.device.type
        self.target = self._target(DeviceMemory(machine.device).available())

    def run(self) -> Tuned:
        """Search, and say what was found."""
        best = largest_fitting(self.low, self.high, self._fits, bisect=self.settings.binary_search)
        if best is None:
            raise self._nothing_fits()
        rows = nearest_to_target(best, self.low, self.wanted)
        if rows not in {probe.rows for probe in self.probes} and not self._fits(rows):
            rows = best
        choice = Choice(CHOICE, str(rows), self._reason(rows))
        config = with_rows(self.config, rows)
        return Tuned(config, self.settled, (*self.made, choice), self._report(config))

    def _target(self, available: int | None) -> int:
        if self.settings.target_device_memory_mb is not None:
            return self.settings.target_device_memory_mb * MIB
        if available is None:
            raise ConfigError(
                f"{TABLE}.target_memory_fraction: free memory is not known here; set "
                f"{TABLE}.target_device_memory_mb instead"
            )
        assert self.settings.target_memory_fraction is not None
        return int(self.settings.target_memory_fraction * available)

    def _fits(self, rows: int) -> bool:
        probe = self._probe(rows)
        self.probes.append(probe)
        self.tell(Message("info", "autotune", probe.describe()))
        return probe.status == "fit"

    def _probe(self, rows: int) -> Probe:
        config = with_rows(self.config, rows)
        try:
            plan = Plan.of(config, self.dataset)
        except DataError as error:
            return Probe(rows, "refused", detail=str(error))
        answer = self.ask(
            {
                "config": config.to_dict(),
                "vocab_size": self.vocabulary,
                "stored": {**self.settled, **self.compiling},
                "tokens": _tokens(config, plan),
                "total_steps": plan.total_steps,
                "target": self.target,
                "steps": self.settings.probe_steps,
                "keep_freed_memory": allocator().value == KEPT,
            }
        )
        peak, status = answer.get("peak"), answer["status"]
        if status == "done":
            assert peak is not None
            status = "fit" if peak <= (1 - MARGIN) * self.target else "over_target"
        return Probe(
            rows, status, peak, answer.get("in_use"), answer.get("tokens_per_second"), answer.get("detail")
        )

    def _nothing_fits(self) -> UserError:
        """Say what the smallest number of rows needs."""
        first = self.probes[0]
        if first.status == "refused":
            return ConfigError(str(first.detail))
        need = "more"
        if first.peak is not None:
            least = f"{math.ceil(first.peak / (1 - MARGIN) / MIB):,} MiB"
            need = least if first.status == "over_target" else f"more than {least}"
        key = "target_device_memory_mb" if self.settings.target_device_memory_mb else "target_memory_fraction"
        smaller = "" if first.rows == 1 else f" or {TABLE}.min_batch_size"
        keeps = self.config.runtime.activation_memory != "recompute"
        return ConfigError(
            f"{TABLE}.{key}: a training step of {_rows(first.rows)} does not fit in {self.target / MIB:,.0f} MiB, "
            f"it needs {need}; raise the target, or lower training.block_size{smaller}"
            + (', or set runtime.activation_memory = "recompute"' if keeps else "")
        )

    def _reason(self, rows: int) -> str:
        found = {probe.rows: probe for probe in self.probes}
        peak, target = quantities.size(found[rows].peak), quantities.size(self.target)
        words = [f"a step of {_rows(rows)} needs {peak} of {target}"]
        above = min((probe.rows for probe in self.probes if probe.status != "fit"), default=None)
        if above is not None:
            words.append(f"{_rows(above)}: {found[above].status.replace('_', ' ')}")
        if self.wanted is not None:
            made = rows * resolve_gradient_accumulation(rows, 1, self.wanted)
            words.append(f"{made} rows a step" + ("" if made == self.wanted else f" for {self.wanted}"))
        return "; ".join(words)

    def _report(self, config: Config) -> dict[str, Any]:
        training = config.training
        accumulation = resolve_gradient_accumulation(
            training.batch_size, training.gradient_accumulation_steps, self.wanted
        )
        return {
            "backend_name": self.device,
            "target_device_memory_mb": _mib(self.target),
            "safety_margin": MARGIN,
            "target_effective_batch_size": self.wanted,
            "min_batch_size": self.low,
            "max_batch_size": self.high,
            "probe_steps": self.settings.probe_steps,
            "resolved_batch_size": training.batch_size,
            "resolved_gradient_accumulation_steps": accumulation,
            "resolved_effective_batch_size": training.batch_size * accumulation,
            "probes": [probe.to_json() for probe in self.probes],
        }


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _tokens(config: Config, plan: Plan) -> int:
    return plan.total_steps * plan.global_rows * config.training.block_size


def ask_process(request: Request, command: Sequence[str] | None = None) -> Answer:
    """Let a new process take the steps, and wait for what it says.

    Args:
        command: what is started; None: this Python with `batch_probe`.
    Returns: its answer, or `{"status": "died"}` where a signal ended it.
    Raises:
        WyrmlingError: it failed without a word, and not for lack of memory.
    """
    words = command or (sys.executable, "-m", "wyrmling.training.autotune.batch_probe")
    source = str(Path(__file__).parents[3])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, env=environment
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                output = _converse(process.stdin, process.stdout, request)
            except BaseException:
                process.kill()
                raise
        complaints.seek(0)
        said = complaints.read().decode("utf-8", errors="replace").strip().splitlines()
    if output:
        answer: Answer = json.loads(output[-1])
        return answer
    code = process.returncode
    if code < 0 or code >= 1 << 31:  # Windows reports a crash as a large number
        return {
            "status": "died",
            "detail": f"ended by signal {-code}" if code < 0 else f"crashed ({code:#x})",
        }
    last = said[-1] if said else "it said nothing"
    raise WyrmlingError(f"a probe of {TABLE} failed with code {code}: {last}")


def _converse(asks: Any, answers: Any, request: Request) -> list[bytes]:
    """Write the request and read to the end; the pipe stays open meanwhile, so that the other side sees us go."""
    try:
        asks.write(json.dumps(request).encode() + b"\n")
        asks.flush()
    except BrokenPipeError:  # it died before it could read; its code says how
        with contextlib.suppress(BrokenPipeError):
            asks.close()
    lines: list[bytes] = answers.read().splitlines()
    return lines


def _mib(size: int | None) -> float | None:
    return None if size is None else round(size / MIB, 1)
