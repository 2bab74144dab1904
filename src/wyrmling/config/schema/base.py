"""What every table shares: strict types, no unknown keys, no changes after it was read.

TOML has no null, so the text "none" leaves an optional key unset; that is how an overlay takes a value back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

UNSET = "none"


class Table(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of keys that say the same thing in two ways: setting one takes the other back."""

    @model_validator(mode="before")
    @classmethod
    def _unset_and_choose(cls, data: Any) -> Any:
        """Turn "none" into None, and unset the default of a key whose alternative was given."""
        if not isinstance(data, Mapping):
            return data
        values = {
            key: None if value == UNSET and isinstance(value, str) and cls.optional(key) else value
            for key, value in data.items()
        }
        for pair in cls.alternatives:
            for given, other in (pair, pair[::-1]):
                if (
                    values.get(given) is not None
                    and other not in values
                    and cls.unset_value(other) is not ...
                ):
                    values[other] = cls.unset_value(other)
        return cls.adjusted(values)

    @classmethod
    def adjusted(cls, values: dict[str, Any]) -> dict[str, Any]:
        """What else follows from what was given; a table may say more here."""
        return values

    @classmethod
    def optional(cls, key: str) -> bool:
        """Whether a key of this table may be left unset."""
        field = cls.model_fields.get(key)
        return field is not None and allows_none(field)

    @classmethod
    def unset_value(cls, key: str) -> Any:
        """What a key holds when its alternative is used; `...` where it cannot be unset."""
        return None if cls.optional(key) else ...


class Variant(Table):
    """A table that comes in several kinds, told apart by its key `type`."""

    default_variant: ClassVar[bool] = False
    """Whether this is the kind meant when `type` is absent."""


def allows_none(field: FieldInfo) -> bool:
    """Whether the annotation of a field includes None."""
    return type(None) in get_args(field.annotation)


class Kinds:
    """Metadata of a union of variants: `type` decides; absent, the one marked `default_variant` is meant."""

    def __init__(self, *variants: type[Variant]) -> None:
        self.variants = {str(variant.model_fields["type"].default): variant for variant in variants}
        self.default = next((name for name, v in self.variants.items() if v.default_variant), None)

    def kind_of(self, value: Any) -> Any:
        """The `type` that a table has or means."""
        if isinstance(value, Mapping):
            return value.get("type", self.default)
        return getattr(value, "type", None)

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema(
            {name: handler.generate_schema(variant) for name, variant in self.variants.items()},
            discriminator=self.kind_of,
        )


def _as_path(value: Any) -> Any:
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("must not be empty")
        try:
            return Path(value).expanduser()
        except RuntimeError as error:
            raise ValueError("names a home directory that is not known") from error
    return value


FilePath = Annotated[Path, BeforeValidator(_as_path, json_schema_input_type=str)]
"""A path; `~` is the home directory; relative paths start at the working directory."""

LARGEST = 2**63
"""One more than the largest number of a TOML file."""

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
PositiveInt = Annotated[int, Field(gt=0, lt=LARGEST)]
CountingInt = Annotated[int, Field(ge=0, lt=LARGEST)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
