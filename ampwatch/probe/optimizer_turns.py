"""One optimizer's turn in a step: what its gradients and weights were before, and what it did.

`watched_scaler` calls the methods around `unscale_` and `step`. Optimizers' steps that no watched
scaler makes (without one, past it, or through a new one) are seen by a hook on every optimizer.
"""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ampwatch.errors import warn
from ampwatch.probe.backward_passes import BackwardWatch, Losses, StaleGradients
from ampwatch.probe.current_step import CurrentStep
from ampwatch.probe.hooks import FailureShield, hook_step_begin
from ampwatch.probe.models import Survey
from ampwatch.probe.norms import (
    Fingerprint,
    GradientMeter,
    NormCapture,
    any_half,
    any_written,
    fingerprint,
    norms_of,
    versions_of,
)
from ampwatch.probe.optimizers import OptimizerView, matrix_parameters, read_state
from ampwatch.probe.records import StepRecord, Turn
from ampwatch.probe.tensor_values import Pack, is_shard
from ampwatch.rows import EventKind

WATCHED = "_ampwatch_watched"  # marks a scaler's class as one of ours

# Without a scaler nothing but the backward's end comes before the user's clipping, so norms are
# taken there; after this many steps in which nobody edited a gradient, once a step is enough.
STEPS_TO_LEARN_CLIPPING = 5

_is_compiling = torch.compiler.is_compiling


@dataclass(frozen=True, slots=True)
class _EarlyNorms:
    """One optimizer's gradients at the end of a backward."""

    pack: Pack  # the norms stand in this one
    norms: NormCapture | None
    left: Fingerprint


class Turns:
    """The turns of all optimizers that the loop has shown, in steps of a scaler and without one."""

    def __init__(
        self,
        step: CurrentStep,
        survey: Survey,
        backward: BackwardWatch,
        losses: Losses,
        shield: FailureShield,
    ) -> None:
        self.views: dict[int, OptimizerView] = {}
        self.detailed = bool(survey.parameters)  # without a model: the scalars and the skips alone
        self.stepping: Any = None  # the optimizer inside scaler.step
        # Whether gradients have been written to through `.data`, which no version counter shows.
        self.unseen_edits = False
        # What may stand in for another optimizer, until the update: see `is_stood_in_for`.
        self.stand_in: tuple[OptimizerView, Turn, Any] | None = None
        self._step = step
        self._survey = survey
        self._backward = backward
        self._losses = losses
        self._stale = StaleGradients(backward, losses)
        self._seen_optimizers = 0
        self._positions: dict[int, int] = {}  # of the survey's parameters, by their ids
        self._number_parameters()
        # Of the optimizer that steps or is unscaled just now.
        self.in_step: tuple[OptimizerView, Turn] | None = None
        self._before: Any = None  # the slices of the optimizer that steps
        self._gradients: list[Any] | None = None  # likewise, until they have been measured
        # The gradients' versions as `unscale_`, called by hand, left them; by optimizer.
        self._unscaled: dict[int, list[int]] = {}
        # What the last backward left, by optimizer; with what it was measured by.
        self._left: dict[int, tuple[Pack, GradientMeter, NormCapture]] = {}
        self._left_unowned: tuple[Pack, NormCapture] | None = None  # before any optimizer is seen
        self.begun: Any = None  # the optimizer that steps without our scaler
        self._early: dict[int, _EarlyNorms] = {}  # by optimizer, where no scaler will unscale
        self._unedited_steps = 0
        self._guarded = shield.run
        # The hook is every optimizer's: it may not keep this loop, and through it a model, alive.
        self._hook = hook_step_begin(partial(_any_optimizer_begins, weakref.ref(self)))
        weakref.finalize(self, self._hook.leave)  # some optimizer's step may be under way

    # -- which optimizers there are ----------------------------------------------------------------

    def knows(self, optimizer: Any) -> bool:
        """Whether the optimizer has been seen, or holds a parameter of the watched models."""
        view = self.views.get(id(optimizer))
        if view is not None and view.is_of(optimizer):
            return True
        groups = optimizer.param_groups
        return any(id(p) in self._positions for group in groups for p in group["params"])

    def view(self, optimizer: Any) -> OptimizerView:
        """What is known of this optimizer; takes it up when first seen."""
        known = self.views.get(id(optimizer))
        if known is not None and known.reference() is optimizer:
            if not known.is_current(optimizer):
                self._follow_parameters(optimizer)
                known.follow(optimizer)
                self._backward.add(known.parameters)
            return known
        self._follow_parameters(optimizer)
        replaced = self._replaced_by(optimizer)
        number = self._seen_optimizers
        begun = () if self._step.record is None else self._step.record.turns
        used = {turn.optimizer for turn in begun}
        for old in [view for view in replaced if view.number not in used][:1]:
            number, old.number = old.number, number  # the new one goes on in its rows
        made = OptimizerView(
            number,
            optimizer,
            self._positions,
            self._optimizer_stepped,
            self._step.optimizer_gone,
            detailed=self.detailed,
        )
        self._forget_gone()
        self.views[id(optimizer)] = made
        self._seen_optimizers += 1
        self._backward.add(made.parameters)
        self._warn_of_later_layers(made)
        kind = EventKind.OPTIMIZER_REPLACED if replaced else EventKind.OPTIMIZER
        self._step.event(kind, made.describe(optimizer))
        return made

    def _replaced_by(self, optimizer: Any) -> list[OptimizerView]:
        """The optimizers with parameters of this new one, in whose place it steps from now on."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        views = self.views.values()
        return [view for view in views if any(id(p) in held for p in view.parameters)]

    def optimizers(self) -> list[Any]:
        """Those that are still there."""
        return [one for view in self.views.values() if (one := view.reference()) is not None]

    def _forget_gone(self) -> None:
        """Let go of optimizers that the user let go, and of parameters that only they knew."""
        gone = [view for view in self.views.values() if view.is_gone]
        if not gone:
            return
        self.views = {key: view for key, view in self.views.items() if not view.is_gone}
        for view in gone:
            self._stale.forget(view.number)
            self._unscaled.pop(view.number, None)
        if any(at < 0 for view in gone for at in view.positions):
            self._follow_anew()

    def _follow_parameters(self, optimizer: Any) -> None:
        """An optimizer with parameters unknown so far: have they taken the place of others?"""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not held <= self._positions.keys() and self._survey.follow():
            self._number_parameters()
            self._follow_anew()

    def _follow_anew(self) -> None:
        self._backward.follow_instead(self._survey.parameters)
        for view in self.views.values():
            self._backward.add(view.parameters)

    def _warn_of_later_layers(self, view: OptimizerView) -> None:
        unknown = [
            p
            for p, at in zip(view.parameters, view.positions, strict=True)
            if at < 0 and not is_shard(p)
        ]
        later = self._survey.came_later(unknown) if unknown else []
        if later:
            more = f" and {len(later) - 1} more" if len(later) > 1 else ""
            warn(
                f"layer {later[0]}{more} was added to the model after attach: its gradients count "
                "in the total norm, but the layer itself is not recorded. Attach when the model "
                "is complete."
            )

    def _number_parameters(self) -> None:
        self._positions.clear()
        self._positions.update((id(p), at) for at, p in enumerate(self._survey.parameters))

    # -- the scaler's calls ------------------------------------------------------------------------

    def before_unscale(self, optimizer: Any) -> None:
        """`unscale_` is about to run, called by hand."""
        if not self._step.used:
            self._step.scaler_is_used()
        view = self.view(optimizer)
        turn = self.turn(view)
        if self.detailed:
            self.in_step = view, turn
            turn.edited_before_unscale = self.edited_since_backward(view)

    def after_unscale(self) -> None:
        """The gradients are unscaled now and nobody has touched them since."""
        assert self.in_step is not None, "before_unscale or before_step has run"
        view, turn = self.in_step
        gradients, self._gradients = self._gradients, None
        if self.stepping is None:  # called by hand
            self.in_step = None
            gradients = view.meter.gradients()
            self._unscaled[view.number] = versions_of(gradients)
        step = self._step
        record = step.record or step.begin()
        turn.take_norms(view.meter.measure(record.pack, gradients, amax=step.sampling.sampled))

    def before_step(self, optimizer: Any) -> None:
        """`scaler.step(optimizer)` is about to run (with an enabled scaler)."""
        step = self._step
        if not step.used:
            step.scaler_is_used()
        view = self.views.get(id(optimizer))
        as_before = view is not None and view.is_as_before(optimizer)
        if view is None or not as_before:
            view = self.view(optimizer)
        turn = self.turn(view)
        self.stepping, self.in_step = optimizer, (view, turn)
        self.take_before(optimizer, view, turn, as_before=as_before)
        if self.detailed:
            self._take_gradients(view, turn)

    def _take_gradients(self, view: OptimizerView, turn: Turn) -> None:
        """What is to be known of the gradients before `scaler.step` looks at them."""
        gradients = view.meter.gradients()
        versions = self._unscaled.pop(view.number, None)
        if versions is not None:
            looks = self._step.sampling.sampled or self.unseen_edits
            if looks or versions_of(gradients) != versions:
                turn.applied = view.meter.measure(self._step.begin().pack, gradients)
            return
        turn.edited_before_unscale = self.edited_since_backward(view, gradients)
        if view.fused:
            turn.take_norms(view.meter.measure(self._step.begin().pack, gradients, scaled=True))
        else:
            self._gradients = gradients

    def after_step(self, scaler: Any, optimizer: Any) -> None:
        """`scaler.step(optimizer)` has returned; its `found_inf` is still there."""
        assert self.in_step is not None, "before_step has run"
        view, turn = self.in_step
        self.stepping = self.in_step = self._gradients = None
        record = self._step.record or self._step.begin()
        scale, state = scaler._scale, scaler._per_optimizer_states.get(id(optimizer))
        values = record.pack.values
        at = len(values)
        for found in state.get("found_inf_per_device", {}).values() if state else ():
            if found.is_cpu:
                values.append(found.item())
            else:
                record.pack.put(found)
        end = len(values)
        turn.found_inf_at = range(at, end)
        if record.scale_at is None and scale is not None and scale.is_cpu:  # it can be read now
            record.scale_at, record.tracker_at = end, end + 1
            values.append(scale.item())
            values.append(scaler._growth_tracker.item())
        if not view.hooked:
            turn.stepped = None
        self.take_update(view, turn)

    def _optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        """`optimizer.step()` has run, in its turn or alone."""
        if _is_compiling():
            return
        if self.in_step is None or self.stepping is not optimizer:
            self._guarded(self._end_alone, optimizer)
        else:
            self.in_step[1].stepped = True

    def abandon(self, optimizer: Any) -> str | None:
        """An exception has left a call; how far the scaler was with this optimizer."""
        self.stepping = self.in_step = self._gradients = None
        state = self._step.scaler()._per_optimizer_states.get(id(optimizer), {})
        stage: str | None = getattr(state.get("stage"), "name", None)
        return stage

    # -- what every step needs, whoever makes it ---------------------------------------------------

    def turn(self, view: OptimizerView) -> Turn:
        """This optimizer's part of the step; a second one begins a new step."""
        record = self._step.record or self._step.begin()
        for turn in record.turns:
            if turn.optimizer == view.number:
                if turn.done and self._losses.pending:
                    # The loop came round without an update: what was scaled since is the next's.
                    self._step.loop.close_without_update()
                    return self.turn(view)
                return turn
        if self._step.sampling.sampled:
            view.look_again()
            self._backward.look_again()
        losses = self._losses.hand_over(view.sentinels)
        turn = Turn(view.number, view.positions, view.groups, losses)
        if self._left or self._left_unowned:
            turn.left = self._left_to(view, record)
        if view.hooked:
            turn.stepped = False
        record.turns.append(turn)
        return turn

    def edited_since_backward(
        self, view: OptimizerView, gradients: list[Any] | None = None
    ) -> bool:
        """Whether anybody but a backward has written to this optimizer's gradients."""
        if not self._losses.followed:
            if any_written(view.meter.gradients() if gradients is None else gradients):
                self._losses.doubt()  # who wrote there shows when the next steps are followed
                return True
            return False
        edited = self._backward.edited(view.observed)
        if edited and self._step.enabled:
            self._step.misuse("AMP401", {"optimizer": view.number})
        return edited

    def take_before(
        self, optimizer: Any, view: OptimizerView, turn: Turn, *, as_before: bool = False
    ) -> None:
        """What is to be known of the optimizer and its weights before they move.

        `as_before`: its rates are known. One that has leapt is reported. Of the weights slices are
        taken, on sampled steps their norm too.
        """
        sampled = self._step.sampling.sampled
        for group, before, now in () if as_before else view.read_rates(optimizer):
            detail = {"optimizer": view.number, "group": group, "from": before, "to": now}
            self._step.event(EventKind.LR_CHANGED, detail)
        turn.lrs, turn.lr_bases = view.lrs, view.lr_bases
        if self._losses.followed:
            turn.stale = self._stale.found_by(view)
        if self.detailed:
            self._before = view.slices.before(fresh=sampled)
            if sampled:
                turn.param_norm_at = self._put_weight_norm(view)

    def _put_weight_norm(self, view: OptimizerView) -> int | None:
        """The exact norm of the weights that are matrices, if it can be had in one place."""
        matrices = matrix_parameters(view.observed)
        if not matrices or len({p.device for p in matrices}) > 1:
            return None
        norms = norms_of(matrices, half=any_half(matrices))
        norm = torch.linalg.vector_norm(torch.stack(norms))
        return self._step.begin().pack.put(norm)

    def take_update(self, view: OptimizerView, turn: Turn) -> None:
        """What the step has done to the weights; it is this optimizer's last act in the turn."""
        turn.done = True
        if self._losses.followed:
            self._stale.used_by(view)
        elif self._stale.used or self._stale.waiting:
            self._stale.forget(view.number)
        before, self._before = self._before, None
        if before is None:
            return
        if view.hooked or turn.bypassed or not self._step.enabled:
            self._measure_update(view, turn, before)
        else:
            self.stand_in = view, turn, before

    def _measure_update(self, view: OptimizerView, turn: Turn, before: Any) -> None:
        pack = (self._step.record or self._step.begin()).pack
        after = view.slices.after()
        turn.update = view.slices.compare(before, after, pack)
        if self._step.sampling.sampled:
            turn.state = read_state(view, before, after, pack)

    def is_stood_in_for(self, optimizer: Any) -> bool:
        """Whether the scaler was given an object in this optimizer's place, and the loop steps it.

        fastai gives it a callback: its `step` only notes that no gradient was inf.
        """
        if self.stand_in is None:
            return False
        held = {id(p) for p in self.stand_in[0].parameters}
        return any(id(p) in held for group in optimizer.param_groups for p in group["params"])

    def stand_in_ends(self) -> None:
        """`scaler.update()`: what was stood in for has moved the weights by now."""
        if self.stand_in is not None:
            view, turn, before = self.stand_in
            self.stand_in = None
            self._measure_update(view, turn, before)

    # -- steps that no watched scaler makes --------------------------------------------------------

    def begins(self, optimizer: Any) -> None:
        """Some optimizer of this process steps, and not through our scaler."""
        self._guarded(self._begin_alone, optimizer)

    def evaluated(self, view: OptimizerView) -> NormCapture | None:
        """What the last backward within a step has left of this optimizer's gradients."""
        early = self._early.get(view.number)
        return None if early is None else early.norms

    def measure_early(self) -> None:
        """Measure what a backward has accumulated, which no scaler will unscale."""
        inside = self.begun is not None  # a closure's: the optimizer evaluates within its step
        learnt = self._unedited_steps >= STEPS_TO_LEARN_CLIPPING
        if learnt and not inside and not self._looks_for_edits():
            return
        pack = self._step.begin().pack
        for view in self.views.values():
            if self._step.sampling.sampled:
                view.meter.look_again()
            left = fingerprint(view.observed)
            self._early[view.number] = _EarlyNorms(pack, view.meter.measure(pack), left)

    def _begin_alone(self, optimizer: Any) -> None:
        if not self.knows(optimizer) or self._is_part_of_another(optimizer):
            return
        other = stepping_scaler() if self._step.enabled else None
        if other is not None and getattr(type(other), WATCHED, False):
            return  # another watch has that scaler, and with it this step
        idle = other is None and not self._step.used and self._step.enabled
        if idle:
            self._step.ignore_unused_scaler()
        view = self.view(optimizer)
        turn = self.turn(view)
        turn.bypassed = self._step.enabled and other is None
        if other is not None:
            self._step.adopt(other)
        self.begun = optimizer
        self.take_before(optimizer, view, turn)
        if idle:  # nobody has looked whether somebody clipped
            turn.applied = view.meter.measure(self._step.begin().pack)
        else:
            self._take_norms(view, turn)

    def _end_alone(self, optimizer: Any) -> None:
        if self.begun is not optimizer:
            return
        self.begun = None
        view = self.view(optimizer)
        turn = self.turn(view)
        turn.stepped = not turn.found_inf(self._step.begin().pack.values)  # by an engine's own word
        evaluated = self._early.pop(view.number, None)
        if evaluated is not None:  # by a closure: what came before its last evaluation is gone
            turn.norms, turn.applied = evaluated.norms, None
        self.take_update(view, turn)
        if turn.bypassed:
            self._step.misuse("AMP404", {"optimizer": view.number})
        if not self._step.enabled:
            self._step.loop.close_step(update_seen=None)

    def _is_part_of_another(self, optimizer: Any) -> bool:
        """Whether a wrapper (ZeroRedundancyOptimizer, Lookahead) steps, and by it this one."""
        if self.is_stood_in_for(optimizer):
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
        elif self.edited_since_backward(view):
            turn.applied = view.meter.measure(pack)
            self._unedited_steps = 0
        elif self._backward.gradients_left is None and any_written(view.meter.gradients()):
            turn.applied = view.meter.measure(pack)  # by a backward, or by somebody after it
        else:
            turn.norms = view.meter.measure(pack)

    def _looks_for_edits(self) -> bool:
        """Whether norms are taken twice, to find edits that no version counter shows."""
        return self._step.sampling.sampled or self.unseen_edits

    # -- what the backward left --------------------------------------------------------------------

    def backward_began(self) -> None:
        """A backward that is followed has begun: what do older gradients hold?"""
        self._stale.backward_began(self.views.values(), self._step.begin().pack)

    def measure_left(self) -> None:
        """Measure what a backward that was followed has left: nobody has been at it yet."""
        pack = self._step.begin().pack
        if not self.views:
            left = GradientMeter(self._survey.parameters).measure(pack, scaled=True)
            self._left_unowned = None if left is None else (pack, left)
        for view in self.views.values():
            left = view.meter.measure(pack, scaled=True)
            if left is not None:
                self._left[view.number] = pack, view.meter, left

    def _left_to(self, view: OptimizerView, record: StepRecord) -> NormCapture | None:
        """What the backward left of this optimizer's gradients, if that was measured."""
        unowned, self._left_unowned = self._left_unowned, None
        if unowned is not None and unowned[0] is record.pack and self._is_whole(view):
            return unowned[1]
        left = self._left.pop(view.number, None)
        if left is not None and left[0] is record.pack and left[1] is view.meter:
            return left[2]
        return None

    def _is_whole(self, view: OptimizerView) -> bool:
        """Whether all gradients of the models are this optimizer's, and no others."""
        here = {id(p) for p in self._survey.parameters if p.grad is not None}
        return here == {id(p) for p in view.observed if p.grad is not None}

    # -- once the step's values have arrived -------------------------------------------------------

    def look_for_edits(self, turn: Turn, record: StepRecord) -> None:
        """Were gradients written to where no version counter shows it?"""
        norms, applied, left, values = turn.norms, turn.applied, turn.left, record.pack.values
        if norms is None or norms.unseen or norms.sharded:
            return
        if applied is not None and applied.differs_from(norms, values, 1.0):
            self.unseen_edits = True
        if left is None or norms.scaled or record.scale_at is None:
            return
        if left.differs_from(norms, values, values[record.scale_at]):
            turn.norms, turn.applied = None, applied or norms
            self.unseen_edits = True
            self._losses.follow_always()
            self._step.misuse("AMP401", {"optimizer": turn.optimizer}, step=record.step)

    def update_passes(self, record: StepRecord) -> None:
        """`scaler.update()` closes this record; some optimizer may not have stepped in it."""
        turns = record.turns
        if len(turns) != len(self.views) or not all(turn.done for turn in turns):
            self._stale.passed_by(self.views.values(), record)

    def remember_used(self, record: StepRecord) -> None:
        """Look out for what this step, which overflowed, leaves in the gradients."""
        done = {turn.optimizer for turn in record.turns if turn.done}
        for view in self.views.values():
            if view.number in done and not self._stale.knows(view):
                self._stale.used_by(view)

    def release(self) -> None:
        """Let go of every optimizer: of its hooks and its parameters."""
        self._hook.remove()
        self._early.clear()
        self.begun = None
        for view in self.views.values():
            view.release()
        self.views = {}
        self._positions.clear()
        self._stale.release()
        self._unscaled.clear()
        self.stepping = self.in_step = self._before = self._gradients = None


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


def _any_optimizer_begins(reference: weakref.ref[Turns], optimizer: Any, *_: Any) -> None:
    if _is_compiling():  # the step: we must not become part of its graph
        return
    turns = reference()
    if turns is not None and turns.stepping is not optimizer:  # else our scaler steps it
        turns.begins(optimizer)
