"""Where the time and the memory of a run go: stages, probes inside a step, operations, a trace."""

from .run_profile import PROFILE, Mode, RunProfile

__all__ = ["PROFILE", "Mode", "RunProfile"]
