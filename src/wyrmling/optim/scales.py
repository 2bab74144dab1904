"""Parts of the model that learn faster or slower than the rest, or not at all.

A part is a target; the targets cover every parameter once (`target_of`). In a run of T steps, with L = T - 1,
a = round(L start_fraction) and b = round(L end_fraction), halves up, the factor of optimizer step s (from 1) is with
i = s - 1

    initial for i <= a, else final for i >= b, else initial + (final - initial) (i - a) / (b - a)

Like a schedule it is a function of the step alone, so a resumed run goes on with it and nothing is saved.

In mode "learning_rate" the factor multiplies the learning rate, and with it the weight decay of a step. In mode
"gradient" it multiplies the gradient before that is measured and clipped. AdamW and Muon divide by the size of the
gradient, so there a constant factor of it all but cancels.

A factor of 0 freezes, in either mode: the parameter has no gradient in that step. So it counts in no norm, does not
decay, and its moments stay as they are; a parameter that was frozen from the first step starts afterwards as if that
were its first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.schema.init_transfer import InitTransfer
    from ..config.schema.scales import ModuleScale

Mode = Literal["learning_rate", "gradient"]
_TARGETS = {
    "embedding.weight": "embedding",
    "lm_head": "output_head",
    "encoder": "shared_lowrank_encoder",
    "encoder_v": "shared_lowrank_encoder",
    "decoder": "shared_lowrank_decoder",
    "memory.time_decay": "shared_lowrank_decay",
}


def target_of(name: str) -> str:
    """The target that a parameter of the model belongs to, by its name."""
    if name in _TARGETS:
        return _TARGETS[name]
    if name.startswith("norm."):
        return "normalization"
    return "mamba" if name.startswith("memory.") else "other_backbone"


@dataclass(frozen=True)
class Scale:
    """The factor of one part of the model.

    Attributes:
        part: as it is printed.
        names: of the parameters that it covers.
        initial, final: the factor before and after the line.
        start, end: steps, counted from 0, between which the line runs; where it has no length, `final` follows `start`.
    """

    part: str
    names: frozenset[str]
    mode: Mode
    initial: float
    final: float
    start: int = 0
    end: int = 0

    def at(self, step: int) -> float:
        """The factor of optimizer step `step` (the first is 1)."""
        index = step - 1
        if index <= self.start:
            return self.initial
        if index >= self.end:
            return self.final
        return self.initial + (self.final - self.initial) * ((index - self.start) / (self.end - self.start))

    def describe(self) -> str:
        """The whole of it, short."""
        what = f"{self.mode.replace('_', ' ')} of {self.part} x {self.initial:g}"
        if self.initial == self.final:
            return what
        if self.end <= self.start + 1:
            return f"{what} to step {self.start + 1}, then x {self.final:g}"
        return f"{what} to step {self.start + 1}, then in a line to x {self.final:g} at step {self.end + 1}"


class Scales:
    """All factors of a run; empty, it changes nothing."""

    def __init__(self, scales: Iterable[Scale] = ()) -> None:
        self._scales = tuple(scales)

    def __bool__(self) -> bool:
        return bool(self._scales)

    def apart(self, name: str) -> str:
        """The part of a parameter whose learning rate is scaled, else nothing: what keeps its group apart."""
        return next((s.part for s in self._scales if s.mode == "learning_rate" and name in s.names), "")

    def rates(self, step: int) -> dict[str, float]:
        """From a part to the factor of its learning rate at a step."""
        return {scale.part: scale.at(step) for scale in self._scales if scale.mode == "learning_rate"}

    def of_gradient(self, name: str, step: int) -> float:
        """What the gradient of a parameter is multiplied by at a step."""
        factors = (s.at(step) for s in self._scales if s.mode == "gradient" and name in s.names)
        return math.prod(factors)

    @torch.no_grad()
    def scale_gradients(self, parameters: Iterable[tuple[str, torch.nn.Parameter]], step: int) -> None:
        """Multiply the gradients of named parameters in place, and take away those of frozen ones."""
        factors = [(scale, scale.at(step)) for scale in self._scales]
        acting = [
            (s, factor) for s, factor in factors if factor == 0 or (s.mode == "gradient" and factor != 1)
        ]
        if not acting:
            return
        for name, parameter in parameters:
            for scale, factor in acting:
                if parameter.grad is None or name not in scale.names:
                    continue
                if factor == 0:
                    parameter.grad = None
                else:
                    parameter.grad.mul_(factor)

    def lasting(self) -> Scales:
        """Only what is frozen from the first step to the last: what never needs a moment."""
        return Scales(scale for scale in self._scales if scale.initial == scale.final == 0)

    def describe(self) -> str:
        """One line, as it is printed and recorded."""
        return "; ".join(scale.describe() for scale in self._scales)


def module_scales(tables: Sequence[ModuleScale], names: Iterable[str], total_steps: int) -> list[Scale]:
    """What `training.module_lr_scales` asks for, in a run of `total_steps` optimizer steps.

    Args:
        names: of the model's parameters.

    Raises:
        ConfigError: a target that covers none of them.
    """
    covered: dict[str, set[str]] = {}
    for name in names:
        covered.setdefault(target_of(name), set()).add(name)
    found = []
    for index, table in enumerate(tables):
        if table.target not in covered:
            raise ConfigError(
                f'training.module_lr_scales.{index}.target = "{table.target}" covers no parameter of this model; '
                f"it has {', '.join(sorted(covered))}"
            )
        members, line = frozenset(covered[table.target]), table.schedule
        if line is None:
            found.append(Scale(table.target, members, table.mode, table.scale, table.scale))
            continue
        last = max(1, total_steps) - 1
        start, end = (math.floor(last * part + 0.5) for part in (line.start_fraction, line.end_fraction))
        found.append(Scale(table.target, members, table.mode, table.scale, line.final_scale, start, end))
    return found


def backbone_scale(table: InitTransfer, names: Iterable[str]) -> list[Scale]:
    """What `backbone_grad_scale` asks for: a factor on what was transferred, in the first steps of a run.

    The backbone is everything but embedding and head, and but the norm and the decoder where they are fresh.

    Args:
        names: of the model's parameters.
    """
    factor, steps = table.backbone_grad_scale, table.backbone_grad_scale_steps
    if factor is None or steps is None:
        return []
    fresh = {"embedding", "output_head"}
    fresh |= {"normalization"} if table.preserve_fresh_norm else set()
    fresh |= {"shared_lowrank_decoder"} if table.preserve_fresh_decoder else set()
    members = frozenset(name for name in names if target_of(name) not in fresh)
    return [Scale("backbone", members, "gradient", factor, 1.0, steps - 1, steps - 1)]
