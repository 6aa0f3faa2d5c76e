"""`guard`: judges each optimizer's step before it runs, and acts where the user allows it.

The probe's hook has measured the gradients when ours is called, in the same step and on the same
thread. On the CPU their norms are known by then. On a device one number is waited for in each
step; a dry run reads it late and waits for nothing.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ampwatch.errors import warn
from ampwatch.exit_codes import ExitCode
from ampwatch.guarding.guard_advice import write_plan
from ampwatch.guarding.guard_settings import (
    AMONG,
    LEAVE_OUT,
    MOST_IN_A_ROW,
    NON_FINITE,
    STANDING,
    STOP,
    Cap,
    Proposed,
    Settings,
    StandingFault,
    checked,
)
from ampwatch.guarding.joint_decision import Alone, Together, Word
from ampwatch.guarding.left_out_step import DeviceVerdicts, LeftOut, Pending, leave_out, put_back
from ampwatch.guarding.lowered_rate import RateActions
from ampwatch.guarding.outlying_steps import Guarded, JudgedStep, Measured, UsualSteps, rate_of
from ampwatch.probe.control import interrupt
from ampwatch.probe.hooks import Handle, hook_step_begin, hook_step_end
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.records import StepRecord, Turn
from ampwatch.probe.watch import NoWatch, Watch
from ampwatch.rows import EventKind

AGAIN_STEPS = 100  # a second outlier within so many is no accident of the data

WAIT = (
    "Before each step the guard waits for one copy from the device; a fused optimizer without a "
    "scaler, alone, without on_action and stop, needs no wait."
)
LATE_LOSS = (
    "The loss is logged after its step, so that no step is judged by it: call "
    "watch.log(loss=...) before optimizer.step()."
)

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
        self._on_device = DeviceVerdicts(settings.most[0])
        self._usual: dict[int, UsualSteps] = {}  # by the optimizer's number
        self._standing = StandingFault()
        self._unfit: set[int] = set()  # optimizers that cannot be guarded
        self._left: dict[int, tuple[Any, LeftOut]] = {}  # by the id of the optimizer that steps
        self._evaluated: set[int] = set()  # optimizers whose closure was judged in this step
        self._let_pass: dict[str, int] = {}  # outlying steps that were taken, by why
        self._outlying_at = -math.inf
        self._rate = RateActions(self)
        self._on_stop: Callable[[], object] | None = None
        self._is_ended = False
        self._said: set[str] = set()  # of what is said once
        self._ends: dict[int, Handle] = {}
        self._begin = hook_step_begin(partial(_any_step_begins, weakref.ref(self)))
        weakref.finalize(self, self._begin.leave)
        self._say_begin()

    def on_stop(self, stop: Callable[[], object]) -> None:
        """End the training by this function of yours, not as Ctrl-C does."""
        self._on_stop = stop

    def _with_others(self) -> Alone | Together:
        if self.ranks.world_size == 1 or self.settings.dry_run:
            return Alone(sees_all=self.ranks.world_size == 1)
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
        if not self.settings.dry_run and view.number not in self._ends:
            ended = partial(_step_ended, weakref.ref(self))
            self._ends[view.number] = hook_step_end(optimizer, ended)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            if not turn.bypassed:
                self._judge(optimizer, view, turn, turn.norms or turn.applied)
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
            turn = self.loop.turns.turn(view)
            self._judge(optimizer, view, turn, self.loop.turns.evaluated(view))

    def ended(self, optimizer: Any) -> None:
        """An optimizer's step has run."""
        self._on_device.take_back(optimizer)
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
        """A step's values have arrived, of a device late."""
        if record.pack.copies is None:
            return
        for one in self._on_device.arrived(record.pack):
            self._learn(one)
        if not self.settings.dry_run:
            return
        for view in list(self.loop.turns.views.values()):
            for turn in record.turns:
                norms = turn.norms or turn.applied
                if turn.optimizer == view.number and norms is not None:
                    part = self._part(view.reference(), view, turn, norms, record)
                    self._decide(None, view, self._seen(part), record.step)

    def release(self) -> None:
        """The watch ends: nothing of ours is left."""
        self._begin.remove()
        for handle in self._ends.values():
            handle.remove()
        self._ends.clear()
        self._rate.release()

    # --- judging ----------------------------------------------------------------------------------

    def _judge(self, optimizer: Any, view: OptimizerView, turn: Turn, norms: Any) -> None:
        record = self.loop.current.record
        if norms is None or norms.unseen or record is None or view.number in self._unfit:
            return
        if record.logged_loss_is_late and self._say_once("late-loss", LATE_LOSS):
            _log.warning("%s", LATE_LOSS)
        scaler = self.loop.current.scaler() if self.loop.current.enabled else None
        part = self._part(optimizer, view, turn, norms, record)
        if part.pack.pending is None:
            seen = self._seen(part)
        elif self.settings.dry_run:
            return  # judged when the values have arrived
        elif scaler is None and self._needs_no_word() and self._on_device.fits(optimizer, part):
            judged = self.settings.skip != NON_FINITE
            self._on_device.give(optimizer, part, self._usual_of(view) if judged else None)
            return
        elif (found := part.waited_for()) is None:
            self._give_up(view, "its gradients are on several devices")
            return
        else:
            self._say_once("wait", WAIT)
            seen = self._seen_in(found, view)
        if scaler is not None:
            if not seen.is_finite:
                return  # the scaler skips such a step
            factor = float(scaler._scale.item()) if norms.scaled else 1.0
            seen = replace(seen, step=replace(seen.step, norm=seen.step.norm / factor))
        self._decide(optimizer, view, seen, record.step)

    def _part(
        self,
        optimizer: Any,
        view: OptimizerView,
        turn: Turn,
        norms: NormCapture,
        record: StepRecord,
    ) -> Guarded:
        rate = rate_of(optimizer, view, turn, self._usual_of(view))
        return Guarded(view, turn, norms, record, rate)

    def _seen(self, part: Guarded) -> JudgedStep:
        return self._seen_in(part.measured(), part.view)

    def _seen_in(self, step: Measured, view: OptimizerView) -> JudgedStep:
        if not self.together.sees_all:  # else one rank alone would leave it out
            step = replace(step, loss=math.nan, largest_input=math.nan)
        return JudgedStep(step, self._usual_of(view))

    def _needs_no_word(self) -> bool:
        """Whether a step may be left out before the host, the user or other ranks know of it."""
        settings, alone = self.settings, isinstance(self.together, Alone)
        return alone and not settings.stop and settings.skip is not None and not settings.on_action

    def _usual_of(self, view: OptimizerView) -> UsualSteps:
        known = self._usual.get(view.number)
        if known is None:
            known = self._usual[view.number] = UsualSteps()
        return known

    def _learn(self, one: Pending) -> None:
        """What a device has decided some steps ago."""
        pack, step = one.part.pack, one.part.record.step
        outlying, left_out = (bool(pack.values[one.at + n]) for n in range(2))
        seen = self._seen(one.part)
        if left_out:
            self._act(None, seen, step, Word.LEAVE_OUT + (not seen.is_finite))
        elif outlying:
            self._let_it_pass(seen, step, "row" if self.cap.allows(step) else "capped")
        if not left_out:
            seen.usual.take(seen.step)
        self.cap.allows(step)
        self._on_device.allow(self.cap.take_balance() + (left_out and seen.is_finite))

    def _decide(self, optimizer: Any, view: OptimizerView, seen: JudgedStep, step: int) -> None:
        self.together.step(step, seen.step.norm)
        outlying = seen.is_outlying and (not seen.is_finite or self.settings.skip != NON_FINITE)
        word, why = Word.TAKE, ""
        if outlying or self.together.votes or seen.is_near:
            mine, why = self._wanted(seen, step) if outlying else (Word.TAKE, "")
            word = self.together.agreed(f"step/{step}/{view.number}", mine)
        if self.together.failure:
            told = f"The guard does nothing from here on: {self.together.failure}."
            self._say_once("ranks", told, step)
        seen.usual.in_a_row.see(outlying=outlying or word is not Word.TAKE)
        if word is not Word.TAKE:
            self._act(optimizer, seen, step, word)
            return
        if outlying:
            self._let_it_pass(seen, step, why or "ranks")
        seen.usual.take(seen.step)

    def _wanted(self, seen: JudgedStep, step: int) -> tuple[Word, str]:
        """What to do with an outlying step; and if it is to be taken, why."""
        settings, word = self.settings, Word.LEAVE_OUT
        stops = False
        if not seen.is_finite:
            word = Word.LEAVE_OUT_NOT_FINITE
            stops = self._standing.would_stand(step)
        elif not seen.usual.in_a_row.allows:
            return Word.TAKE, "row"
        elif not self.cap.allows(step):
            word, stops = Word.TAKE, True
        if stops and settings.stop and not self.stopped:
            proposed = Proposed(STOP, step, seen.detail, self._told_of_stop(seen))
            if settings.dry_run or self.allows(proposed):
                return Word.STOP, ""
        if word is Word.TAKE:
            return word, "capped"
        told = f"{seen.words}: the step will be left out."
        if settings.dry_run or settings.skip is None:
            return word, ""
        allowed = self.allows(Proposed(LEAVE_OUT, step, seen.detail, told))
        return (word, "") if allowed else (Word.TAKE, "vetoed")

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

    def _act(self, optimizer: Any, seen: JudgedStep, step: int, word: int) -> None:
        """All ranks have called this step outlying."""
        skips = self.settings.skip is not None
        if word == Word.LEAVE_OUT_NOT_FINITE:
            self._standing.see(step)
        if word == Word.STOP:
            self._stop(optimizer, seen, step)
            return
        if not skips:
            seen.usual.take(seen.step)
        elif word == Word.LEAVE_OUT:
            self.cap.count(step)
        again = step - self._outlying_at <= AGAIN_STEPS
        self._outlying_at = step
        if skips:
            self._leave_out(optimizer, seen, step, word)
        if again and self.settings.lower_rate:
            self._rate.ask(step)

    def _leave_out(self, optimizer: Any, seen: JudgedStep, step: int, word: int) -> None:
        dry = self.settings.dry_run
        if not dry and optimizer is not None:  # else a device has done it
            self._left[id(optimizer)] = optimizer, leave_out(optimizer)
        what = "would be left out (dry run)" if dry else "was left out"
        count = self._standing.count if word == Word.LEAVE_OUT_NOT_FINITE else 0
        if not count:
            self.say(LEAVE_OUT, step, f"{seen.words}: the step {what}.", seen.detail)
        elif not count & (count - 1):  # of many the first, second, fourth, eighth is told
            told = (
                f"{STANDING} of {AMONG} steps were not finite, and since then {count - 1:,} more: "
            )
            told += f"each {what}, and the training stands still. End it, and look for the cause."
            self.say(LEAVE_OUT, step, told, seen.detail, standing=count)

    def _let_it_pass(self, seen: JudgedStep, step: int, why: str) -> None:
        count = self._let_pass[why] = self._let_pass.get(why, 0) + 1
        if count & (count - 1):  # as above
            return
        acted = "would have acted" if self.settings.dry_run else "has acted"
        reasons = {
            "capped": f"the guard {acted} as often as it may, {self.cap.words}",
            "row": f"{MOST_IN_A_ROW} before it were outlying too: this may be a new level",
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

    def _told_of_stop(self, seen: JudgedStep) -> str:
        dry = self.settings.dry_run
        acted = "would have acted" if dry else "has acted"
        why = f"though the guard {acted} as often as it may, {self.cap.words}"
        if not seen.is_finite:
            why = f"as in {STANDING} of the last {AMONG} steps"
        what = "would be stopped (dry run)" if dry else "is stopped"
        return f"{seen.words}, {why}: the training {what}."

    def _stop(self, optimizer: Any, seen: JudgedStep, step: int) -> None:
        """The training is stopped after this step, which is left out."""
        self.stopped = True
        self.say(STOP, step, self._told_of_stop(seen), seen.detail)
        if self.settings.dry_run:
            self._is_ended = True
            return
        self._left[id(optimizer)] = optimizer, leave_out(optimizer)
        self.exit_code = ExitCode.PERSON
        watch = self._watch()
        if watch is not None and not self.ranks.rank:
            watch.after_close(self._write_plan)

    def _write_plan(self) -> None:
        """The log is complete: what is to be done next."""
        if self.folder is not None:
            self.plan_path, code = write_plan(self.folder)
            self.exit_code = code or ExitCode.PERSON

    def _end(self) -> None:
        self._is_ended = True
        if self._on_stop is not None:
            self._on_stop()
        else:
            interrupt()

    # --- telling ----------------------------------------------------------------------------------

    def say(self, action: str, step: int, told: str, seen: Mapping[str, Any], **more: Any) -> None:
        """An event and a line in the program's own log."""
        done = not self.settings.dry_run
        detail = {"action": action, "seen": dict(seen), "decided": action, "done": done}
        self._event({**detail, **more, "told": told}, step)
        _log.warning("step %d: %s", step, told)

    def _say_once(self, why: str, told: str, step: int | None = None) -> bool:
        """An event, the first time; whether this was it."""
        is_new = why not in self._said
        if is_new:
            self._said.add(why)
            self._event({"decided": "nothing", "why": why, "told": told}, step)
        return is_new

    def _event(self, detail: dict[str, Any], step: int | None = None) -> None:
        self.loop.current.event(EventKind.GUARD, detail, step=step)


# -- hooks around an optimizer's step and in its closure; they keep no guard alive -----------------

Reference = weakref.ref[StepGuard]


def _any_step_begins(reference: Reference, optimizer: Any, args: Any, kwargs: Any) -> Any:
    """Before any optimizer's step; other arguments for it, or None."""
    guard = None if _is_compiling() else reference()
    return None if guard is None else guard.run(guard.begins, optimizer, args, kwargs)


def _step_ended(reference: Reference, optimizer: Any, *_: Any) -> None:
    """After the step of an optimizer that is guarded."""
    guard = None if _is_compiling() else reference()
    if guard is not None:
        guard.run(guard.ended, optimizer)


def _evaluate(
    reference: Reference,
    optimizer: weakref.ref[Any],
    view: OptimizerView,
    closure: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The user's closure, and then ours."""
    given = closure(*args, **kwargs)
    guard = reference()
    if guard is not None:
        guard.run(guard.evaluated, optimizer(), view)
    return given


# -- the user's call -------------------------------------------------------------------------------


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
