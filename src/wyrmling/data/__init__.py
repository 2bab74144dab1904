"""From text to batches: token files, splits, the order of windows, tensors (torch only in `batches`)."""

from .building import build_store
from .dataset import Dataset, prepare_dataset
from .order import IGNORED, EpochWindows, RandomWindows, Windows
from .store import Split, TokenStore, open_store

__all__ = [
    "IGNORED",
    "Dataset",
    "EpochWindows",
    "RandomWindows",
    "Split",
    "TokenStore",
    "Windows",
    "build_store",
    "open_store",
    "prepare_dataset",
]
