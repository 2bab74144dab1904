"""Training: choices, steps, the loop, validation, runs that go on, runs that are loaded again."""

from .evaluate import evaluate, probe
from .evaluation import Evaluation
from .loading import LoadedRun, load_run
from .machine import Machine, keep_freed_memory
from .probing import Distance
from .run import TrainResult, train

__all__ = [
    "Distance",
    "Evaluation",
    "LoadedRun",
    "Machine",
    "TrainResult",
    "evaluate",
    "keep_freed_memory",
    "load_run",
    "probe",
    "train",
]
