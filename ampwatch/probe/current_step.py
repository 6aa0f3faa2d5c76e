"""The step in progress: its number, its record, and the scaler in use. This is their one owner.

The parts of a watched loop (`loop`, `optimizer_turns`, `unscaled_steps`, `backward_passes`) share
one `CurrentStep`. Whoever sees the first call of a step begins its record; `Loop` closes it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ampwatch.probe.forward_passes import Forwards
from ampwatch.probe.own_failures import warn
from ampwatch.probe.readback import Pack
from ampwatch.probe.records import EventRecord, StepRecord
from ampwatch.probe.sampling import Sampling
from ampwatch.rows import EventKind


class CurrentStep:
    """The step in progress, and what is known of the scaler."""

    def __init__(
        self,
        scaler: Any,
        sampling: Sampling,
        forwards: Forwards,
        deliver: Callable[[StepRecord | EventRecord], None],
        number: int,
    ) -> None:
        self.number = number
        self.record: StepRecord | None = None  # `record or begin()` saves a call where there is one
        self.sampling = sampling
        self.forwards = forwards
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self.used = not self.enabled  # whether an enabled scaler has been called yet
        self.scaler: Callable[[], Any] = _no_scaler
        self._is_idle = False
        self._deliver = deliver
        self._reported: set[str] = set()  # codes of mistakes
        if scaler is not None:
            self.use(scaler)

    def begin(self) -> StepRecord:
        """The record of the step in progress; a new one if there is none."""
        if self.record is None:
            self.record = StepRecord(self.number, Pack())
        return self.record

    def event(self, kind: EventKind, detail: Mapping[str, Any], *, step: int | None = None) -> None:
        """Report something that happened once, in this step or in the one in progress."""
        at = self.number if step is None else step
        self._deliver(EventRecord(at, time.time_ns(), kind, dict(detail)))

    def misuse(self, code: str, detail: Mapping[str, Any], *, step: int | None = None) -> None:
        """Report a mistake of the loop, the first time it is seen."""
        if code not in self._reported:
            self._reported.add(code)
            self.event(EventKind.MISUSE, {"code": code, **detail}, step=step)

    def use(self, scaler: Any) -> None:
        """The loop goes on with this scaler."""
        # Weak: an optimizer's hook holds us, and may not hold the scaler.
        self.scaler = weakref.ref(scaler)

    def take_up(self) -> None:
        """The scaler is called for the first time."""
        self.used = True
        if self._is_idle:
            self._is_idle, self.enabled = False, True

    def leave_idle(self) -> None:
        """An optimizer steps before the scaler was called: go on as if there were no scaler."""
        self._is_idle, self.enabled = True, False
        warn(
            "the scaler has scaled nothing when the optimizer stepped: this is watched as a "
            "training without one, until it is used."
        )


def _no_scaler() -> None:
    """There is none."""
