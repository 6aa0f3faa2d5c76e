"""What a guard may do, as the user said it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ampwatch.errors import GuardError
from ampwatch.probe.watch import Watch

OUTLIERS, NON_FINITE = "outliers", "non-finite"  # what `skip` may be
LEAVE_OUT, LOWER, RAISE, STOP = "leave-out", "lower-rate", "raise-rate", "stop"


@dataclass(frozen=True, slots=True)
class Proposed:
    """What the guard is about to do; `on_action` may return False to forbid it."""

    action: str  # leave-out, lower-rate or stop
    step: int
    seen: dict[str, Any]  # such as the gradient norm, what is usual, and the limit
    told: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `guard`."""

    skip: str | None
    lower_rate: bool
    stop: bool
    dry_run: bool
    most: tuple[int, int]
    on_action: Callable[[Proposed], object] | None

    def to_json(self) -> str:
        """What all ranks must have in common."""
        return json.dumps([self.skip, self.lower_rate, self.stop, self.dry_run, self.most])


def checked(watch: Any, settings: Settings) -> None:
    """Say what is wrong with the arguments."""
    if not isinstance(watch, Watch):
        raise GuardError(
            f"guard takes what ampwatch.attach returned, not a {type(watch).__name__}."
        )
    if not watch.loop.turns.detailed:
        raise GuardError("the guard reads gradients: give ampwatch.attach the model as well.")
    if settings.skip not in {OUTLIERS, NON_FINITE, None}:
        raise GuardError(f"skip is {settings.skip!r}; pass 'outliers', 'non-finite' or None.")
    most = settings.most
    if not (isinstance(most, tuple) and len(most) == 2 and min(most) >= 1):
        raise GuardError(f"most is {most!r}; pass (actions, steps), such as (5, 100).")
    if settings.on_action is not None and not callable(settings.on_action):
        raise GuardError("on_action is not a function; pass one that takes a Proposed.")
