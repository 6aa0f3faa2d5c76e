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

from ampwatch.errors import warn
from ampwatch.guarding.device_verdict import DeviceVerdicts, Pending, norm_of, waited_for
from ampwatch.guarding.guard_advice import write_plan
from ampwatch.guarding.guard_settings import (
    LEAVE_OUT,
    NON_FINITE,
    STOP,
    Cap,
    Proposed,
    Settings,
)
from ampwatch.guarding.joint_decision import Alone, Together
from ampwatch.guarding.left_out_step import LeftOut, leave_out, put_back
from ampwatch.guarding.rate_actions import RateActions
from ampwatch.guarding.step_hooks import any_step_begins, any_step_ended, evaluate
from ampwatch.guarding.usual_norms import Seen, UsualNorms
from ampwatch.probe.hooks import Handle, hook_step_begin, hook_step_end
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.records import StepRecord
from ampwatch.probe.watch import Watch
from ampwatch.rows import EventKind

AGAIN_STEPS = 100  # a second outlier within so many is no accident of the data
PERSON = 11  # `ampwatch plan`'s exit code for: a person must look

_log = logging.getLogger("ampwatch.guard")


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
        self._usual: dict[int, UsualNorms] = {}  # by the optimizer's number
        self._unfit: set[int] = set()  # optimizers that cannot be guarded
        self._left: dict[int, tuple[Any, LeftOut]] = {}  # by the id of the optimizer that steps
        self._evaluated: set[int] = set()  # optimizers whose closure was judged in this step
        self._let_pass: dict[str, int] = {}  # outlying steps that were taken, by why
        self._outlying_at = -math.inf
        self._rate = RateActions(self)
        self._on_stop: Callable[[], object] | None = None
        self._is_ended = self._has_said_failure = self._has_said_wait = False
        self._ends: dict[int, Handle] = {}
        self._begin = hook_step_begin(partial(any_step_begins, weakref.ref(self)))
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
        if view.number not in self._ends:
            ended = partial(any_step_ended, weakref.ref(self))
            self._ends[view.number] = hook_step_end(optimizer, ended)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            if not turn.bypassed:
                self._judge(optimizer, view, turn.norms or turn.applied)
            return None
        self._evaluated.discard(view.number)
        judged = partial(evaluate, weakref.ref(self), weakref.ref(optimizer), view, closure)
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
            self._learn(one, record)
        if not self.settings.dry_run:
            return
        for view in list(self.loop.turns.views.values()):
            for turn in record.turns:
                norms = turn.norms or turn.applied
                if turn.optimizer == view.number and norms is not None:
                    seen = Seen(*norm_of(norms, record.pack), self._usual_of(view))
                    self._decide(None, view, seen, record.step)

    def release(self) -> None:
        """The watch ends: nothing of ours is left."""
        self._begin.remove()
        for handle in self._ends.values():
            handle.remove()
        self._ends.clear()
        self._rate.release()

    # --- judging ----------------------------------------------------------------------------------

    def _judge(self, optimizer: Any, view: OptimizerView, norms: NormCapture | None) -> None:
        record, step = self.loop.current.record, self.loop.current.number
        if norms is None or norms.unseen or record is None or view.number in self._unfit:
            return
        scaler = self.loop.current.scaler() if self.loop.current.enabled else None
        pack = record.pack
        if pack.pending is None:
            total, is_finite = norm_of(norms, pack)
        elif self.settings.dry_run:
            return  # judged when the values have arrived
        elif (
            scaler is None
            and self._needs_no_word()
            and self._on_device.fits(optimizer, view, norms, pack)
        ):
            limit = self._usual_of(view).limit if self.settings.skip != NON_FINITE else math.inf
            self._on_device.give(optimizer, view, norms, pack, limit)
            return
        elif (found := waited_for(pack, norms)) is None:
            self._give_up(view, "its gradients are on several devices")
            return
        else:
            self._say_wait()
            total, is_finite = found, math.isfinite(found)
        if scaler is not None:
            if not is_finite:
                return  # the scaler skips such a step
            total /= float(scaler._scale.item()) if norms.scaled else 1.0
        self._decide(optimizer, view, Seen(total, is_finite, self._usual_of(view)), step)

    def _say_wait(self) -> None:
        if not self._has_said_wait:
            self._has_said_wait = True
            told = "Before each step the guard waits for one number of the device; a fused "
            told += "optimizer without a scaler, alone, without on_action and stop, needs no wait."
            self._event({"decided": "nothing", "why": "wait", "told": told})

    def _needs_no_word(self) -> bool:
        """Whether a step may be left out before the host, the user or other ranks know of it."""
        settings, alone = self.settings, isinstance(self.together, Alone)
        return alone and not settings.stop and settings.skip is not None and not settings.on_action

    def _usual_of(self, view: OptimizerView) -> UsualNorms:
        return self._usual.setdefault(view.number, UsualNorms())

    def _learn(self, one: Pending, record: StepRecord) -> None:
        """What a device has decided some steps ago."""
        outlying, left_out = (bool(one.pack.values[one.at + n]) for n in range(2))
        seen = Seen(*norm_of(one.norms, one.pack), self._usual_of(one.view))
        if left_out:
            self._act(None, seen, record.step)
        else:
            if outlying:
                self._let_it_pass(None, seen, record.step, "capped")
            seen.usual.take(seen.norm)
        self.cap.allows(record.step)
        self._on_device.allow(self.cap.take_balance() + left_out)

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
        if self.settings.skip is None:
            seen.usual.take(seen.norm)
        else:
            self.cap.count(step)
        again = step - self._outlying_at <= AGAIN_STEPS
        self._outlying_at = step
        if self.settings.skip is not None:
            self._leave_out(optimizer, seen, step)
        if again and self.settings.lower_rate:
            self._rate.ask(step)

    def _leave_out(self, optimizer: Any, seen: Seen, step: int) -> None:
        dry = self.settings.dry_run
        if not dry and optimizer is not None:  # else a device has done it
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
        acted = "would have acted" if self.settings.dry_run else "has acted"
        reasons = {
            "capped": f"the guard {acted} as often as it may, {self.cap.words}",
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
        acted = "would have acted" if dry else "has acted"
        told = f"{seen.words}, though the guard {acted} as often as it may, {self.cap.words}: "
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
