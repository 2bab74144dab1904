"""Transferred weights mixed with reference ones, in a fixed order.

With M the transferred tensors and R the reference (the interface checkpoint, where there is one, else the fresh
weights), over the backbone: encoder, encoder_v, decoder, the norm's and the memory's parameters.

    1. match_fresh_rms        M <- M rms(R) / rms(M)      (not where either is 0 or not finite)
    2. backbone_blend_alpha   M <- a M + (1 - a) R
    3. fresh_top_heads n      encoder, encoder_v, time_decay of the last n heads <- R
    4. decoder_blend_alpha, norm_blend_alpha               the same as 2, of these
    5. preserve_fresh_decoder, preserve_fresh_norm         <- R

Frequencies and slopes of positions are constants, and stay with the encoders that were trained with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping

from torch import Tensor

from ...config.schema.init_transfer import InitTransfer
from .report import Fates

CONSTANTS = ("memory.frequencies", "memory.slopes")
_DECAY = "memory.time_decay"
_SILENT = 1e-8


def backbone(names: Iterable[str]) -> list[str]:
    """Of the names of a model's tensors, those of the backbone that blend, in their order."""
    alone = ("encoder", "encoder_v", "decoder")
    return [
        name
        for name in names
        if name in alone or (name.startswith(("norm.", "memory.")) and name not in CONSTANTS)
    ]


def uses_reference(options: InitTransfer) -> bool:
    """Whether any of the options needs the reference's backbone."""
    shares = (options.backbone_blend_alpha, options.decoder_blend_alpha, options.norm_blend_alpha)
    wishes = (options.match_fresh_rms, options.preserve_fresh_decoder, options.preserve_fresh_norm)
    return any(wishes) or options.fresh_top_heads is not None or any(share is not None for share in shares)


def adapt(
    tensors: MutableMapping[str, Tensor],
    reference: Mapping[str, Tensor],
    options: InitTransfer,
    fates: Fates,
    other: str,
) -> None:
    """Change `tensors` as the options say. `other`: what the reference is called."""
    names = [name for name in backbone(tensors) if name in reference]
    norms = [name for name in names if name.startswith("norm.")]
    if options.match_fresh_rms:
        for name in names:
            _match(name, tensors, reference, fates)
    _blend(names, options.backbone_blend_alpha, tensors, reference, fates, other)
    if options.fresh_top_heads is not None:
        count = options.fresh_top_heads
        for name in (_DECAY, "encoder", "encoder_v"):
            if name in names:
                changed = tensors[name].double().clone()
                changed[-count:] = reference[name][-count:].to(changed)
                tensors[name] = changed
                fates.add(name, f"{other} in the last {count} head{'s' if count > 1 else ''}")
    _blend(["decoder"], options.decoder_blend_alpha, tensors, reference, fates, other)
    _blend(norms, options.norm_blend_alpha, tensors, reference, fates, other)
    for wanted, replaced in (
        (options.preserve_fresh_decoder, ["decoder"]),
        (options.preserve_fresh_norm, norms),
    ):
        for name in replaced if wanted else ():
            tensors[name] = reference[name]
            fates.begin(name, other)


def blended(own: Tensor, other: Tensor, share: float) -> Tensor:
    """share own + (1 - share) other, in float64."""
    return share * own.double() + (1 - share) * other.to(own.device).double()


def _blend(
    names: Iterable[str],
    share: float | None,
    tensors: MutableMapping[str, Tensor],
    reference: Mapping[str, Tensor],
    fates: Fates,
    other: str,
) -> None:
    if share is None:
        return
    for name in names:
        tensors[name] = blended(tensors[name], reference[name], share)
        fates.add(name, f"blended {share:g} with {1 - share:g} {other}")


def _match(
    name: str, tensors: MutableMapping[str, Tensor], reference: Mapping[str, Tensor], fates: Fates
) -> None:
    own, wanted = (float(one.double().square().mean().sqrt()) for one in (tensors[name], reference[name]))
    # a reference of zeros (a bias, say) has no size to take over
    if math.isfinite(own) and math.isfinite(wanted) and own > _SILENT and wanted > _SILENT:
        tensors[name] = tensors[name].double() * (wanted / own)
        fates.add(name, f"scaled by {wanted / own:.3g}")
