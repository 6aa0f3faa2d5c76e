"""What a guard may do, as the user said it, and how often.

An outlying step that is taken costs some progress; one that is not finite ends the training. So the
first are capped, in number and in a row: several in a row that differ from what was usual are a new
level, and a training that may not move learns nothing. The second are left out always; where they
go on, the training stands still, and that is said, or it is stopped.
"""

from __future__ import annotations

import json
from collections import deque
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


# -- caps ------------------------------------------------------------------------------------------


MOST_IN_A_ROW = 3  # outlying steps left out
STANDING, AMONG = 16, 64  # so many steps that are not finite among so many: no accident of the data


class Cap:
    """At most so many actions in so many steps."""

    def __init__(self, most: tuple[int, int]) -> None:
        self._most, self._within = most
        self._done: deque[int] = deque()
        self._balance = 0

    def allows(self, step: int) -> bool:
        """Whether one more is allowed in this step."""
        while self._done and self._done[0] <= step - self._within:
            self._done.popleft()
            self._balance += 1
        return len(self._done) < self._most

    def count(self, step: int) -> None:
        """One was done."""
        self._done.append(step)
        self._balance -= 1

    def take_balance(self) -> int:
        """By how much the actions left have grown or shrunk since this was last asked."""
        balance, self._balance = self._balance, 0
        return balance

    @property
    def words(self) -> str:
        """The cap in words."""
        actions = "action" if self._most == 1 else "actions"
        return f"{self._most:,} {actions} in {self._within:,} steps"


class OutliersInARow:
    """How many outlying steps of one optimizer have followed each other, left out or not."""

    def __init__(self) -> None:
        self._count = 0

    @property
    def allows(self) -> bool:
        """Whether one more may be left out."""
        return self._count < MOST_IN_A_ROW

    def see(self, *, outlying: bool) -> None:
        """Count a judged step towards the cap of outlying steps in a row."""
        self._count = self._count + 1 if outlying else 0


class StandingFault:
    """Whether steps that are not finite have become the rule."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=STANDING)
        self.count = 0  # of such steps while the fault stands

    def would_stand(self, step: int) -> bool:
        """Whether it stands if this step is not finite either."""
        if self.count:
            return step - self._steps[-1] <= AMONG
        before = list(self._steps)[-(STANDING - 1) :]
        return len(before) == STANDING - 1 and step - before[0] < AMONG

    def see(self, step: int) -> None:
        """Count a step that was not finite towards the cap of a standing fault."""
        self.count = self.count + 1 if self.would_stand(step) else 0
        self._steps.append(step)
