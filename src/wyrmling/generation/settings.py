"""What decides how text is drawn, checked before anything expensive is loaded (this module needs no
torch)."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.schema.generation import Generation

DecodingDtype = Literal["float32", "bfloat16"]

_SEED_LIMIT = 1 << 63
_RANDOM_SEEDS = 1 << 31


@dataclass(frozen=True)
class SamplingSettings:
    """How one token is drawn from the scores of all.

    Attributes:
        temperature: scores are divided by it; 0 takes the likeliest token (of equals the lowest id).
        top_k: draw among the k likeliest only; None, or k >= V, keeps all.
        top_p: draw among the fewest likeliest tokens whose probabilities reach p; never fewer than one.
        seed: makes the draws repeatable; None stands for one to be chosen by `seeded`.

    Raises:
        ConfigError: a value out of its range; the text gives the range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ConfigError(
                f"temperature must be a finite number of at least 0 (0: always the likeliest token), "
                f"got {self.temperature}"
            )
        if self.top_k is not None and not (_is_whole(self.top_k) and self.top_k >= 1):
            raise ConfigError(
                f"top_k must be a whole number of at least 1 (leave it out to keep all), got {self.top_k}"
            )
        if self.top_p is not None and not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(f"top_p must be above 0 and at most 1 (1 keeps all), got {self.top_p}")
        if self.seed is not None and not (_is_whole(self.seed) and 0 <= self.seed < _SEED_LIMIT):
            raise ConfigError(f"seed must be a whole number from 0 to 2^63 - 1, got {self.seed}")

    def seeded(self) -> Self:
        """These settings with a seed: their own, or a random one."""
        if self.seed is not None:
            return self
        return dataclasses.replace(self, seed=secrets.randbelow(_RANDOM_SEEDS))


@dataclass(frozen=True)
class GenerationSettings(SamplingSettings):
    """How a text is drawn: the sampling of each token, and where to stop.

    Attributes:
        max_tokens: most tokens to draw per prompt; None does not limit them.
        max_chars: most characters of new text per prompt; None does not limit them.
        stop_at_eos: stop where the model ends the document (if the tokenizer has a token for that).
        window: None carries everything since the beginning; W reads at most the last W tokens (see `engine`).
        prompt_chunk: tokens of a prompt that are read in one call of the model.
        weight_dtype, state_dtype: "float32" or "bfloat16", for single tokens on the CPU (see `decoding.Decoder`).
    """

    max_tokens: int | None = 200
    max_chars: int | None = None
    stop_at_eos: bool = True
    window: int | None = None
    prompt_chunk: int = 256
    weight_dtype: DecodingDtype = "float32"
    state_dtype: DecodingDtype = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, meaning in (
            ("max_tokens", "leave it out for the default"),
            ("max_chars", "leave it out for no limit"),
            ("window", "leave it out to carry everything"),
            ("prompt_chunk", "256 is the default"),
        ):
            value = getattr(self, name)
            if value is not None and not (_is_whole(value) and value >= 1):
                raise ConfigError(f"{name} must be a whole number of at least 1 ({meaning}), got {value}")
        for name in ("weight_dtype", "state_dtype"):
            if getattr(self, name) not in get_args(DecodingDtype):
                raise ConfigError(f"{name} must be float32 or bfloat16, got {getattr(self, name)!r}")

    @classmethod
    def from_config(cls, generation: Generation, overrides: Mapping[str, Any] | None = None) -> Self:
        """The settings of a `[generation]` table, with some of them replaced.

        Raises:
            ConfigError: an override that is no setting, or a value out of its range.
        """
        strategy = generation.context_strategy
        values: dict[str, Any] = {
            "temperature": generation.temperature,
            "top_k": generation.top_k,
            "top_p": generation.top_p,
            "seed": generation.seed,
            "max_tokens": None if generation.max_tokens == "unlimited" else generation.max_tokens,
            "max_chars": generation.max_chars,
            "stop_at_eos": generation.stop_at_eos,
            "window": strategy.window if strategy.type == "sliding" else None,
            "weight_dtype": generation.weight_dtype,
            "state_dtype": generation.state_dtype,
        }
        return cls.of({**values, **(overrides or {})})

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Settings from a mapping; those that are absent have their defaults.

        Raises:
            ConfigError: a name that is no setting, or a value out of its range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"generation has no setting {name!r}; it has {', '.join(known)}")
        return cls(**values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
