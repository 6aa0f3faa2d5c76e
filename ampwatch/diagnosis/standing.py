"""Whether what a rule saw still matters at the end of the record, and how its sentence ends."""

from __future__ import annotations

import enum


class Standing(enum.Enum):
    """It goes on; it is over but its damage is not; or all of it is over."""

    STANDS = "stands"
    HEALS = "heals"
    HEALED = "healed"

    @property
    def weighs(self) -> bool:
        """Whether the run still suffers from it."""
        return self is not Standing.HEALED

    @property
    def ending(self) -> str:
        """The end of a sentence that says what happened, without its full stop."""
        return "" if self is Standing.STANDS else ", but no longer at the end"
