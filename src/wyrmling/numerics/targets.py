"""What stands in the place of a target that is none."""

from __future__ import annotations

IGNORED = -100
"""The target of a position that has none; the value that torch's cross entropy ignores by default."""
