"""Which executor computes the layers, in which form, and what a training step keeps: pure functions of sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config.schema.model import Model as ModelConfig
from ..config.schema.model import SequenceKernel
from ..memory.choose import choose_form, choose_recurrent_form
from .fused.planning import TILE_NUMBERS, FusedPlan, plan, refusal
from .geometry import Geometry

# Up to this many tokens all scores at once are the better form on CUDA.
PROMOTED_LENGTH = 2048


@dataclass(frozen=True)
class ExecutorChoice:
    """An executor ("fused" or "composed"), its form, the tokens it takes at a time, and why.

    Attributes:
        plan: that of the fused executor.
        promoted: a form that takes the place of the configured executor, and is recorded as an override.
    """

    name: str
    form: str
    tile: int
    reason: str
    plan: FusedPlan | None = None
    promoted: str | None = None

    @property
    def value(self) -> str:
        """As it is printed and recorded."""
        return f"{self.name}/{self.form}, {self.tile} tokens a tile"


def choose_executor(
    config: ModelConfig,
    geometry: Geometry,
    *,
    rows: int,
    length: int,
    device: str,
    element_size: int,
    overridden: bool = False,
    stored: str | None = None,
) -> ExecutorChoice:
    """What computes the layers of a call with `rows` x `length` tokens.

    Args:
        device: type of the device.
        element_size: bytes per number of the products.
        overridden: whether the kernel is an explicit override, which is never promoted.
        stored: the recorded value of a run that goes on; its executor is taken again.
    """
    found = _choose(
        config,
        geometry,
        rows=rows,
        length=length,
        device=device,
        element_size=element_size,
        overridden=overridden,
        stored=stored,
    )
    if not overridden:
        return found
    key, override = "model.sequence_kernel", "training.sequence_kernel_override"
    return replace(found, reason=found.reason.replace(key, override))


def _choose(
    config: ModelConfig,
    geometry: Geometry,
    *,
    rows: int,
    length: int,
    device: str,
    element_size: int,
    overridden: bool,
    stored: str | None,
) -> ExecutorChoice:
    """`choose_executor`, with the configured key in its reasons."""
    asked = config.sequence_kernel.executor
    if config.sequence_kernel.memory_system != "linear_attention":
        form = choose_recurrent_form(length, rows * geometry.heads * geometry.neurons, asked)
        return ExecutorChoice("composed", form.form, form.tile, form.reason)
    keys = geometry.neurons * geometry.key_factor
    why = refusal(asked, device)
    if why is None and stored is not None and stored.startswith("composed/"):
        why = "as when the run was created"
    dense_before = stored is None or stored.startswith("composed/dense")
    if dense_before and promotes(config.sequence_kernel, device, length, overridden=overridden):
        promoted = f"{why}; up to {PROMOTED_LENGTH} tokens of linear attention take all scores at once there"
        return ExecutorChoice("composed", "dense", length, promoted, promoted="dense")
    if why is not None:
        form = choose_form(length, keys, geometry.width, forced=asked)
        return ExecutorChoice("composed", form.form, form.tile, f"{why}; {form.reason}")
    cut = plan(
        rows,
        length,
        keys,
        geometry.width,
        heads=geometry.heads,
        element_size=element_size,
        decays=config.rotary_embedding == "alibi",
        forced=asked,
    )
    return ExecutorChoice("fused", cut.form, cut.chunk, cut.reason, cut)


def promotes(kernel: SequenceKernel, device: str, length: int, *, overridden: bool) -> bool:
    """Whether short calls of linear attention, as it comes, take the dense form on this type of device."""
    return (
        not overridden
        and device == "cuda"
        and kernel.memory_system == "linear_attention"
        and kernel.executor in ("auto", "reference")
        and length <= PROMOTED_LENGTH
    )


def step_bytes(
    choice: ExecutorChoice,
    geometry: Geometry,
    *,
    rows: int,
    length: int,
    recompute: bool,
    element_size: int,
    dropout: bool,
    spans: int = 1,
    carries: bool = False,
) -> int:
    """Bytes that a training step needs beyond weights, gradients and moments: an estimate from what is kept.

    Args:
        length: tokens of a call.
        spans: calls whose graphs live at a time (the window of truncated backpropagation).
        carries: whether a state goes into a call or comes out of it: it is there as it was and as it is taken in, once
            per span, and its gradient.
    """
    call = _call_bytes(
        choice,
        geometry,
        rows=rows,
        length=length,
        recompute=recompute,
        element_size=element_size,
        dropout=dropout,
    )
    states = 2 * (spans + 1) * geometry.state_bytes(rows, max(element_size, 4)) if carries else 0
    return spans * call + states


def _call_bytes(
    choice: ExecutorChoice,
    geometry: Geometry,
    *,
    rows: int,
    length: int,
    recompute: bool,
    element_size: int,
    dropout: bool,
) -> int:
    """The bytes of one call and its backward pass.

    The fused layer keeps the stream, some states, and without recompute x, y, the scores and the reads. Alive at a
    time are five buffers of a tile, the state and its gradient in both types, the masks of a chunk, and the logits.
    """
    cut = choice.plan
    if cut is None:
        return geometry.activation_bytes(
            rows,
            length,
            recompute=recompute,
            tile=choice.tile,
            element_size=element_size,
            dropout=dropout,
        )
    wide = max(element_size, 4)
    heads, width, factor = geometry.heads, geometry.width, geometry.key_factor
    chunks = -(-length // cut.chunk)
    stream = rows * length * width * wide
    state = rows * heads * geometry.neurons * factor * width * wide
    kept_states = 0 if chunks == 1 else (chunks - 1) // cut.keep_every if cut.keep_every else 1
    total = geometry.layers * (6 * stream + kept_states * state)
    tokens = rows * length * heads
    if not recompute:
        scores = tokens * (cut.chunk + 1) // 2 * element_size
        reads = tokens * width * wide
        total += geometry.layers * (scores + reads)
        total += sum(2 * tokens * neurons * element_size for neurons in geometry.layer_neurons)
    tile = min(max(TILE_NUMBERS, cut.chunk * geometry.neurons), tokens * geometry.neurons)
    total += (5 + 2 * (factor - 1)) * tile * element_size
    if chunks > 1:
        total += state * (2 + cut.keep_every) + 2 * state * element_size // wide
    if dropout:
        total += cut.rows * cut.chunk * heads * geometry.neurons
    return total + 2 * rows * length * geometry.vocab_size * wide
