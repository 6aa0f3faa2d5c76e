"""Marks a save as poisoned when the weights were not finite as it was made, and says so at once.

A save is an event, and the weights' norm is in the rows of the steps before it: no save waits for
anything. Whether a save is suspect for another reason only the diagnosis knows, later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ampwatch.errors import warn
from ampwatch.probe.records import EventRecord
from ampwatch.rows import EventKind

POISONED = "poisoned"


class CheckpointStamps:
    """Follows whether the weights are finite."""

    def __init__(self) -> None:
        self._broken_since: int | None = None
        self._last_step = -1

    def follow(self, steps: Sequence[int], param_norms: Iterable[float | None]) -> None:
        """Take in the next steps, in their order."""
        for step, norm in zip(steps, param_norms, strict=True):
            self._last_step = step
            if norm is None:
                continue
            if math.isfinite(norm):
                self._broken_since = None
            elif self._broken_since is None:
                self._broken_since = step

    def stamp(self, events: Iterable[EventRecord]) -> None:
        """Mark the saves among these events that hold what nobody wants to load."""
        for event in events:
            is_broken = self._broken_since is not None and event.step > self._broken_since
            if event.kind is not EventKind.STATE_SAVED or not is_broken:
                continue
            event.detail["state"] = POISONED
            path = event.detail.get("path")
            warn(
                f"the checkpoint saved before step {event.step:,}{f' ({path})' if path else ''} "
                f"holds weights that are not finite since step {self._broken_since:,}: do not keep "
                "this one."
            )
