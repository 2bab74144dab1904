"""From gradients to weights: parameter groups, AdamW, Muon, learning-rate schedules, clipping."""

from ..numerics.roles import ROLES, Role, declare, role_of
from .bitnet import TwoStage, WeightDecay, build_weight_decay
from .build import Choice, build_optimizer, set_rates
from .gradients import Limits, first_nonfinite, global_norm, limits, scale_and_clip
from .groups import DECAYED_ROLES, ParameterGroup, parameter_groups, summarize
from .muon import Muon, MuonSettings
from .newton_schulz import orthogonalize
from .scales import Scale, Scales, backbone_scale, module_scales, target_of
from .schedules import (
    Constant,
    Cosine,
    Exponential,
    Linear,
    Noam,
    Schedule,
    Step,
    build_schedule,
    describe_length,
)

__all__ = [
    "DECAYED_ROLES",
    "ROLES",
    "Choice",
    "Constant",
    "Cosine",
    "Exponential",
    "Limits",
    "Linear",
    "Muon",
    "MuonSettings",
    "Noam",
    "ParameterGroup",
    "Role",
    "Scale",
    "Scales",
    "Schedule",
    "Step",
    "TwoStage",
    "WeightDecay",
    "backbone_scale",
    "build_optimizer",
    "build_schedule",
    "build_weight_decay",
    "declare",
    "describe_length",
    "first_nonfinite",
    "global_norm",
    "limits",
    "module_scales",
    "orthogonalize",
    "parameter_groups",
    "role_of",
    "scale_and_clip",
    "set_rates",
    "summarize",
    "target_of",
]
