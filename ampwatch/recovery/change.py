"""How a rerun differs from the run, as passed to the process that trains."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

CHANGE = "AMPWATCH_RERUN"  # the environment variable that holds it


@dataclass(frozen=True, slots=True)
class Change:
    """One rate factor, and where the rerun's files go instead of over the user's."""

    rate_factor: float
    outputs: str

    def to_text(self) -> str:
        """The text for the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Change:
        """What `to_text` wrote."""
        return cls(**json.loads(text))
