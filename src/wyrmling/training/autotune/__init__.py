"""The largest micro-batch that fits: found once, by trying, when a run is created."""

from .tuning import REPORT, Tuned, as_recorded, tune

__all__ = ["REPORT", "Tuned", "as_recorded", "tune"]
