"""What the parts of a watched loop know of the step in progress; `loop.Loop` is that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ampwatch.probe.forwards import Forwards
from ampwatch.probe.records import StepRecord
from ampwatch.probe.sampling import Sampling
from ampwatch.rows import EventKind


class Steps(Protocol):
    """The step in progress."""

    enabled: bool
    used: bool
    scaler: Any
    sampling: Sampling
    forwards: Forwards
    open_step: StepRecord | None  # `open_step or current()` saves a call where there is one

    def current(self) -> StepRecord:
        """The record of the step in progress."""

    def event(self, kind: EventKind, detail: Mapping[str, Any], *, step: int | None = None) -> None:
        """Hand over something that happened once: in this step, or in the one in progress."""

    def misuse(self, code: str, detail: Mapping[str, Any], *, step: int | None = None) -> None:
        """Say a mistake, once."""

    def adopt(self, scaler: Any) -> None:
        """Go on with another scaler."""

    def leave_idle(self) -> None:
        """Go on as without the scaler: nobody uses it."""

    def take_up(self) -> None:
        """Go on with the scaler: somebody uses it."""

    def come_round(self) -> None:
        """Close the step in progress: its loop has begun anew."""

    def close_step(self, *, update_seen: bool | None) -> None:
        """Close the step in progress."""
