"""The fused executor of the layer (linear memory, CPU); see `executor`."""

from .executor import Fused, FusedWeights
from .planning import FusedPlan, plan

__all__ = ["Fused", "FusedPlan", "FusedWeights", "plan"]
