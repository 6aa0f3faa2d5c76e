"""`ampwatch.guard`: check the arguments, and put a guard on a watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampwatch.errors import warn
from ampwatch.guarding.guard_settings import Proposed, Settings, checked
from ampwatch.guarding.step_guard import StepGuard
from ampwatch.probe.watch import NoWatch, Watch


class NoGuard:
    """What `guard` returns where nothing is watched: does nothing."""

    stopped = False
    plan_path: Any = None
    exit_code = 0

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Ignored."""


def guard(
    watch: Watch | NoWatch,
    skip: str | None = "outliers",
    lower_rate: bool = True,  # noqa: FBT001, FBT002 - the contract
    stop: bool = False,  # noqa: FBT001, FBT002
    dry_run: bool = True,  # noqa: FBT001, FBT002
    most: tuple[int, int] = (5, 100),
    on_action: Callable[[Proposed], object] | None = None,
) -> StepGuard | NoGuard:
    """Let ampwatch act in this training; at first it only tells what it would do.

    `skip` leaves out steps whose gradients are not finite and, with "outliers", those whose
    gradients, loss, inputs or rate are far above what is usual. `lower_rate` lowers the rate for a
    while where a second one follows soon and the diagnosis blames the rate. `stop` ends the
    training where more follow than `most` (actions, steps) allows, or where steps that are not
    finite have become the rule. `on_action` is asked before each action and may return False. With
    several ranks call it on each, with the same arguments. Wrong arguments raise GuardError.
    """
    if isinstance(watch, NoWatch):
        return NoGuard()
    settings = Settings(skip, lower_rate, stop, dry_run, most, on_action)
    checked(watch, settings)
    if watch.closed:
        warn("guard() after close() does nothing; attach again for a new run.")
        return NoGuard()
    known = watch.loop.actor
    if isinstance(known, StepGuard):
        warn("this training has a guard already, which goes on.")
        return known
    made = StepGuard(watch, settings)
    watch.loop.actor = made
    return made
