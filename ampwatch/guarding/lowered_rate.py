"""Lower the rate by what the diagnosis advises, in groups and schedules, then raise it in parts.

All ranks do so in the same step: the first one asks; the others wait for its word, which says from
which step on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ampwatch.guarding.guard_advice import PATIENCE_S, Advice
from ampwatch.guarding.guard_settings import LOWER, RAISE, Cap, Proposed, Settings
from ampwatch.guarding.joint_decision import Alone, Together
from ampwatch.probe.learning_rates import number_of
from ampwatch.probe.loop import Loop
from ampwatch.probe.optimizers import OptimizerView, groups_of
from ampwatch.probe.run_identity import Ranks

HOLD_STEPS = 200
PART_STEPS = 50  # between two parts of the way back
ASK_AGAIN_STEPS = 500  # after an answer: each question is a process that reads the whole run
_MOST_A_PART = 1.7  # times: less than a leap of the rate
_SAME = 1e-6
_AHEAD = 2  # steps: ranks that reduce gradients together are never further apart than one


class LoweredRate:
    """One lowering; it comes back unless somebody else has set the rates meanwhile."""

    def __init__(
        self, views: Callable[[], Iterable[OptimizerView]], factor: float, step: int
    ) -> None:
        self._views = views
        self.factor = factor
        parts = max(1, math.ceil(math.log(1 / factor) / math.log(_MOST_A_PART)))
        self._part, self.parts_left = factor ** (-1 / parts), parts
        self._next = step + HOLD_STEPS
        self._multiply(factor)
        self._left = self._bases()

    def rates(self) -> list[float]:
        """Each group's rate."""
        return [number_of(group.get("lr")) for group in groups_of(self._views())]

    def _bases(self) -> list[float]:
        """Of each group what a schedule does not move: its initial rate, else the rate."""
        groups = groups_of(self._views())
        return [number_of(group.get("initial_lr", group.get("lr"))) for group in groups]

    @property
    def is_undone(self) -> bool:
        """Whether somebody else has set the rates since."""
        now = self._bases()
        pairs = zip(now, self._left, strict=False)
        return len(now) != len(self._left) or any(
            abs(one - other) > _SAME * abs(other) for one, other in pairs
        )

    def raise_if_due(self, step: int) -> bool:
        """Come back by a part where it is time; whether that was the last."""
        if step < self._next:
            return False
        self._next = step + PART_STEPS
        self._raise(1)
        return not self.parts_left

    def raise_all(self) -> None:
        """Come back at once: the watch ends, and the rate is not to stay low."""
        self._raise(self.parts_left)

    def _raise(self, parts: int) -> None:
        self._multiply(self._part**parts)
        self.parts_left -= parts
        self._left = self._bases()

    def _multiply(self, factor: float) -> None:
        for view in self._views():
            view.multiply_rates(factor)


class Actor(Protocol):
    """Whose part this is; `step_guard.StepGuard`."""

    loop: Loop
    settings: Settings
    ranks: Ranks
    cap: Cap
    together: Alone | Together
    folder: Path | None

    def allows(self, proposed: Proposed) -> bool:
        """What the user's callback says."""

    def say(self, action: str, step: int, told: str, seen: Mapping[str, Any], **more: Any) -> None:
        """Tell of an action."""


class RateActions:
    """Asks for advice, lowers the rate, and raises it again."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._asked = 0
        self._asked_at = -ASK_AGAIN_STEPS
        self._advice: Advice | None = None  # on the first rank
        self._awaited: str | None = None  # the key of its word
        self._until = 0.0
        self._due: dict[str, Any] | None = None
        self._lowered: LoweredRate | None = None

    def ask(self, step: int) -> None:
        """There is trouble that one bad batch does not explain: what about the rate?"""
        actor = self._actor
        busy = self._awaited or self._due or self._lowered
        soon = step - self._asked_at < ASK_AGAIN_STEPS
        if busy or soon or actor.folder is None or not actor.cap.allows(step):
            return
        self._asked_at = step
        if actor.settings.dry_run:
            actor.cap.count(step)
            told = (
                "The diagnosis would be asked, and the learning rate lowered if it is to blame "
                "(dry run)."
            )
            actor.say(LOWER, step, told, {})
            return
        self._asked += 1
        self._awaited = f"rate/{self._asked}"
        self._until = time.monotonic() + 1.5 * PATIENCE_S
        if not actor.ranks.rank:
            self._advice = Advice(actor.folder)

    def step_over(self, step: int) -> None:
        """A step has ended; the next one has this number."""
        if self._awaited is not None:
            self._look(self._awaited, step)
        if self._due is not None and step >= self._due["at"]:
            self._lower(self._due, step)
        if self._lowered is not None:
            self._look_after(self._lowered, step)

    def release(self) -> None:
        """The watch ends: the rate is what it would be without us."""
        if self._advice is not None:
            self._advice.drop()
            self._advice = None
        if self._lowered is not None and not self._lowered.is_undone:
            self._lowered.raise_all()
            self._lowered = None

    # --- the first rank's word --------------------------------------------------------------------

    def _look(self, key: str, step: int) -> None:
        try:
            told = self._word(step) if self._advice else self._actor.together.told(key)
            if told is not None and self._advice is not None:
                self._advice = None
                self._actor.together.tell(key, told)
        except Exception as error:  # noqa: BLE001 - of any store; nothing is done then
            told = {"factor": None, "why": f"the ranks cannot agree ({type(error).__name__})"}
        if told is not None:
            self._awaited = None
            self._take(told, step)
        elif time.monotonic() > self._until:
            self._awaited = None

    def _word(self, step: int) -> dict[str, Any] | None:
        answer = None if self._advice is None else self._advice.answer()
        if answer is None:
            return None
        (factor, why), actor = answer, self._actor
        several = actor.ranks.world_size > 1
        if factor is not None:
            told = f"Every learning rate will be multiplied by {factor:.3g}, {why}."
            if not actor.allows(Proposed(LOWER, step, {"factor": factor}, told)):
                factor, why = None, "the function given to on_action forbids it"
        return {"factor": factor, "why": why, "at": step + _AHEAD * several}

    def _take(self, told: dict[str, Any], step: int) -> None:
        if told["factor"] is not None:
            self._due = told
            return
        sentence = f"The learning rate stays: {told['why']}."
        self._actor.say(LOWER, step, sentence, {}, decided="nothing", done=False)

    # --- lowering and raising ---------------------------------------------------------------------

    def _lower(self, due: dict[str, Any], step: int) -> None:
        actor, self._due = self._actor, None
        views = actor.loop.turns.views
        self._lowered = lowered = LoweredRate(views.values, due["factor"], step)
        actor.cap.count(step)
        told = f"Every learning rate was multiplied by {due['factor']:.3g}, {due['why']}; after "
        told += f"{HOLD_STEPS} steps it comes back in {lowered.parts_left} parts."
        actor.say(LOWER, step, told, {"factor": due["factor"]}, lrs=lowered.rates())

    def _look_after(self, lowered: LoweredRate, step: int) -> None:
        actor = self._actor
        if lowered.is_undone:
            self._lowered = None
            told = "Somebody else has set the learning rate since it was lowered: it is let be."
            actor.say(RAISE, step, told, {}, decided="nothing", done=False)
        elif lowered.raise_if_due(step):
            self._lowered = None
            actor.say(RAISE, step, "The learning rate is back.", {}, lrs=lowered.rates())
