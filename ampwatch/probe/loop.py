"""The training loop as the probe sees it: which call belongs to which step, and when a step ends.

All of it runs on the training thread, so all of it is capture: values are put into the step's pack
and computed on elsewhere. A step ends at `scaler.update()`; without an enabled scaler, at
`optimizer.step()`; and where a loop goes wrong, so that the mistake has a row to stand on.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from ampwatch.probe.readback import Pack
from ampwatch.probe.records import EventRecord, StepRecord, Turn
from ampwatch.probe.updates import compare
from ampwatch.rows import EventKind

# Without a scaler nothing but the backward's end comes before the user's clipping, so norms are
# taken there; after this many steps in which nobody edited a gradient, once a step is enough.
STEPS_TO_LEARN_CLIPPING = 5


class Sampler(Protocol):
    """Decides which steps are looked at in detail; `sampling.Sampling` is one."""

    sampled: bool

    def begin(self, step: int) -> None:
        """The next step has this number."""

    def arm_after(self, step: int) -> None:
        """A skip has been seen before this step."""

    def collect(self, record: StepRecord) -> None:
        """Take what was seen of the layers into the record."""


class Loop:
    """One watched loop; its methods are called by the scaler's subclass and by hooks."""

    def __init__(
        self,
        scaler: Any,
        parameters: Sequence[Tensor],
        deliver: Callable[[StepRecord | EventRecord], None],
        sampling: Sampler,
        guard: Guard,
        start_step: int = 0,
    ) -> None:
        self.step = start_step
        self.sampling = sampling
        self.views: dict[int, OptimizerView] = {}
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self._scaler = scaler
        self._deliver = deliver
        self._guarded = guard.run
        self._positions = {id(p): position for position, p in enumerate(parameters)}
        self._backward = BackwardWatch(parameters, self._backward_ended, self._say_misuse, guard)
        self._detailed = bool(parameters)  # without a model: the scalars and the skips alone
        self._open_step: StepRecord | None = None
        self._losses = Losses(self._backward)
        self._stepping: tuple[Any, OptimizerView, Turn] | None = None  # inside scaler.step
        self._before: Any = None  # its slices
        self._early: dict[int, Any] = {}  # norms taken at the end of a backward, by optimizer
        self._unedited_steps = 0
        self.owner: Any = None  # the watch: alive as long as the scaler or optimizer that calls us
        self._closed_at: float | None = None
        self._settling: deque[StepRecord] = deque()
        self._said: set[str] = set()
        # The hook is every optimizer's: it may not keep this loop, and through it a model, alive.
        hook = register_optimizer_step_pre_hook(partial(_any_optimizer_begins, weakref.ref(self)))
        self._discovery = weakref.finalize(self, hook.remove)
        self._last_error: int | None = None  # its id: holding it would hold its frames

    # -- what is in progress ---------------------------------------------------------------------

    def current(self) -> StepRecord:
        """The step in progress; begins one if there is none."""
        if self._open_step is None:
            self._open_step = StepRecord(self.step, Pack())
        return self._open_step

    def view(self, optimizer: Any) -> OptimizerView:
        """What is known of this optimizer; takes it up when first seen."""
        known = self.views.get(id(optimizer))
        if known is not None and known.optimizer is optimizer:
            if known.follow():
                self._backward.add(known.parameters)
            return known
        hooks = (self._optimizer_begins, self._optimizer_ended)
        made = OptimizerView(
            len(self.views), optimizer, self._positions, hooks, detailed=self._detailed
        )
        shared = {id(p) for view in self.views.values() for p in view.parameters}
        replaced = any(id(p) in shared for p in made.parameters)
        self.views[id(optimizer)] = made
        self._backward.add(made.parameters)
        kind = EventKind.OPTIMIZER_REPLACED if replaced else EventKind.OPTIMIZER
        self.event(kind, made.describe())
        return made

    def event(self, kind: EventKind, detail: Mapping[str, Any]) -> None:
        """Hand over something that happened once."""
        self._deliver(EventRecord(self.step, time.time_ns(), kind, dict(detail)))

    def _say_misuse(self, code: str, detail: Mapping[str, Any]) -> None:
        """A mistake is an event the first time, and a mark in the rows always."""
        if code not in self._said:
            self._said.add(code)
            self.event(EventKind.MISUSE, {"code": code, **detail})

    # -- forward and backward --------------------------------------------------------------------

    def forward_began(self, inputs: Iterable[Tensor], device_type: str) -> None:
        """A training forward of a root module starts with these floating inputs."""
        record = self.current()
        for value in inputs:
            record.input_at = (*record.input_at, _put_amax(value, record.pack))
        if torch.is_autocast_enabled(device_type):
            record.autocast_dtype = str(torch.get_autocast_dtype(device_type)).removeprefix(
                "torch."
            )

    def forward_ended(self, outputs: Iterable[Tensor]) -> None:
        """Without an enabled scaler the output's gradient marks the backward's begin."""
        if self.enabled:
            return
        for value in outputs:
            if value.requires_grad:
                self._backward.follow(value, None)
                return

    def scaled(self, outputs: Any, results: Any) -> None:
        """`scaler.scale(outputs)` gave these results."""
        if isinstance(outputs, Tensor):
            self._losses.take(outputs, results, self.current().pack)
        elif isinstance(outputs, (list, tuple)):
            for output, result in zip(outputs, results, strict=False):
                self.scaled(output, result)

    def _backward_ended(self) -> None:
        """A backward has accumulated gradients."""
        if self.enabled or self._unedited_steps >= STEPS_TO_LEARN_CLIPPING:
            return
        pack = self.current().pack
        for view in self.views.values():
            if self.sampling.sampled:
                view.meter.look_again()
            self._early[view.number] = (
                view.meter.measure(pack),
                fingerprint(view.observed),
            )

    # -- the scaler's calls ----------------------------------------------------------------------

    def before_unscale(self, optimizer: Any) -> None:
        """`unscale_` is about to run; inside `step` all has been seen to already."""
        if self._stepping is None:
            view = self.view(optimizer)
            self._turn(view).edited_before_unscale = self._edited_since_backward(view)

    def after_unscale(self, optimizer: Any) -> None:
        """The gradients are unscaled now and nobody has touched them since."""
        if not self._detailed:
            return
        if self._stepping is not None:
            _, view, turn = self._stepping
        else:
            view = self.view(optimizer)
            turn = self._turn(view)
            view.measured = versions_of(view.observed)
        turn.take_norms(view.meter.measure(self.current().pack))

    def before_step(self, optimizer: Any) -> None:
        """`scaler.step(optimizer)` is about to run (with an enabled scaler)."""
        view = self.view(optimizer)
        turn = self._turn(view)
        self._stepping = (optimizer, view, turn)
        self._take_before(view, turn)
        if view.measured is not None:
            if versions_of(view.observed) != view.measured:
                turn.applied = view.meter.measure(self.current().pack)
            view.measured = None
        elif self._detailed:
            turn.edited_before_unscale = self._edited_since_backward(view)
            if view.fused:
                turn.take_norms(view.meter.measure(self.current().pack, scaled=True))

    def after_step(self, optimizer: Any) -> None:
        """`scaler.step(optimizer)` has returned; its `found_inf` is still there."""
        assert self._stepping is not None, "before_step has run"
        _, view, turn = self._stepping
        self._stepping = None
        record = self.current()
        state = self._scaler._per_optimizer_states.get(id(optimizer), {})
        found = state.get("found_inf_per_device", {}).values()
        turn.found_inf_at = [record.pack.put(one) for one in found]
        if not view.hooked:
            turn.stepped = None
        self._take_update(view, turn)
        turn.done = True

    def before_update(self) -> None:
        """`scaler.update()` is about to change the scale."""
        record = self.current()
        self._put_scale(record)
        record.pack.seal()

    def after_update(self, new_scale: Any) -> None:
        """`scaler.update()` has returned: the step is over."""
        record = self.current()
        scale = self._scaler._scale
        if scale is not None:
            record.scale_after_at = record.pack.put(scale)
        if new_scale is not None:
            self.event(EventKind.SCALE_SET, {})
        self.close_step(update_seen=True)

    def failed(self, where: str, error: BaseException, optimizer: Any = None) -> None:
        """An exception leaves one of the scaler's calls: what there is of the step is a row."""
        if self._last_error == id(error):
            return  # it has left unscale_ already and now leaves step
        self._last_error = id(error)
        self._stepping = None
        detail = {"where": where, "type": type(error).__name__, "message": str(error)[:500]}
        if isinstance(error, Exception):
            again = optimizer is not None and self._turn(self.view(optimizer)).done
            self.event(EventKind.EXCEPTION, {**detail, "fatal": False, "second_step": again})
        if self._open_step is not None:
            if self.enabled and self._scaler._scale is not None:
                self._put_scale(self._open_step)
            self.close_step(update_seen=False)

    def state_saved(self) -> None:
        """`scaler.state_dict()` was called: very likely a checkpoint."""
        self.event(EventKind.STATE_SAVED, {"of": "scaler"})

    def state_loaded(self, state: Any) -> None:
        """`scaler.load_state_dict()` was called."""
        shown = state if isinstance(state, Mapping) else {}
        numbers = {k: v for k, v in shown.items() if isinstance(v, (int, float))}
        self.event(EventKind.STATE_LOADED, {"of": "scaler", **numbers})

    # -- the optimizer's own calls ---------------------------------------------------------------

    def discover(self, optimizer: Any) -> None:
        """Some optimizer steps; an unknown one that holds our parameters bypasses the scaler."""
        if id(optimizer) not in self.views and self._positions:
            self._guarded(self._discover, optimizer)

    def _discover(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        if any(id(p) in self._positions for group in groups for p in group["params"]):
            self._begin_own_step(optimizer)

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        """`optimizer.step()` starts, through the scaler or past it."""
        if self._stepping is None or self._stepping[0] is not optimizer:
            self._guarded(self._begin_own_step, optimizer)

    def _optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        """`optimizer.step()` has run."""
        if self._stepping is None or self._stepping[0] is not optimizer:
            self._guarded(self._end_own_step, optimizer)
        else:
            self._stepping[2].stepped = True

    def _begin_own_step(self, optimizer: Any) -> None:
        view = self.view(optimizer)
        turn = self._turn(view)
        turn.bypassed = self.enabled
        self._take_before(view, turn)
        self._take_norms_without_scaler(view, turn)

    def _end_own_step(self, optimizer: Any) -> None:
        view = self.view(optimizer)
        turn = self._turn(view)
        turn.stepped = True
        self._take_update(view, turn)
        turn.done = True
        if turn.bypassed:
            self._say_misuse("AMP404", {"optimizer": view.number})
        if not self.enabled:
            self.close_step(update_seen=None)

    def _take_norms_without_scaler(self, view: OptimizerView, turn: Turn) -> None:
        """Before and after clipping, as far as a backward's end has been seen."""
        pack = self.current().pack
        if self.enabled:  # past the scaler: what the optimizer sees is still scaled, perhaps
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

    # -- the user's own scalars ------------------------------------------------------------------

    def log(self, scalars: Mapping[str, Any]) -> None:
        """Put the user's scalars into the step in progress."""
        record = self.current()
        for name, value in scalars.items():
            if isinstance(value, Tensor):
                detached = value.detach()
                at = record.pack.put(detached if detached.ndim == 0 else detached.mean())
            else:
                at = record.pack.put_number(float(value))
            if name == "loss":
                record.logged_loss_at = at
            else:
                record.scalars = (*record.scalars, (name, at))

    # -- parts -----------------------------------------------------------------------------------

    def _turn(self, view: OptimizerView) -> Turn:
        """This optimizer's part of the step; a second one begins a new step."""
        record = self.current()
        for turn in record.turns:
            if turn.optimizer == view.number:
                if turn.done and self._losses.pending:
                    # The loop came round without an update: what was scaled since is the next's.
                    self._split()
                    return self._turn(view)
                return turn
        if self.sampling.sampled:
            view.meter.look_again()
        stepped = False if view.hooked else None
        losses = self._losses.hand_over(view.sentinels)
        turn = Turn(view.number, view.positions, losses, stepped=stepped)
        record.turns.append(turn)
        return turn

    def _split(self) -> None:
        """Close the step in progress, but keep the losses since its last turn for the next."""
        losses, self._losses.pending = self._losses.pending, []
        if self.enabled:
            self._put_scale(self.current())
        self.close_step(update_seen=False)
        self._losses.pending = losses

    def _edited_since_backward(self, view: OptimizerView) -> bool:
        if not self._losses.followed:
            if any(versions_of(view.observed)):
                self._losses.doubt()  # who wrote there shows when the next steps are followed
                return True
            return False
        edited = self._backward.edited(view.observed)
        if edited and self.enabled:
            self._say_misuse("AMP401", {"optimizer": view.number})
        return edited

    def _take_before(self, view: OptimizerView, turn: Turn) -> None:
        """What is to be known of the optimizer and its weights before they move."""
        sampled = self.sampling.sampled
        turn.lrs, turn.lr_bases = view.rates()
        self._before = view.slices.before(fresh=sampled)
        if sampled:
            matrices = matrix_parameters(view.observed)
            if matrices and len({p.device for p in matrices}) == 1:
                norm = torch.linalg.vector_norm(
                    torch.stack(norms_of(matrices, half=any_half(matrices)))
                )
                turn.param_norm_at = self.current().pack.put(norm)

    def _take_update(self, view: OptimizerView, turn: Turn) -> None:
        if self._before is not None:
            after = view.slices.after()
            turn.update = compare(view.slices.layout, self._before, after, self.current().pack)
            self._before = None

    def _put_scale(self, record: StepRecord) -> None:
        scale, tracker = self._scaler._scale, self._scaler._growth_tracker
        if record.scale_at is None and scale is not None:
            record.scale_at = record.pack.put(scale)
            record.tracker_at = record.pack.put(tracker)

    # -- the end of a step -----------------------------------------------------------------------

    def close_step(self, *, update_seen: bool | None) -> None:
        """The step in progress becomes a record; the next one begins with the next call."""
        record = self.current()
        self._open_step = None
        if self._losses.pending:
            record.losses = self._losses.hand_over(())
        record.enabled = self.enabled
        record.update_seen = update_seen
        record.sampled = self.sampling.sampled
        self.sampling.collect(record)
        record.pack.seal()
        record.time_ns = time.time_ns()
        now = time.perf_counter()
        if self._closed_at is not None:
            record.step_time_ms = (now - self._closed_at) * 1e3
        self._closed_at = now
        self.step += 1
        self._settling.append(record)
        self.settle()
        self.sampling.begin(self.step)
        self._losses.begin_step(sampled=self.sampling.sampled)

    def settle(self) -> None:
        """Hand over the records whose values have arrived, in their order; never waits."""
        settling = self._settling
        while settling and settling[0].pack.ready():
            record = settling.popleft()
            if overflowed(record):
                self.sampling.arm_after(self.step)
            self._deliver(record)

    def close(self) -> None:
        """Close what is open and let go of every hook."""
        if self._open_step is not None and self._open_step.has_content():
            if self.enabled:
                self._put_scale(self._open_step)
            self.close_step(update_seen=False if self.enabled else None)
        for record in self._settling:
            record.pack.wait()
        self.settle()
        for view in self.views.values():
            view.release()
        self._discovery()
        self._backward.release()
        self.owner = None


def _any_optimizer_begins(reference: weakref.ref[Loop], optimizer: Any, *_: Any) -> None:
    loop = reference()
    if loop is not None:
        loop.discover(optimizer)


def _put_amax(value: Tensor, pack: Pack) -> int:
    """Put the largest magnitude into the pack, nan if there is one."""
    low, high = torch.aminmax(value.detach())
    if not value.is_cpu:
        return pack.put(torch.maximum(-low, high))
    lowest, highest = low.item(), high.item()
    return pack.put_number(lowest if math.isnan(lowest) else max(-lowest, highest))


def overflowed(record: StepRecord) -> bool:
    """Whether any optimizer of this step found an inf."""
    values = record.pack.values
    return any(values[at] for turn in record.turns for at in turn.found_inf_at)
