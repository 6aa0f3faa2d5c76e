"""Optimizers' steps that no watched scaler makes: without one, past it, or through a new one."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ampwatch.probe.current_step import CurrentStep
from ampwatch.probe.hooks import hook_step_begin
from ampwatch.probe.norms import Fingerprint, NormCapture, any_written, fingerprint
from ampwatch.probe.optimizer_turns import Turns
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.own_failures import Guard
from ampwatch.probe.records import Turn
from ampwatch.probe.tensor_values import Pack

WATCHED = "_ampwatch_watched"  # marks a scaler's class as one of ours

# Without a scaler nothing but the backward's end comes before the user's clipping, so norms are
# taken there; after this many steps in which nobody edited a gradient, once a step is enough.
STEPS_TO_LEARN_CLIPPING = 5

_is_compiling = torch.compiler.is_compiling


@dataclass(frozen=True, slots=True)
class _Early:
    """One optimizer's gradients at the end of a backward."""

    pack: Pack  # the norms stand in this one
    norms: NormCapture | None
    left: Fingerprint


class UnscaledSteps:
    """Sees each optimizer's own `step`, and makes it a turn where no watched scaler does.

    `adopt` goes on with a scaler that the loop has made anew; `close_step` ends a step.
    """

    def __init__(
        self,
        step: CurrentStep,
        turns: Turns,
        guard: Guard,
        adopt: Callable[[Any], None],
        close_step: Callable[[], None],
    ) -> None:
        self._step = step
        self.turns = turns
        self._guarded = guard.run
        self._adopt = adopt
        self._close_step = close_step
        self.begun: Any = None  # the optimizer that steps without our scaler
        # Norms taken at the end of a backward, and the gradients then, by optimizer.
        self._early: dict[int, _Early] = {}
        self._unedited_steps = 0
        # The hook is every optimizer's: it may not keep this loop, and through it a model, alive.
        self._hook = hook_step_begin(partial(_any_optimizer_begins, weakref.ref(self)))
        weakref.finalize(self, self._hook.leave)  # some optimizer's step may be under way

    def release(self) -> None:
        """Watch no optimizer's own steps any more."""
        self._hook.remove()
        self._early.clear()
        self.begun = None

    def begins(self, optimizer: Any) -> None:
        """Some optimizer of this process steps, and not through our scaler."""
        self._guarded(self._begin, optimizer)

    def ended(self, optimizer: Any) -> None:
        """`optimizer.step()` has run, not by our scaler."""
        self._guarded(self._end, optimizer)

    def evaluated(self, view: OptimizerView) -> NormCapture | None:
        """What the last backward within a step has left of this optimizer's gradients."""
        early = self._early.get(view.number)
        return None if early is None else early.norms

    def backward_ended(self) -> None:
        """A backward has accumulated gradients, and no scaler will unscale them."""
        inside = self.begun is not None  # a closure's: the optimizer evaluates within its step
        learnt = self._unedited_steps >= STEPS_TO_LEARN_CLIPPING
        if learnt and not inside and not self._looks_for_edits():
            return
        pack = self._step.begin().pack
        for view in self.turns.views.values():
            if self._step.sampling.sampled:
                view.meter.look_again()
            left = fingerprint(view.observed)
            self._early[view.number] = _Early(pack, view.meter.measure(pack), left)

    def _begin(self, optimizer: Any) -> None:
        if not self.turns.knows(optimizer) or self._is_part_of_another(optimizer):
            return
        other = stepping_scaler() if self._step.enabled else None
        if other is not None and getattr(type(other), WATCHED, False):
            return  # another watch has that scaler, and with it this step
        idle = other is None and not self._step.used and self._step.enabled
        if idle:
            self._step.leave_idle()
        view = self.turns.view(optimizer)
        turn = self.turns.turn(view)
        turn.bypassed = self._step.enabled and other is None
        if other is not None:
            self._adopt(other)
        self.begun = optimizer
        self.turns.take_before(optimizer, view, turn)
        if idle:  # nobody has looked whether somebody clipped
            turn.applied = view.meter.measure(self._step.begin().pack)
        else:
            self._take_norms(view, turn)

    def _end(self, optimizer: Any) -> None:
        if self.begun is not optimizer:
            return
        self.begun = None
        view = self.turns.view(optimizer)
        turn = self.turns.turn(view)
        turn.stepped = True
        evaluated = self._early.pop(view.number, None)
        if evaluated is not None:  # by a closure: what came before its last evaluation is gone
            turn.norms, turn.applied = evaluated.norms, None
        self.turns.take_update(view, turn)
        if turn.bypassed:
            self._step.misuse("AMP404", {"optimizer": view.number})
        if not self._step.enabled:
            self._close_step()

    def _is_part_of_another(self, optimizer: Any) -> bool:
        """Whether a wrapper (ZeroRedundancyOptimizer, Lookahead) steps, and by it this one."""
        if self.turns.is_stood_in_for(optimizer):
            return True
        outer = self.begun
        return outer is not None and outer is not optimizer and _steps_around_us(outer)

    def _take_norms(self, view: OptimizerView, turn: Turn) -> None:
        """Norms before and after clipping; before it only where a backward's end was seen."""
        pack = self._step.begin().pack
        if self._step.enabled:  # past the scaler: what the optimizer sees is still scaled, perhaps
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
        """Whether norms are taken twice, to find edits that no version counter shows."""
        return self._step.sampling.sampled or self.turns.unseen_edits


def _steps_around_us(optimizer: Any) -> bool:
    """Whether this call comes from inside that optimizer's step."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name in ("step", "wrapper") and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


def stepping_scaler() -> Any:
    """The GradScaler whose `step` this call comes from; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "step":
            caller = frame.f_locals.get("self")
            if isinstance(caller, torch.amp.GradScaler):
                return caller
        frame = frame.f_back
    return None


def _any_optimizer_begins(reference: weakref.ref[UnscaledSteps], optimizer: Any, *_: Any) -> None:
    if _is_compiling():  # the step: we must not become part of its graph
        return
    steps = reference()
    if steps is not None and steps.turns.stepping is not optimizer:  # else our scaler steps it
        steps.begins(optimizer)
