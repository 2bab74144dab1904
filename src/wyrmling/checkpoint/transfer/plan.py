"""A warm start from beginning to end: checked against the configuration first, done on the model afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...config.schema.init_transfer import InitTransfer
from ...config.schema.model import Model as ModelConfig
from ...errors import CheckpointError
from ...model import Model
from ...text.tokenizers import Tokenizer, differences
from ..contents import load_model_tensors, model_tensors
from .adapting import adapt, blended, uses_reference
from .growth import Growth
from .lender import Lender
from .report import Fates, TransferReport, settings_that_differ
from .vocabulary import TokenMap, map_tokens

EMBEDDING, HEAD = SURFACES = ("embedding.weight", "lm_head")
FRESH = "fresh"


@dataclass(frozen=True)
class _Loan:
    """A lender and how its tensors come to fit.

    Attributes:
        growth: of its backbone; None where only embedding and head are used.
        tokens: of its embedding and head; None where they are not used.
    """

    lender: Lender
    growth: Growth | None
    tokens: TokenMap | None

    def tensors(self, fresh: dict[str, Tensor], seed: int, fates: Fates) -> dict[str, Tensor]:
        """The lender's tensors in the shapes of the model; embedding and head fresh where it lends none.

        Raises:
            CheckpointError: a tensor that does not fit.
        """
        lent = self.lender.tensors
        tensors: dict[str, Tensor] = {}
        if self.growth is not None:
            tensors = {name: tensor for name, tensor in lent.items() if name not in SURFACES}
            grown = self.growth.tensors(lent, fresh, seed)
            tensors |= grown
            for name in grown:
                fates.add(name, f"grown, {self.growth.text()}")
        if self.tokens is not None:  # a head that the model has no place for must not be forgotten in silence
            tensors |= {name: lent[name] for name in SURFACES if name in lent and name not in fresh}
        for name in SURFACES:
            if name in fresh:
                tensors[name] = self._surface(name, fresh[name], fates)
        self._refuse_misfits(tensors, fresh)
        return tensors

    def _surface(self, name: str, fresh: Tensor, fates: Fates) -> Tensor:
        """The embedding [V, D] or head [D, V] for the new vocabulary: known tokens keep what they had."""
        if self.tokens is None:
            fates.begin(name, FRESH)
            return fresh
        lent, axis = self.lender.tensors, 0 if name == EMBEDDING else 1
        own = lent[name] if name in lent else lent[EMBEDDING].t()
        if name not in lent:
            fates.add(name, "the embedding, to which it was tied")
        if self.tokens.same and own.shape == fresh.shape:
            return own
        sources = self.tokens.sources
        if self.tokens.same:  # a model may know more tokens than its tokenizer
            sources = torch.arange(min(own.shape[axis], fresh.shape[axis]))
        known = (sources >= 0).nonzero()[:, 0]
        mapped = fresh.double().clone()
        mapped.index_copy_(axis, known, own.double().index_select(axis, sources[known]))
        fates.add(name, f"{len(known)} of {fresh.shape[axis]} tokens mapped, the rest fresh")
        return mapped

    def _refuse_misfits(self, tensors: dict[str, Tensor], fresh: dict[str, Tensor]) -> None:
        """Say what does not fit before shapes meet in arithmetic."""
        wanted = {name for name in fresh if self.growth is not None or name in SURFACES}
        for name in (*sorted(wanted - tensors.keys()), *tensors):
            if name not in tensors:
                said = "is missing there"
            elif name not in fresh:
                said = "has no place in this model"
            elif tensors[name].shape != fresh[name].shape:
                said = f"is {list(tensors[name].shape)} there and {list(fresh[name].shape)} here"
            else:
                continue
            raise CheckpointError(
                f"the weights of {self.lender.name} do not fit this configuration: {name} {said}; give [model] the "
                "settings that they were trained with"
            )


@dataclass(frozen=True)
class Transfer:
    """A warm start that fits the configuration."""

    loan: _Loan
    interface: _Loan | None
    options: InitTransfer
    config: ModelConfig
    seed: int

    @property
    def lender(self) -> Lender:
        """Whose weights they are."""
        return self.loan.lender

    def load(self, model: Model) -> TransferReport:
        """Put the weights into a model that has its first ones; its dtype and device stay.

        Raises:
            CheckpointError: a tensor is missing, left over, or of another shape; the model is unchanged.
        """
        fresh = {name: tensor.cpu() for name, tensor in model_tensors(model).items()}
        fates, unseen = Fates(), Fates()
        tensors = self.loan.tensors(fresh, self.seed, fates)
        reference, other = fresh, FRESH
        if self.interface is not None:
            reference, other = self.interface.tensors(fresh, self.seed, unseen), "interface"
            _use_surfaces(tensors, reference, self.options, fates, unseen)
        adapt(tensors, reference, self.options, fates, other)
        load_model_tensors(model, tensors, cast=True)
        growth = self.loan.growth
        maps = [loan.tokens for loan in (self.loan, self.interface) if loan is not None and loan.tokens]
        old, new = (one.model_dump(mode="json") for one in (self.lender.config, self.config))
        return TransferReport(
            sources=self.sources(),
            options=self.options.model_dump(mode="json", exclude_defaults=True),
            vocabulary=next((tokens.text() for tokens in maps if not tokens.same), None),
            growth="" if growth is None else growth.text(),
            settings=tuple(settings_that_differ(old, new)),
            fates=tuple((name, tuple(tensor.shape), fates.text(name)) for name, tensor in fresh.items()),
        )

    def sources(self) -> dict[str, Any]:
        """Which checkpoints these weights come from."""
        facts: dict[str, Any] = {
            "init_checkpoint_path": str(self.lender.path),
            "init_checkpoint_step": self.lender.step,
        }
        if self.interface is not None:
            facts["interface_checkpoint_path"] = str(self.interface.lender.path)
            facts["interface_checkpoint_step"] = self.interface.lender.step
        return facts


def plan_transfer(
    lender: Lender,
    interface: Lender | None,
    config: ModelConfig,
    tokenizer: Tokenizer,
    options: InitTransfer,
    *,
    seed: int,
) -> Transfer:
    """Check a warm start before anything is built.

    Args:
        config, tokenizer: of the new run.
        seed: of the run; decides what lets the copies of a split neuron part company.
    Raises:
        CheckpointError: another width, other positions, another vocabulary without anything in common, or a growth
            that is not exact: one line.
    """
    lends_head = options.preserve_interface_output_head
    lends_embedding = options.preserve_interface_input_embedding
    own_surfaces = not (lends_embedding and (lends_head or config.tie_embeddings))
    loan = _loan(
        lender, config, tokenizer, surfaces=own_surfaces and not options.fresh_surfaces, backbone=True
    )
    if interface is None:
        return Transfer(loan, None, options, config, seed)
    lends = lends_embedding or lends_head or options.interface_output_head_blend_alpha is not None
    second = _loan(interface, config, tokenizer, surfaces=lends, backbone=uses_reference(options))
    return Transfer(loan, second, options, config, seed)


def _loan(
    lender: Lender, config: ModelConfig, tokenizer: Tokenizer, *, surfaces: bool, backbone: bool
) -> _Loan:
    old, name = lender.config, lender.name
    if old.n_embd != config.n_embd:
        raise CheckpointError(
            f"{name} has width {old.n_embd}, and this configuration asks for model.n_embd = {config.n_embd}: a "
            f"model's width cannot change; set model.n_embd = {old.n_embd}"
        )
    growth = _growth(lender, config) if backbone else None
    if not surfaces:
        return _Loan(lender, growth, None)
    tokens = map_tokens(lender.tokenizer, tokenizer)
    if tokens is None:
        different = differences(lender.tokenizer, tokenizer, (name, "this run"))
        raise CheckpointError(
            f"embedding and head of {name} belong to another tokenizer: {different}; use its own, with "
            "dataset.tokenizer.vocab_path or the same [dataset.tokenizer], or begin with new ones: "
            "training.init_transfer.fresh_surfaces = true"
        )
    return _Loan(lender, growth, tokens)


def _growth(lender: Lender, config: ModelConfig) -> Growth:
    """How the lender's backbone becomes the new one.

    Raises:
        CheckpointError: another memory, other positions, or no exact growth.
    """
    old, name = lender.config, lender.name
    refuse_other_memory(name, old, config)
    linear = config.sequence_kernel.memory_system == "linear_attention"
    if linear and old.rotary_embedding != config.rotary_embedding:
        raise CheckpointError(
            f'{name} was trained with the positions "{old.rotary_embedding}", and this configuration asks for '
            f'"{config.rotary_embedding}": set model.rotary_embedding = "{old.rotary_embedding}"'
        )
    return Growth.between(old, config, name)


def refuse_other_memory(name: str, old: ModelConfig, new: ModelConfig) -> None:
    """Raises CheckpointError when the weights of the run `name` were trained with another memory."""
    theirs, ours = (one.sequence_kernel.memory_system for one in (old, new))
    if theirs != ours:
        raise CheckpointError(
            f'{name} was trained with the memory "{theirs}", and this configuration asks for "{ours}": '
            f'set model.sequence_kernel = "{theirs}", or start a new run without those weights'
        )


def _use_surfaces(
    tensors: dict[str, Tensor], lent: dict[str, Tensor], options: InitTransfer, fates: Fates, theirs: Fates
) -> None:
    """Embedding and head as the interface checkpoint has them, or the head blended with its."""
    for wanted, name in (
        (options.preserve_interface_input_embedding, EMBEDDING),
        (options.preserve_interface_output_head, HEAD),
    ):
        if wanted and name in lent:
            tensors[name] = lent[name]
            steps = theirs.steps.get(name, [])
            fates.begin(name, ", ".join(["interface", *steps]))
    share = options.interface_output_head_blend_alpha
    if share is not None and HEAD in lent:
        tensors[HEAD] = blended(tensors[HEAD], lent[HEAD], 1 - share)
        fates.add(HEAD, f"blended {1 - share:g} with {share:g} interface")
