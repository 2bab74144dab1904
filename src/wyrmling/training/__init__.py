"""Training: choices, steps, the loop, validation, runs that go on, runs that are loaded again."""

from .evaluate import evaluate
from .evaluation import Evaluation
from .loading import LoadedRun, load_run
from .machine import Machine
from .run import TrainResult, train

__all__ = ["Evaluation", "LoadedRun", "Machine", "TrainResult", "evaluate", "load_run", "train"]
