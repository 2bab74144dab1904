"""What was decided without being asked for, and why (law 6)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """An automatic choice: printed when a run starts, recorded in it, and made again on resume by reading it."""

    name: str
    value: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """As it stands in `config.json`."""
        return {"name": self.name, "value": self.value, "reason": self.reason}
