"""`guard`: judges each optimizer's step before it runs, and acts where the user allows it.

The probe's hook has measured the gradients when ours is called, in the same step and on the same
thread. On the CPU their norms are known by then. On a device one number is waited for in each
step; a dry run reads it late and waits for nothing.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ampwatch.errors import warn
from ampwatch.guarding.advice import write_plan
from ampwatch.guarding.joint_decision import Alone, Together
from ampwatch.guarding.left_out_step import LeftOut, leave_out, put_back
from ampwatch.guarding.rate_actions import RateActions
from ampwatch.guarding.settings import (
    LEAVE_OUT,
    NON_FINITE,
    STOP,
    Cap,
    Proposed,
    Settings,
    checked,
)
from ampwatch.guarding.usual_norms import Seen, UsualNorms
from ampwatch.probe.hooks import Handle, hook_step_begin, hook_step_end
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.readback import Pack
from ampwatch.probe.records import StepRecord
from ampwatch.probe.watch import NoWatch, Watch
from ampwatch.rows import EventKind

AGAIN_STEPS = 100  # a second outlier within so many is no accident of the data
PERSON = 11  # `ampwatch plan`'s exit code for: a person must look

_log = logging.getLogger("ampwatch.guard")
_is_compiling = torch.compiler.is_compiling


class StepGuard:
    """One guard; it lives as long as its watch."""

    def __init__(self, watch: Watch, settings: Settings) -> None:
        self.stopped = False
        self.plan_path: Any = None  # where the plan was written, once the watch has closed
        self.exit_code = 0  # as `ampwatch plan`'s, if the guard has stopped the training
        self._watch = weakref.ref(watch)
        self.loop, self.run, self.folder = watch.loop, watch.errors.run, watch.run_folder
        self.settings, self.ranks = settings, watch.ranks
        self.cap = Cap(settings.most)
        self.together = self._with_others()
        self._usual: dict[int, UsualNorms] = {}  # by the optimizer's number
        self._unfit: set[int] = set()  # optimizers that cannot be guarded
        self._left: dict[int, tuple[Any, LeftOut]] = {}  # by the id of the optimizer that steps
        self._evaluated: set[int] = set()  # optimizers whose closure was judged in this step
        self._let_pass: dict[str, int] = {}  # outlying steps that were taken, by why
        self._outlying_at = -math.inf
        self._rate = RateActions(self)
        self._on_stop: Callable[[], object] | None = None
        self._is_ended = self._has_said_failure = False
        self._ends: dict[int, Handle] = {}
        self._begin = hook_step_begin(partial(_any_step_begins, weakref.ref(self)))
        weakref.finalize(self, self._begin.leave)
        self._say_begin()

    def on_stop(self, stop: Callable[[], object]) -> None:
        """End the training by this function of yours, not as Ctrl-C does."""
        self._on_stop = stop

    def _with_others(self) -> Alone | Together:
        if self.ranks.world_size == 1 or self.settings.dry_run:
            return Alone()
        return Together(self.ranks, "guard", self.settings.to_json())

    def _say_begin(self) -> None:
        dry = self.settings.dry_run
        told = f"A guard is on: at most {self.cap.words}"
        told += "; a dry run, which only tells what it would do." if dry else "."
        self._event({"decided": "begin", "dry_run": dry, "told": told})

    # --- the calls of hooks and of the loop -------------------------------------------------------

    def begins(self, optimizer: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """An optimizer's step is about to run; other arguments for it, where it has a closure."""
        found = self.loop.stepping(optimizer)
        if found is None:
            return None
        view, turn = found
        if id(optimizer) not in self._ends:
            ended = partial(_any_step_ended, weakref.ref(self))
            self._ends[id(optimizer)] = hook_step_end(optimizer, ended)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            if not turn.bypassed:
                self._judge(optimizer, view, turn.norms or turn.applied)
            return None
        self._evaluated.discard(view.number)
        judged = partial(_evaluate, weakref.ref(self), weakref.ref(optimizer), view, closure)
        if len(args) > 1:
            return (args[0], judged, *args[2:]), kwargs
        return args, {**kwargs, "closure": judged}

    def evaluated(self, optimizer: Any, view: OptimizerView) -> None:
        """A closure has run, within the optimizer's step: its first gradients are judged."""
        if view.number not in self._evaluated:
            self._evaluated.add(view.number)
            self._judge(optimizer, view, self.loop.evaluated(view))

    def ended(self, optimizer: Any) -> None:
        """An optimizer's step has run."""
        _, before = self._left.pop(id(optimizer), (None, None))
        if before is not None and not put_back(optimizer, before):
            view = self.loop.turns.view(optimizer)
            self._give_up(view, "it moves weights or counts steps without gradients")

    def step_over(self) -> None:
        """The training's step has ended."""
        for optimizer, _ in list(self._left.values()):
            self.ended(optimizer)
        self._rate.step_over(self.loop.current.number)
        if self.stopped and not self._is_ended:
            self._end()

    def settled(self, record: StepRecord) -> None:
        """A step's values have arrived, of a device late: what a dry run judges."""
        if not (self.settings.dry_run and record.pack.copies is not None):
            return
        for view in self.loop.turns.views.values():
            for turn in record.turns:
                norms = turn.norms or turn.applied
                if turn.optimizer == view.number and norms is not None:
                    total = norms.total(record.pack.values)
                    self._decide(None, view, self._seen(view, total), record.step)

    def release(self) -> None:
        """The watch ends: nothing of ours is left."""
        self._begin.remove()
        for handle in self._ends.values():
            handle.remove()
        self._ends.clear()
        self._rate.release()

    # --- judging ----------------------------------------------------------------------------------

    def _judge(self, optimizer: Any, view: OptimizerView, norms: NormCapture | None) -> None:
        record = self.loop.current.record
        if norms is None or norms.unseen or record is None or view.number in self._unfit:
            return
        total = self._total(view, norms, record.pack)
        if total is not None:
            self._decide(optimizer, view, self._seen(view, total), self.loop.current.number)

    def _total(self, view: OptimizerView, norms: NormCapture, pack: Pack) -> float | None:
        """The gradient norm; None where it must be read late, or is the scaler's affair."""
        scaler = self.loop.current.scaler() if self.loop.current.enabled else None
        if pack.pending is None:
            total = math.hypot(*pack.values[norms.at : norms.at + norms.count])
        elif self.settings.dry_run:
            return None
        else:
            waiting = dict(pack.pending).get(-1 if norms.total_at is None else norms.total_at)
            if waiting is None:
                self._give_up(view, "its gradients are on several devices")
                return None
            total = float(waiting.item())
        if scaler is None:
            return total
        if not math.isfinite(total):
            return None  # the scaler skips such a step
        return total / float(scaler._scale.item()) if norms.scaled else total

    def _seen(self, view: OptimizerView, total: float) -> Seen:
        usual = self._usual.setdefault(view.number, UsualNorms())
        return Seen(total, math.isfinite(total), usual)

    def _decide(self, optimizer: Any, view: OptimizerView, seen: Seen, step: int) -> None:
        self.together.step(step, seen.norm)
        outlying = seen.is_outlying
        if seen.is_finite and self.settings.skip == NON_FINITE:
            outlying = False
        acts, why = False, ""
        if outlying or self.together.votes or seen.is_near:
            why = self._why_not(seen, step) if outlying else ""
            mine = outlying and not why
            acts = self.together.agreed(f"step/{step}/{view.number}", mine=mine)
        if self.together.failure and not self._has_said_failure:
            self._has_said_failure = True
            told = f"The guard does nothing from here on: {self.together.failure}."
            self._event({"decided": "nothing", "why": "ranks", "told": told}, step)
        if acts:
            self._act(optimizer, seen, step)
        else:
            if outlying:
                self._let_it_pass(optimizer, seen, step, why or "ranks")
            seen.usual.take(seen.norm)

    def _why_not(self, seen: Seen, step: int) -> str:
        """Why an outlying step is taken; empty if it is not."""
        if not self.cap.allows(step):
            return "capped"
        if self.settings.skip is None or self.settings.dry_run:
            return ""
        told = f"{seen.words}: the step will be left out."
        return "" if self.allows(Proposed(LEAVE_OUT, step, seen.detail, told)) else "vetoed"

    def allows(self, proposed: Proposed) -> bool:
        """What the user's callback says; one that fails allows nothing."""
        if self.settings.on_action is None:
            return True
        try:
            return self.settings.on_action(proposed) is not False
        except Exception as error:  # noqa: BLE001 - theirs may raise anything
            warn(f"the function given to on_action raised {type(error).__name__}: {error}")
            return False

    # --- acting -----------------------------------------------------------------------------------

    def _act(self, optimizer: Any, seen: Seen, step: int) -> None:
        """All ranks have called this step outlying."""
        self.cap.count(step)
        again = step - self._outlying_at <= AGAIN_STEPS
        self._outlying_at = step
        if self.settings.skip is not None:
            self._leave_out(optimizer, seen, step)
        if again and self.settings.lower_rate:
            self._rate.ask(step)

    def _leave_out(self, optimizer: Any, seen: Seen, step: int) -> None:
        dry = self.settings.dry_run
        if not dry:
            self._left[id(optimizer)] = optimizer, leave_out(optimizer)
        what = "would be left out (dry run)" if dry else "was left out"
        words = seen.words if seen.is_outlying else "Another rank's gradients were outlying"
        self.say(LEAVE_OUT, step, f"{words}: the step {what}.", seen.detail)

    def _let_it_pass(self, optimizer: Any, seen: Seen, step: int, why: str) -> None:
        may_stop = why == "capped" and self.settings.stop and not self.stopped
        if may_stop and self._stops(optimizer, seen, step):
            return
        count = self._let_pass[why] = self._let_pass.get(why, 0) + 1
        if count & (count - 1):  # of many the first, second, fourth, eighth is told
            return
        reasons = {
            "capped": f"the guard has acted as often as it may, {self.cap.words}",
            "vetoed": "the function given to on_action forbids more",
            "ranks": "not all ranks could agree on it",
        }
        told = f"{seen.words}: the step was taken, since {reasons[why]}."
        detail = {"let_pass": count, "why": why}
        self.say(LEAVE_OUT, step, told, seen.detail, decided="nothing", done=False, **detail)

    def _give_up(self, view: OptimizerView, why: str) -> None:
        self._unfit.add(view.number)
        told = f"Optimizer {view.number} is not guarded any more: {why}."
        self._event({"decided": "nothing", "told": told})

    # --- stopping ---------------------------------------------------------------------------------

    def _stops(self, optimizer: Any, seen: Seen, step: int) -> bool:
        """Whether the training is stopped after this step, which is left out."""
        dry = self.settings.dry_run
        told = f"{seen.words}, though the guard has acted as often as it may, {self.cap.words}: "
        told += "the training " + ("would be stopped (dry run)." if dry else "is stopped.")
        allowed = dry or self.allows(Proposed(STOP, step, seen.detail, told))
        if not self.together.agreed(f"stop/{step}", mine=allowed):
            return False
        self.stopped = True
        self.say(STOP, step, told, seen.detail)
        if dry:
            self._is_ended = True
            return False
        self._left[id(optimizer)] = optimizer, leave_out(optimizer)
        self.exit_code = PERSON
        watch = self._watch()
        if watch is not None and not self.ranks.rank:
            watch.after_close(self._write_plan)
        return True

    def _write_plan(self) -> None:
        """The log is complete: what is to be done next."""
        if self.folder is not None:
            self.plan_path, code = write_plan(self.folder)
            self.exit_code = code or PERSON

    def _end(self) -> None:
        self._is_ended = True
        if self._on_stop is not None:
            self._on_stop()
        elif threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: what the loop does then, it does now
        else:
            os.kill(os.getpid(), signal.SIGINT)

    # --- telling ----------------------------------------------------------------------------------

    def say(self, action: str, step: int, told: str, seen: Mapping[str, Any], **more: Any) -> None:
        """An event and a line in the program's own log."""
        done = not self.settings.dry_run
        detail = {"action": action, "seen": dict(seen), "decided": action, "done": done}
        self._event({**detail, **more, "told": told}, step)
        _log.warning("step %d: %s", step, told)

    def _event(self, detail: dict[str, Any], step: int | None = None) -> None:
        self.loop.current.event(EventKind.GUARD, detail, step=step)


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
    most: tuple[int, int] = (3, 1000),
    on_action: Callable[[Proposed], object] | None = None,
) -> StepGuard | NoGuard:
    """Let ampwatch act in this training; at first it only tells what it would do.

    `skip` leaves out steps whose gradients are not finite and, with "outliers", those far above
    what is usual. `lower_rate` lowers the rate for a while where a second one follows soon and the
    diagnosis blames the rate. `stop` ends the training where more follow than `most` (actions,
    steps) allows. `on_action` is asked before each action and may return False. With several ranks
    call it on each, with the same arguments. Wrong arguments raise GuardError.
    """
    if isinstance(watch, NoWatch):
        return NoGuard()
    settings = Settings(skip, lower_rate, stop, dry_run, most, on_action)
    checked(watch, settings)
    if watch.closed:
        warn("guard() after close() does nothing; attach again for a new run.")
        return NoGuard()
    known = watch.loop.follower
    if isinstance(known, StepGuard):
        warn("this training has a guard already, which goes on.")
        return known
    made = StepGuard(watch, settings)
    watch.loop.follower = made
    return made


# --- hooks, which keep no guard alive -------------------------------------------------------------


def _any_step_begins(
    reference: weakref.ref[StepGuard], optimizer: Any, args: Any, kwargs: Any
) -> Any:
    found = None if _is_compiling() else reference()
    return None if found is None else found.run(found.begins, optimizer, args, kwargs)


def _any_step_ended(reference: weakref.ref[StepGuard], optimizer: Any, *_: Any) -> None:
    found = None if _is_compiling() else reference()
    if found is not None:
        found.run(found.ended, optimizer)


def _evaluate(
    reference: weakref.ref[StepGuard],
    optimizer: weakref.ref[Any],
    view: OptimizerView,
    closure: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The user's closure, and then ours."""
    given = closure(*args, **kwargs)
    found = reference()
    if found is not None:
        found.run(found.evaluated, optimizer(), view)
    return given
