"""How often a guard may act, and when leaving steps out has become a standing fault.

An outlying step that is taken costs some progress; one that is not finite ends the training. So the
first are capped, in number and in a row: several in a row that differ from what was usual are a new
level, and a training that may not move learns nothing. The second are left out always; where they
go on, the training stands still, and that is said, or it is stopped.
"""

from __future__ import annotations

from collections import deque

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
