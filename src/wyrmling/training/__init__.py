"""Training: choices, steps, the loop, validation, runs that go on, runs that are loaded again."""

from .evaluate import evaluate
from .evaluation import Evaluation
from .machine import Machine
from .run import LoadedRun, TrainResult, load_run, train

__all__ = ["Evaluation", "LoadedRun", "Machine", "TrainResult", "evaluate", "load_run", "train"]
