"""Optimizers that step by themselves: without a scaler, past ours, or through one made anew."""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ampwatch.probe.gradients import Fingerprint, NormCapture, any_written, fingerprint
from ampwatch.probe.guard import Guard
from ampwatch.probe.hooks import hook_step_begin
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.readback import Pack
from ampwatch.probe.records import Turn
from ampwatch.probe.steps import Steps
from ampwatch.probe.turns import Turns

WATCHED = "_ampwatch_watched"  # marks a scaler's class as one of ours

# Without a scaler nothing but the backward's end comes before the user's clipping, so norms are
# taken there; after this many steps in which nobody edited a gradient, once a step is enough.
STEPS_TO_LEARN_CLIPPING = 5


@dataclass(frozen=True, slots=True)
class _Early:
    """One optimizer's gradients as a backward has left them."""

    pack: Pack  # the norms stand in this one
    norms: NormCapture | None
    left: Fingerprint


class OwnSteps:
    """Sees each optimizer's own `step`, and makes it a turn where no watched scaler does."""

    def __init__(self, steps: Steps, turns: Turns, guard: Guard) -> None:
        self._steps = steps
        self.turns = turns
        self._guarded = guard.run
        self._begun: Any = None  # the optimizer that steps without our scaler
        # Norms taken at the end of a backward, and the gradients then, by optimizer.
        self._early: dict[int, _Early] = {}
        self._unedited_steps = 0
        turns.ended_alone = self.ended
        # The hook is every optimizer's: it may not keep this loop, and through it a model, alive.
        self._hook = hook_step_begin(partial(_any_optimizer_begins, weakref.ref(self)))
        weakref.finalize(self, self._hook.leave)  # some optimizer's step may be under way

    def release(self) -> None:
        """Let go of every optimizer."""
        self._hook.remove()
        self._early.clear()
        self._begun = None

    def begins(self, optimizer: Any) -> None:
        """An optimizer of this process steps, not through our scaler; perhaps none of ours."""
        self._guarded(self._begin, optimizer)

    def ended(self, optimizer: Any) -> None:
        """`optimizer.step()` has run, not by our scaler."""
        self._guarded(self._end, optimizer)

    def backward_ended(self) -> None:
        """A backward has accumulated gradients, and no scaler will unscale them."""
        inside = self._begun is not None  # a closure's: the optimizer evaluates within its step
        learnt = self._unedited_steps >= STEPS_TO_LEARN_CLIPPING
        if learnt and not inside and not self._looks_for_edits():
            return
        pack = self._steps.current().pack
        for view in self.turns.views.values():
            if self._steps.sampling.sampled:
                view.meter.look_again()
            left = fingerprint(view.observed)
            self._early[view.number] = _Early(pack, view.meter.measure(pack), left)

    def _begin(self, optimizer: Any) -> None:
        if not self.turns.knows(optimizer) or self._is_part_of_another(optimizer):
            return
        other = stepping_scaler() if self._steps.enabled else None
        if other is not None and getattr(type(other), WATCHED, False):
            return  # another watch has that scaler, and with it this step
        idle = other is None and not self._steps.used and self._steps.enabled
        if idle:
            self._steps.leave_idle()
        view = self.turns.view(optimizer)
        turn = self.turns.turn(view)
        turn.bypassed = self._steps.enabled and other is None
        if other is not None:
            self._steps.adopt(other)
        self._begun = optimizer
        self.turns.take_before(optimizer, view, turn)
        if idle:  # nobody has looked whether somebody clipped
            turn.applied = view.meter.measure(self._steps.current().pack)
        else:
            self._take_norms(view, turn)

    def _end(self, optimizer: Any) -> None:
        if self._begun is not optimizer:
            return
        self._begun = None
        view = self.turns.view(optimizer)
        turn = self.turns.turn(view)
        turn.stepped = True
        evaluated = self._early.pop(view.number, None)
        if evaluated is not None:  # by a closure: what came before its last evaluation is gone
            turn.norms, turn.applied = evaluated.norms, None
        self.turns.take_update(view, turn)
        if turn.bypassed:
            self._steps.misuse("AMP404", {"optimizer": view.number})
        if not self._steps.enabled:
            self._steps.close_step(update_seen=None)

    def _is_part_of_another(self, optimizer: Any) -> bool:
        """Whether a wrapper (ZeroRedundancyOptimizer, Lookahead) steps, and by it this one."""
        if self.turns.is_stood_in_for(optimizer):
            return True
        outer = self._begun
        return outer is not None and outer is not optimizer and _steps_around_us(outer)

    def _take_norms(self, view: OptimizerView, turn: Turn) -> None:
        """Before and after clipping, as far as a backward's end has been seen."""
        pack = self._steps.current().pack
        if self._steps.enabled:  # past the scaler: what the optimizer sees is still scaled, perhaps
            turn.applied = view.meter.measure(pack)
            return
        early = self._early.pop(view.number, None)
        if early is not None and early.pack is not pack:
            early = None  # of a step that is over
        if early is not None and early.left == fingerprint(view.observed):
            turn.norms = early.norms
            self._unedited_steps += 1
            if self._looks_for_edits():
                turn.applied = view.meter.measure(pack)
        elif early is not None:
            turn.norms, turn.applied = early.norms, view.meter.measure(pack)
            self._unedited_steps = 0
        elif self.turns.edited_since_backward(view):
            turn.applied = view.meter.measure(pack)
            self._unedited_steps = 0
        elif not self.turns.sees_backward and any_written(view.meter.gradients()):
            turn.applied = view.meter.measure(pack)  # by a backward, or by somebody after it
        else:
            turn.norms = view.meter.measure(pack)

    def _looks_for_edits(self) -> bool:
        """Whether norms are taken twice, to find what no version counter tells."""
        return self._steps.sampling.sampled or self.turns.unseen_edits


def _steps_around_us(optimizer: Any) -> bool:
    """Whether this optimizer's step is under way around this call: no exception has ended it."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name in ("step", "wrapper") and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


def stepping_scaler() -> Any:
    """The GradScaler whose `step` is under way around this call; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "step":
            caller = frame.f_locals.get("self")
            if isinstance(caller, torch.amp.GradScaler):
                return caller
        frame = frame.f_back
    return None


def _any_optimizer_begins(reference: weakref.ref[OwnSteps], optimizer: Any, *_: Any) -> None:
    if torch.compiler.is_compiling():  # the step: we must not become part of its graph
        return
    own_steps = reference()
    if own_steps is None:
        return
    stepping = own_steps.turns.stepping
    if stepping is None or stepping[0] is not optimizer:  # else our scaler sees to everything
        own_steps.begins(optimizer)
