"""One optimizer's turn in a step: what its gradients and weights were before, and what it did.

Called by the scaler's subclass around `unscale_` and `step`, and by hooks on the optimizers, which
see the steps that go past a scaler, or without one.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampwatch.probe.backward import BackwardWatch
from ampwatch.probe.gradients import any_half, fingerprint, norms_of, versions_of
from ampwatch.probe.guard import Guard
from ampwatch.probe.losses import Losses
from ampwatch.probe.optimizers import OptimizerView, matrix_parameters
from ampwatch.probe.records import StepRecord, Turn, Value
from ampwatch.probe.sampling import Sampling
from ampwatch.probe.updates import compare
from ampwatch.rows import EventKind

# Without a scaler nothing but the backward's end comes before the user's clipping, so norms are
# taken there; after this many steps in which nobody edited a gradient, once a step is enough.
STEPS_TO_LEARN_CLIPPING = 5


WATCHED = "_ampwatch_watched"  # marks a scaler's class as one of ours


class Steps(Protocol):
    """The step in progress; `loop.Loop` is one."""

    enabled: bool
    scaler: Any
    sampling: Sampling

    def current(self) -> StepRecord:
        """The record of the step in progress."""

    def event(self, kind: EventKind, detail: Mapping[str, Any]) -> None:
        """Hand over something that happened once."""

    def misuse(self, code: str, detail: Mapping[str, Any]) -> None:
        """Say a mistake, once."""

    def adopt(self, scaler: Any) -> None:
        """Go on with another scaler."""

    def come_round(self) -> None:
        """Close the step in progress: its loop has begun anew."""

    def close_step(self, *, update_seen: bool | None) -> None:
        """Close the step in progress."""


class Turns:
    """The turns of all optimizers that the loop has shown."""

    def __init__(
        self,
        steps: Steps,
        parameters: Sequence[Tensor],
        backward: BackwardWatch,
        losses: Losses,
        guard: Guard,
    ) -> None:
        self.views: dict[int, OptimizerView] = {}
        self._seen_optimizers = 0
        self._steps = steps
        self._positions = {id(p): position for position, p in enumerate(parameters)}
        self.detailed = bool(parameters)  # without a model: the scalars and the skips alone
        self._backward = backward
        self._losses = losses
        self._guarded = guard.run
        self.stepping: tuple[Any, OptimizerView, Turn] | None = None  # inside scaler.step
        self._before: Any = None  # its slices
        self._begun: Any = None  # the optimizer that steps without our scaler
        self._early: dict[int, Any] = {}  # norms taken at the end of a backward, by optimizer
        self._left_over: dict[int, Value] = {}  # by optimizer
        self._unedited_steps = 0
        # The hook is every optimizer's: it may not keep this loop, and through it a model, alive.
        hook = register_optimizer_step_pre_hook(partial(_any_optimizer_begins, weakref.ref(self)))
        self._unhook = weakref.finalize(self, hook.remove)

    def view(self, optimizer: Any) -> OptimizerView:
        """What is known of this optimizer; takes it up when first seen."""
        known = self.views.get(id(optimizer))
        if known is not None and known.is_of(optimizer):
            if known.follow(optimizer):
                self._backward.add(known.parameters)
            return known
        made = OptimizerView(
            self._seen_optimizers,
            optimizer,
            self._positions,
            self._optimizer_ended,
            detailed=self.detailed,
        )
        shared = {id(p) for view in self.views.values() for p in view.parameters}
        replaced = any(id(p) in shared for p in made.parameters)
        self.views = {key: view for key, view in self.views.items() if not view.is_gone}
        self.views[id(optimizer)] = made
        self._seen_optimizers += 1
        self._backward.add(made.parameters)
        kind = EventKind.OPTIMIZER_REPLACED if replaced else EventKind.OPTIMIZER
        self._steps.event(kind, made.describe(optimizer))
        return made

    def before_unscale(self, optimizer: Any) -> None:
        """`unscale_` is about to run, called by hand."""
        view = self.view(optimizer)
        self._turn(view).edited_before_unscale = self._edited_since_backward(view)

    def after_unscale(self, optimizer: Any) -> None:
        """The gradients are unscaled now and nobody has touched them since."""
        if self.stepping is not None:
            _, view, turn = self.stepping
        else:
            view = self.view(optimizer)
            turn = self._turn(view)
            view.measured = versions_of(view.observed)
        amax = self._steps.sampling.sampled
        turn.take_norms(view.meter.measure(self._steps.current().pack, amax=amax))

    def before_step(self, optimizer: Any) -> None:
        """`scaler.step(optimizer)` is about to run (with an enabled scaler)."""
        view = self.view(optimizer)
        turn = self._turn(view)
        self.stepping = (optimizer, view, turn)
        self._take_before(optimizer, view, turn)
        if view.measured is not None:
            if versions_of(view.observed) != view.measured:
                turn.applied = view.meter.measure(self._steps.current().pack)
            view.measured = None
        elif self.detailed:
            turn.edited_before_unscale = self._edited_since_backward(view)
            if view.fused:
                turn.take_norms(view.meter.measure(self._steps.current().pack, scaled=True))

    def after_step(self, optimizer: Any) -> None:
        """`scaler.step(optimizer)` has returned; its `found_inf` is still there."""
        assert self.stepping is not None, "before_step has run"
        _, view, turn = self.stepping
        self.stepping = None
        record = self._steps.current()
        state = self._steps.scaler._per_optimizer_states.get(id(optimizer), {})
        found = state.get("found_inf_per_device", {}).values()
        turn.found_inf_at = [record.pack.put(one) for one in found]
        if not view.hooked:
            turn.stepped = None
        self._take_update(view, turn)
        turn.done = True

    # -- the optimizer's own calls ---------------------------------------------------------------

    def optimizer_begins(self, optimizer: Any) -> None:
        """An optimizer of this process steps, not through our scaler; perhaps none of ours."""
        self._guarded(self._begin_own_step, optimizer)

    def _is_ours(self, optimizer: Any) -> bool:
        groups = optimizer.param_groups
        known = self.views.get(id(optimizer))
        return (known is not None and known.is_of(optimizer)) or any(
            id(p) in self._positions for group in groups for p in group["params"]
        )

    def _optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        """`optimizer.step()` has run."""
        if self.stepping is None or self.stepping[0] is not optimizer:
            self._guarded(self._end_own_step, optimizer)
        else:
            self.stepping[2].stepped = True

    def _begin_own_step(self, optimizer: Any) -> None:
        if not self._is_ours(optimizer):
            return
        other = stepping_scaler() if self._steps.enabled else None
        if other is not None and getattr(type(other), WATCHED, False):
            return  # another watch has that scaler, and with it this step
        view = self.view(optimizer)
        turn = self._turn(view)
        turn.bypassed = self._steps.enabled and other is None
        if other is not None:
            self._steps.adopt(other)
        self._begun = optimizer
        self._take_before(optimizer, view, turn)
        self._take_norms_without_scaler(view, turn)

    def _end_own_step(self, optimizer: Any) -> None:
        if self._begun is not optimizer:
            return
        self._begun = None
        view = self.view(optimizer)
        turn = self._turn(view)
        turn.stepped = True
        self._take_update(view, turn)
        turn.done = True
        if turn.bypassed:
            self._steps.misuse("AMP404", {"optimizer": view.number})
        if not self._steps.enabled:
            self._steps.close_step(update_seen=None)

    def _take_norms_without_scaler(self, view: OptimizerView, turn: Turn) -> None:
        """Before and after clipping, as far as a backward's end has been seen."""
        pack = self._steps.current().pack
        if self._steps.enabled:  # past the scaler: what the optimizer sees is still scaled, perhaps
            turn.applied = view.meter.measure(pack)
            return
        early, left = self._early.pop(view.number, (None, None))
        now = fingerprint(view.observed)
        if early is not None and left == now:
            turn.norms = early
            self._unedited_steps += 1
        elif early is not None:
            turn.norms, turn.applied = early, view.meter.measure(pack)
            self._unedited_steps = 0
        elif self._edited_since_backward(view):
            turn.applied = view.meter.measure(pack)
            self._unedited_steps = 0
        else:
            turn.norms = view.meter.measure(pack)

    def backward_ended(self) -> None:
        """A backward has accumulated gradients."""
        if self._unedited_steps >= STEPS_TO_LEARN_CLIPPING:
            return
        pack = self._steps.current().pack
        for view in self.views.values():
            if self._steps.sampling.sampled:
                view.meter.look_again()
            self._early[view.number] = (
                view.meter.measure(pack),
                fingerprint(view.observed),
            )

    # -- parts -----------------------------------------------------------------------------------

    def _turn(self, view: OptimizerView) -> Turn:
        """This optimizer's part of the step; a second one begins a new step."""
        record = self._steps.current()
        for turn in record.turns:
            if turn.optimizer == view.number:
                if turn.done and self._losses.pending:
                    # The loop came round without an update: what was scaled since is the next's.
                    self._steps.come_round()
                    return self._turn(view)
                return turn
        if self._steps.sampling.sampled:
            view.meter.look_again()
        stepped = False if view.hooked else None
        losses = self._losses.hand_over(view.sentinels)
        turn = Turn(view.number, view.positions, losses)
        turn.stepped, turn.groups = stepped, view.groups
        record.turns.append(turn)
        return turn

    def _edited_since_backward(self, view: OptimizerView) -> bool:
        if not self._losses.followed:
            if any(versions_of(view.observed)):
                self._losses.doubt()  # who wrote there shows when the next steps are followed
                return True
            return False
        edited = self._backward.edited(view.observed)
        if edited and self._steps.enabled:
            self._steps.misuse("AMP401", {"optimizer": view.number})
        return edited

    def _take_before(self, optimizer: Any, view: OptimizerView, turn: Turn) -> None:
        """What is to be known of the optimizer and its weights before they move."""
        sampled = self._steps.sampling.sampled
        turn.lrs, turn.lr_bases = view.rates(optimizer)
        if not self.detailed:
            return
        if view.used and self._losses.followed:
            self._notice_uncleared(view, turn)
        self._before = view.slices.before(fresh=sampled)
        if sampled:
            matrices = matrix_parameters(view.observed)
            if matrices and len({p.device for p in matrices}) == 1:
                norm = torch.linalg.vector_norm(
                    torch.stack(norms_of(matrices, half=any_half(matrices)))
                )
                turn.param_norm_at = self._steps.current().pack.put(norm)

    def backward_began(self) -> None:
        """What the gradients that the last step used hold now: zeros, if somebody cleared them."""
        pack = self._steps.current().pack
        for view in self.views.values():
            for parameter, identity, _, _ in view.used[:1]:
                gradient = parameter.grad
                if gradient is not None and id(gradient) == identity and not gradient.is_sparse:
                    extremes = torch.aminmax(gradient.detach())
                    value = Value(pack, pack.put_magnitude(*extremes))
                    self._left_over.setdefault(view.number, value)

    def _notice_uncleared(self, view: OptimizerView, turn: Turn) -> None:
        """Gradients that the last step used, and to which only backward passes have added since.

        Clearing replaces them, or writes zeros, which counts as one more write, but for zeros that
        are written through `.data`: so what they held when the pass began decides, read late.
        """
        left_over = self._left_over.pop(view.number, None)
        for parameter, identity, version, passes in view.used:
            added = self._backward.passes_of(parameter) - passes
            if added and self._backward.left(parameter) == (identity, version + added):
                turn.left_over = left_over
                return

    def _remember_used(self, view: OptimizerView) -> None:
        view.used = [
            (p, id(p.grad), p.grad._version, self._backward.passes_of(p))
            for p in view.sentinels
            if p.grad is not None
        ]

    def _take_update(self, view: OptimizerView, turn: Turn) -> None:
        if self._losses.followed:
            self._remember_used(view)
        else:
            view.used = []
        if self._before is not None:
            after = view.slices.after()
            turn.update = compare(
                view.slices.layout, self._before, after, self._steps.current().pack
            )
            self._before = None

    def abandon(self, optimizer: Any) -> bool:
        """An exception has left a call; whether this optimizer has stepped since the update."""
        self.stepping = None
        state = self._steps.scaler._per_optimizer_states.get(id(optimizer), {})
        return getattr(state.get("stage"), "name", None) == "STEPPED"

    def release(self) -> None:
        """Let go of every hook."""
        for view in self.views.values():
            view.release()
        self._unhook()


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


def _any_optimizer_begins(reference: weakref.ref[Turns], optimizer: Any, *_: Any) -> None:
    turns = reference()
    if turns is None or (turns.stepping is not None and turns.stepping[0] is optimizer):
        return  # our scaler calls it, and has seen to everything
    turns.optimizer_begins(optimizer)
