"""The model: Dragon Hatchling, its layer contract, its state, its first weights."""

from .dragon import Model
from .geometry import Geometry
from .layer import Composed, LayerWeights, Observed
from .state import State

__all__ = ["Composed", "Geometry", "LayerWeights", "Model", "Observed", "State"]
