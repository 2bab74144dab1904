"""Warm start: weights of one run in the model of another, which may be larger or know other tokens.

`growth` splits neurons and adds heads without changing what the model computes, `vocabulary` finds the same tokens in
two vocabularies, `adapting` mixes what was transferred with fresh weights, `plan` puts them in order and writes down
what became of every tensor (`report`). docs/warm-start.md derives the rules.
"""

from __future__ import annotations

from .growth import Growth, grow_state
from .lender import Lender
from .plan import Transfer, plan_transfer, refuse_other_memory
from .report import TransferReport
from .vocabulary import TokenMap, map_tokens

__all__ = [
    "Growth",
    "Lender",
    "TokenMap",
    "Transfer",
    "TransferReport",
    "grow_state",
    "map_tokens",
    "plan_transfer",
    "refuse_other_memory",
]
