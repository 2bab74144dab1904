"""How many neurons each layer has.

Layer i of L has total_i neurons over all heads (N_i = total_i / n_head per head). Without a schedule all
layers have all neurons; with one, narrow layers use the first N_i neurons of each head.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .schema.model import GeometricFanout, LateLayerFanout

if TYPE_CHECKING:
    from .schema import Model


def schedule_totals(model: Model) -> dict[str, int]:
    """The totals that a schedule names, by their keys."""
    schedule = model.latent_fanout_schedule
    if isinstance(schedule, LateLayerFanout):
        return {"base_latent_total": schedule.base_latent_total}
    if isinstance(schedule, GeometricFanout):
        return {"min_latent_total": schedule.min_latent_total}
    return {}


def layer_totals(model: Model) -> tuple[int, ...]:
    """Neurons over all heads, layer by layer.

    `late_layer`: `base_latent_total` up to the last `last_layers` layers, which have all. `geometric`: from
    `min_latent_total` to all, layer i at min·(max/min)^(i/(L-1)), moved to the nearer multiple of
    lcm(n_embd, n_head) within [min, max], the lower one when both are equally near.
    """
    schedule, most, layers = model.latent_fanout_schedule, model.total_neurons, model.n_layer
    if isinstance(schedule, LateLayerFanout):
        wide_from = layers - schedule.last_layers
        return tuple(most if i >= wide_from else schedule.base_latent_total for i in range(layers))
    if isinstance(schedule, GeometricFanout) and layers > 1:
        least, step = schedule.min_latent_total, math.lcm(model.n_embd, model.n_head)
        inner = [_snap(least, most, i / (layers - 1), step) for i in range(1, layers - 1)]
        return (least, *inner, most)
    return (most,) * layers


def _snap(least: int, most: int, share: float, step: int) -> int:
    wanted = min(max(round(least * (most / least) ** share), least), most)
    lower = max(wanted // step * step, least)
    upper = min(lower + step, most)
    return lower if wanted - lower <= upper - wanted else upper
