"""GDPO: learning from rewards, each compared within its group before they are added.

A policy draws a group of continuations of every prompt, a program scores them, and the policy moves towards those
that did better than their group. `wyrmling train` does none of that: these are the parts for a program of your own,
as in `examples/gdpo_brackets.py`. See docs/gdpo.md.
"""

from .advantages import Running, advantages, gated, within_groups
from .loss import policy_loss
from .rollouts import Rollouts, draw_rollouts, log_probabilities

__all__ = [
    "Rollouts",
    "Running",
    "advantages",
    "draw_rollouts",
    "gated",
    "log_probabilities",
    "policy_loss",
    "within_groups",
]
