"""How many samples a step takes, and when that has changed for good.

The last batch of an epoch is smaller, and some loops vary their batches all the time: a size counts
as the usual one once ten steps in a row had it.
"""

from __future__ import annotations

STEPS_TO_BELIEVE = 10


class BatchSize:
    """The usual number of samples that a step's forward passes take."""

    __slots__ = ("_candidate", "_since", "held", "usual")

    def __init__(self) -> None:
        self.usual = 0  # not known yet
        self._candidate = 0
        self._since = 0  # the first step that had it
        self.held = 0  # for so many steps; none while all is as usual

    def see(self, samples: int, step: int) -> tuple[int, int] | None:
        """A step took so many; the step that began the change, and what was usual before it."""
        if samples == self.usual:
            self.held = 0
            return None
        if samples != self._candidate or not self.held:
            self._candidate, self._since, self.held = samples, step, 0
        self.held += 1
        if self.held < STEPS_TO_BELIEVE:
            return None
        before, self.usual, self.held = self.usual, samples, 0
        return (self._since, before) if before else None
