"""The schema of the configuration: one class per table, each key with type, range, default and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, model_validator

from .base import Kinds, Table, Variant
from .dataset import DATASETS, DatasetConfig, DatasetOptions, PackageTextDataset
from .generation import ContextStrategy, Generation
from .init_transfer import InitTransfer
from .initialization import Initialization
from .mamba import Mamba
from .model import FanoutSchedule, Model, Normalization, SequenceKernel
from .optimizer import LearningRateSchedule, Optimizer
from .parallel import Parallel
from .run_layout import RunLayout
from .runtime import Runtime
from .sources import SourceConfig
from .tokenizer import TokenizerConfig
from .training import EarlyStopping, Training

DEFAULT_ORIGIN = "default"


class Config(Table):
    """Everything a run is told. Plain data: nothing here opens a file or knows a device."""

    dataset: Annotated[DatasetConfig, Kinds(*DATASETS)] = Field(
        default_factory=PackageTextDataset, description="Where text comes from and how it becomes tokens."
    )
    training: Training = Field(
        default_factory=Training, description="How long, how much at a time, how often, and from where."
    )
    optimizer: Optimizer = Field(default_factory=Optimizer, description="How gradients become changes.")
    generation: Generation = Field(
        default_factory=Generation, description="How text is drawn from the model."
    )
    parallel: Parallel = Field(default_factory=Parallel, description="Over how many processes.")
    run_layout: RunLayout = Field(default_factory=RunLayout, description="Where runs lie.")
    model: Model = Field(default_factory=Model, description="The shape of the dragon.")
    runtime: Runtime = Field(default_factory=Runtime, description="On what the work is done.")

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        from ..rules import check

        check(self)
        return self

    @property
    def effective_model(self) -> Model:
        """`model`, with the memory that `training.sequence_kernel_override` puts in its place."""
        kernel = self.training.sequence_kernel_override
        return self.model if kernel is None else self.model.model_copy(update={"sequence_kernel": kernel})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], origin: str = "given") -> Config:
        """The configuration of a dictionary, such as one that `to_dict` made; missing keys have their
        defaults.

        Raises:
            ConfigError: one line with the dotted key; it begins with `origin`, a file's name for example.
        """
        from ..load import config_from_dict

        return config_from_dict(data, origin)

    def origin(self, key: str) -> str:
        """Where a value comes from: "default", "base.toml:12", "recipes/tiny.toml:4", "--set"."""
        while key:
            if key in self._origins:
                return self._origins[key]
            key = key.rpartition(".")[0]
        return DEFAULT_ORIGIN

    def origins(self) -> dict[str, str]:
        """Where every value comes from that was given, by dotted key; what is not named is a default."""
        return dict(self._origins)

    def to_dict(self, *, secrets: bool = False) -> dict[str, Any]:
        """Every value, defaults included, as JSON can hold it (paths as text).

        Access tokens are left unset unless `secrets` is asked for: what is written into a run is often passed on.
        """
        data = self.model_dump(mode="json")
        for source in (data["dataset"], data["dataset"]["validation"]):
            if source and not secrets and "token" in source:
                source["token"] = None
        return data

    def __eq__(self, other: object) -> bool:
        """Equal values are equal configurations, wherever the values come from."""
        return isinstance(other, Config) and self.to_dict(secrets=True) == other.to_dict(secrets=True)


__all__ = [
    "DEFAULT_ORIGIN",
    "Config",
    "ContextStrategy",
    "DatasetConfig",
    "DatasetOptions",
    "EarlyStopping",
    "FanoutSchedule",
    "Generation",
    "InitTransfer",
    "Initialization",
    "LearningRateSchedule",
    "Mamba",
    "Model",
    "Normalization",
    "Optimizer",
    "Parallel",
    "RunLayout",
    "Runtime",
    "SequenceKernel",
    "SourceConfig",
    "Table",
    "TokenizerConfig",
    "Training",
    "Variant",
]
