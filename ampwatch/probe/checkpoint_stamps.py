"""Marks a save as poisoned when weights, moments or scaler were broken, and says so at once.

A save is an event. The weights' norm and the scale are in the rows of the steps before it, and what
its optimizers kept (`saved_moments`) is in the event: no save waits for anything. Whether a save is
suspect for another reason only the diagnosis knows, later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ampwatch.errors import warn
from ampwatch.probe.records import EventRecord
from ampwatch.probe.saved_moments import NOT_FINITE
from ampwatch.rows import EventKind

POISONED = "poisoned"
_WEIGHTS, _SCALER = "weights that are not finite", "a loss scale that cannot be used"


_LEAST_SCALE = 2.0**-127  # the inverse of a lower one is inf in float32


class CheckpointStamps:
    """Follows whether the weights are finite and the loss scale can be used."""

    def __init__(self) -> None:
        self._broken_since: dict[str, int] = {}  # by what is broken

    def follow(
        self,
        steps: Sequence[int],
        param_norms: Iterable[float | None],
        scales: Iterable[float | None],
    ) -> None:
        """Take in the next steps, in their order."""
        for step, norm, scale in zip(steps, param_norms, scales, strict=True):
            if norm is not None:
                self._note(_WEIGHTS, step, is_broken=not math.isfinite(norm))
            if scale is not None:
                usable = math.isfinite(scale) and scale > _LEAST_SCALE
                self._note(_SCALER, step, is_broken=not usable)

    def _note(self, what: str, step: int, *, is_broken: bool) -> None:
        if is_broken:
            self._broken_since.setdefault(what, step)
        else:
            self._broken_since.pop(what, None)

    def stamp(self, events: Iterable[EventRecord]) -> None:
        """Mark the saves among these events that hold what nobody wants to load."""
        for event in events:
            if event.kind is not EventKind.STATE_SAVED:
                continue
            broken = [
                f"{what} since step {at:,}"
                for what, at in self._broken_since.items()
                if event.step > at
            ]
            if event.detail.get("moments") == NOT_FINITE:
                broken.append("optimizer moments that are not finite")
            if not broken:
                continue
            event.detail["state"] = POISONED
            path = event.detail.get("path")
            warn(
                f"the checkpoint saved before step {event.step:,}{f' ({path})' if path else ''} "
                f"holds {' and '.join(broken)}: do not keep this one."
            )
