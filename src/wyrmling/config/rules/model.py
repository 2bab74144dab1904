"""Rules of the table `model`: numbers that must fit into each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..fanout import layer_totals, schedule_totals
from ..problems import Problem
from ..schema.tokenizer import ByteTokenizer, PretokenizedTokenizer
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()


def _step(config: Config) -> int:
    """What numbers of neurons are multiples of: widths, heads, and pairs in each head where pairs are rotated."""
    model = config.model
    linear = config.effective_model.sequence_kernel.memory_system == "linear_attention"
    pairs = 2 if linear and model.rotary_embedding == "rope" else 1
    return math.lcm(model.n_embd, model.n_head * pairs)


def _nearest(value: int, step: int, most: int | None = None) -> str:
    """The multiples of `step` on either side of a value, none of them above `most`."""
    below = value // step * step
    near = [item for item in (below, below + step) if item > 0 and (most is None or item <= most)]
    return f"{' or '.join(map(str, near))} would do" if near else "none that is smaller would do"


@BOOK.rule(
    "neurons-fit-the-width",
    "`model.latent_total` is a multiple of `model.n_embd`, and `model.mlp_internal_dim_multiplier` times it where "
    "both are set.",
)
def _total(config: Config) -> Iterator[Problem]:
    model = config.model
    total, multiplier = model.latent_total, model.mlp_internal_dim_multiplier
    if total is not None and total % model.n_embd:
        yield Problem(
            f"model.latent_total must be divisible by model.n_embd ({total} and {model.n_embd}): the neurons are "
            f"counted in widths, model.mlp_internal_dim_multiplier of them; {_nearest(total, _step(config))}",
            ("model.latent_total", "model.n_embd"),
        )
    elif total is not None and multiplier is not None and multiplier * model.n_embd != total:
        yield Problem(
            "model.mlp_internal_dim_multiplier cannot be combined with another model.latent_total "
            f"({multiplier} * {model.n_embd} is not {total})",
            ("model.mlp_internal_dim_multiplier", "model.latent_total"),
        )


@BOOK.rule("neurons-fit-the-heads", "The neurons of the model are a multiple of `model.n_head`.")
def _heads(config: Config) -> Iterator[Problem]:
    model = config.model
    if model.total_neurons % model.n_head:
        given = model.latent_total is not None
        size = "model.latent_total" if given else "model.mlp_internal_dim_multiplier * model.n_embd"
        yield Problem(
            f"{size} must be divisible by model.n_head ({model.total_neurons} and {model.n_head}): every head has as "
            f"many neurons; {_nearest(model.total_neurons, _step(config))}",
            ("model.n_head", "model.latent_total", "model.mlp_internal_dim_multiplier", "model.n_embd"),
        )


@BOOK.rule(
    "narrow-layers-fit",
    "The neurons that `model.latent_fanout_schedule` names are at most those of the model, and a multiple of the least "
    "common multiple of `model.n_embd` and `model.n_head`.",
)
def _fanout(config: Config) -> Iterator[Problem]:
    model = config.model
    step = math.lcm(model.n_embd, model.n_head)
    for name, value in schedule_totals(model).items():
        key = f"model.latent_fanout_schedule.{name}"
        if value > model.total_neurons:
            yield Problem(
                f"{key} must be <= the neurons of the model ({value} > {model.total_neurons})", (key,)
            )
        elif value % step:
            yield Problem(
                f"{key} must be divisible by the least common multiple of model.n_embd and model.n_head "
                f"({value} and {step}); {_nearest(value, _step(config), model.total_neurons)}",
                (key, "model.n_embd", "model.n_head"),
            )


@BOOK.rule(
    "norm-keys-fit-the-norm",
    '`model.normalization.alpha_init` needs `kind = "dynamic_tanh"` or "derf", `shift_init` needs "derf".',
)
def _normalization(config: Config) -> Iterator[Problem]:
    norm = config.model.normalization
    if norm.alpha_init is not None and norm.kind not in ("dynamic_tanh", "derf"):
        yield _needs_kind("alpha_init", '"dynamic_tanh" or "derf"', norm.kind)
    if norm.shift_init is not None and norm.kind != "derf":
        yield _needs_kind("shift_init", '"derf"', norm.kind)


def _needs_kind(key: str, kinds: str, kind: str) -> Problem:
    full = f"model.normalization.{key}"
    return Problem(f'{full} requires model.normalization.kind = {kinds} (it is "{kind}")', (full,))


@BOOK.rule(
    "slopes-belong-to-heads",
    '`model.alibi_slopes` has one number per head, and needs `model.rotary_embedding = "alibi"`.',
)
def _slopes(config: Config) -> Iterator[Problem]:
    model = config.model
    slopes = model.alibi_slopes
    if slopes is None:
        return
    if model.rotary_embedding != "alibi":
        yield Problem(
            f'model.alibi_slopes requires model.rotary_embedding = "alibi" (it is "{model.rotary_embedding}")',
            ("model.alibi_slopes", "model.rotary_embedding"),
        )
    if len(slopes) != model.n_head:
        yield Problem(
            f"model.alibi_slopes must have model.n_head items ({len(slopes)} and {model.n_head})",
            ("model.alibi_slopes", "model.n_head"),
        )


@BOOK.rule(
    "rotation-takes-pairs",
    'With `model.rotary_embedding = "rope"` and linear attention, every layer has an even number of neurons per head.',
)
def _pairs(config: Config) -> Iterator[Problem]:
    if any(True for find in (_total, _heads, _fanout) for _ in find(config)):
        return  # the numbers of neurons are not known
    model = config.effective_model
    odd = [total for total in layer_totals(model) if (total // model.n_head) % 2]
    if model.rotary_embedding == "rope" and odd and model.sequence_kernel.memory_system == "linear_attention":
        yield Problem(
            'model.rotary_embedding = "rope" requires an even number of neurons per head '
            f"({odd[0]} neurons / {model.n_head} heads = {odd[0] / model.n_head:g}); "
            f"{_nearest(odd[0], _step(config))}",
            (
                "model.rotary_embedding",
                "model.latent_total",
                "model.mlp_internal_dim_multiplier",
                "model.n_head",
            ),
        )


@BOOK.rule(
    "the-vocabulary-holds-the-tokens",
    "`model.vocab_size` is at least the tokenizer's number of tokens, as far as that is known before the text is read.",
)
def _vocabulary(config: Config) -> Iterator[Problem]:
    tokenizer, size = config.dataset.tokenizer, config.model.vocab_size
    if size is None:
        return
    if isinstance(tokenizer, PretokenizedTokenizer):
        least = tokenizer.vocab_size
    elif isinstance(tokenizer, ByteTokenizer):
        least = 259 if tokenizer.add_special_tokens else 256
    else:
        return
    if size < least:
        yield Problem(
            f"model.vocab_size must be >= the tokenizer's number of tokens ({size} < {least})",
            ("model.vocab_size", "dataset.tokenizer.vocab_size", "dataset.tokenizer.type"),
        )
