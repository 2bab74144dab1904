"""`[training]`: how long, how much at a time, how often, and from where."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from .base import CountingInt, FilePath, NonNegativeFloat, PositiveInt, Table
from .continual import ContinualBackprop
from .gdpo import Gdpo
from .init_transfer import InitTransfer
from .model import Kernel
from .scales import ModuleScales

LaunchMode = Literal[
    "fresh", "resume_exact_run", "resume_latest_checkpoint_if_present", "init_from_checkpoint", "fork"
]


class EarlyStopping(Table):
    """Stop when a metric no longer improves."""

    metric: Literal["validation_loss"] = Field(default="validation_loss", description="What must improve.")
    patience: PositiveInt = Field(description="Validations without improvement before the run ends.")
    min_delta: NonNegativeFloat = Field(
        default=0.0, description="Smallest decrease that counts as an improvement."
    )


class Training(Table):
    """A step is an optimizer step, everywhere."""

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = (
        ("epochs", "max_iters"),
        ("target_effective_batch_size", "gradient_accumulation_steps"),
    )

    block_size: PositiveInt = Field(default=256, description="Tokens in a row.")
    batch_size: PositiveInt = Field(default=8, description="Rows in a micro-batch.")
    seed: CountingInt = Field(
        default=1337, description="Decides the first weights, the order of the data and dropout."
    )
    gradient_accumulation_steps: PositiveInt = Field(
        default=1, description="Micro-batches in an optimizer step."
    )
    target_effective_batch_size: PositiveInt | None = Field(
        default=None,
        description="Rows wanted in an optimizer step; decides gradient_accumulation_steps, rounded up.",
    )
    epochs: PositiveInt | None = Field(
        default=None, description="Passes over the training split; takes the place of max_iters."
    )
    max_iters: PositiveInt | None = Field(
        default=1000, description="Optimizer steps in the run; unset when epochs is used."
    )
    order: Literal["random", "epochs", "streaming"] = Field(
        default="random",
        description='"random": windows drawn from anywhere; "epochs": every target exactly once per pass '
        '(so when epochs is set); "streaming": the same, document after document from end to end in every row '
        "(always so with tbptt_persist_across_steps).",
    )
    tbptt_chunk_size: PositiveInt | None = Field(
        default=None,
        description="Tokens per chunk of a block: each has its own backward pass, and hands its state on without "
        "gradient; unset: the whole block.",
    )
    tbptt_persist_across_steps: bool = Field(
        default=False,
        description="Carry the state of every row from one step to the next; it starts anew where a row's document "
        "begins.",
    )
    tbptt_window: PositiveInt = Field(
        default=1,
        description="Chunks of a block that a loss reaches back through, its own included; 1 is plain truncation.",
    )
    min_logical_block_size: PositiveInt | None = Field(
        default=None,
        description="Tokens of a document of the streaming order: a text without documents is cut into such pieces, "
        "shorter documents are read as one with what follows; unset: as the text is.",
    )
    checkpoint_interval_iters: PositiveInt = Field(
        default=500, description="Optimizer steps between checkpoints."
    )
    checkpoint_keep: PositiveInt = Field(
        default=2, description="Newest checkpoints that are kept, besides the best."
    )
    log_frequency: PositiveInt = Field(default=10, description="Optimizer steps between lines of the log.")
    validation_interval_iters: PositiveInt | None = Field(
        default=None, description="Optimizer steps between validations; unset: checkpoint_interval_iters."
    )
    validation_batches: PositiveInt = Field(default=20, description="Batches in a validation.")
    sanity_validation: bool = Field(
        default=True,
        description="Validate before the first step too: mistakes show early, and later figures have one to be held "
        "against.",
    )
    sequence_kernel_override: Kernel | None = Field(
        default=None, description="The memory or the executor of this run, instead of model.sequence_kernel."
    )
    module_lr_scales: ModuleScales = Field(
        default=(), description="Parts of the model that learn faster or slower than the rest."
    )
    gdpo: Gdpo = Field(default_factory=Gdpo, description="Learning from rewards, see [GDPO](gdpo.md).")
    launch_mode: LaunchMode = Field(
        default="fresh",
        description='Where the run starts from; "fork": a new run that goes on from a checkpoint of another one '
        "(weights, moments, order, carried states) with a changed `[optimizer]` or length.",
    )
    resume_run_dir: FilePath | None = Field(
        default=None, description="The run to go on with (resume_exact_run), or to leave (fork)."
    )
    resume_checkpoint_step: CountingInt | None = Field(
        default=None, description="The step to go on from; unset: the newest good checkpoint."
    )
    init_checkpoint_path: FilePath | None = Field(
        default=None,
        description="A run (its name, its folder, or `latest`) or a checkpoint whose weights the new run starts with.",
    )
    init_checkpoint_step: CountingInt | None = Field(
        default=None, description="The step of init_checkpoint_path; unset: its newest good checkpoint."
    )
    init_transfer: InitTransfer = Field(
        default_factory=InitTransfer, description="What the new run takes from init_checkpoint_path."
    )
    sample_interval_iters: PositiveInt | None = Field(
        default=None, description="Optimizer steps between printed samples; unset: one sample at the end."
    )
    sample_tokens: CountingInt = Field(
        default=0, description="Tokens in a printed sample; 0: generation.max_tokens."
    )
    early_stopping: EarlyStopping | None = Field(
        default=None, description="End the run when validation no longer improves; unset: never."
    )

    continual_backprop: ContinualBackprop = Field(
        default_factory=ContinualBackprop, description="Replacing neurons that contribute little."
    )

    @property
    def kernel_block(self) -> int:
        """Tokens that the model reads in one call: a chunk, or the block where there are no chunks."""
        return self.tbptt_chunk_size or self.block_size

    @property
    def spans(self) -> int:
        """Chunks whose graphs live at a time: the window, as far as a block has so many."""
        return min(self.tbptt_window, -(-self.block_size // self.kernel_block))

    @property
    def carries_states(self) -> bool:
        """Whether a call of the model takes a state in or hands one on."""
        return self.tbptt_persist_across_steps or self.kernel_block < self.block_size

    @classmethod
    def adjusted(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A run that carries its states streams; one that is counted in epochs reads everything once in each."""
        if values.get("tbptt_persist_across_steps") is True:
            return {"order": "streaming"} | values
        if values.get("epochs") is not None and values.get("order", "random") == "random":
            return values | {"order": "epochs"}
        return values
