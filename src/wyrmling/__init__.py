"""Dragon Hatchling (BDH) language models: train, resume, evaluate, generate.

    import wyrmling

    config = wyrmling.load_config("tiny", overrides=["training.max_iters=100"])
    result = wyrmling.train(config)
    loaded = wyrmling.load_run(result.run.path)
    print(wyrmling.generate(loaded, "HAMLET", max_tokens=200))
    print(wyrmling.evaluate(loaded).bits_per_byte)

Names are imported when they are first used, so that `import wyrmling` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .config import Config, load_config
    from .data.dataset import Dataset, prepare_dataset
    from .generation import generate_text as generate
    from .model import Model, State
    from .training import Evaluation, LoadedRun, TrainResult, evaluate, load_run, train
    from .watch.events import Callback

_HOMES = {
    "Callback": "watch.events",
    "Config": "config",
    "Dataset": "data.dataset",
    "Evaluation": "training",
    "LoadedRun": "training",
    "Model": "model",
    "State": "model",
    "TrainResult": "training",
    "evaluate": "training",
    "generate": "generation",
    "load_config": "config",
    "load_run": "training",
    "prepare_dataset": "data.dataset",
    "train": "training",
}
_ORIGINAL_NAMES = {"generate": "generate_text"}

__all__ = [
    "Callback",
    "Config",
    "Dataset",
    "Evaluation",
    "LoadedRun",
    "Model",
    "State",
    "TrainResult",
    "__version__",
    "evaluate",
    "generate",
    "load_config",
    "load_run",
    "prepare_dataset",
    "train",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'wyrmling' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), _ORIGINAL_NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
