"""Backward passes: where one begins and ends, from which losses, and the gradients that it leaves.

A hook on the tensor that a pass starts from marks its begin; a callback of the autograd engine its
end. The callback queues itself once more, because DDP and FSDP write the reduced gradients in
callbacks of their own, which were queued during the pass. `autograd.grad` (a gradient penalty)
accumulates nothing, and so does not count.

Following a pass costs as much as all else the scalars need. A plain loop (gradients cleared to
None, one `scale`, one backward) needs it not: a gradient that is there is this backward's, and one
never written to again is at version 0. So passes are followed in the first steps, on sampled steps,
and wherever a loop is not that plain.

So gradients are noticed that are older than the step that is about to use them. Two mistakes leave
some. A step has used them and nobody cleared them (AMP412); or `scaler.update()` ran before their
step, so that the next backward adds to them under another scale (AMP403). Either way only backward
passes have written to the same tensor since. Clearing replaces the tensor, or writes zeros, which
counts as one more write unless it goes through `.data`. So what the gradients held when the next
pass began decides; it is read late.

The losses of a training without a scaler are those that `backward` was called on. They are heard of
as `backward` is looked up on a tensor. A loss that the user logs is taken instead.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Variable

from ampwatch.probe.current_step import CurrentStep
from ampwatch.probe.hooks import (
    FailureShield,
    Handle,
    Hook,
    hook_any_step_end,
    hook_gradient,
    hook_step_begin,
    tell_no_more,
    tell_of_lookups,
)
from ampwatch.probe.norms import Fingerprint, any_written, fingerprint
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.records import Loss, Mark, Stale, StepRecord, Value, Waiting
from ampwatch.probe.tensor_values import Pack

STEPS_TO_LEARN = 3
STEPS_AFTER_DOUBT = 20
# A window may hold a thousand micro-batches; its first scales tell the story.
MOST_WINDOWS = 16


def leaves_of(start: Tensor) -> list[Tensor]:
    """The tensors into which a backward from here would accumulate."""
    leaves: list[Tensor] = []
    ids = set()
    nodes = [start.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in ids:
            continue
        ids.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.append(variable)
        nodes += [following for following, _ in node.next_functions]
    return leaves


class BackwardWatch:
    """Follows the backward passes of one loop."""

    def __init__(
        self, parameters: Sequence[Tensor], step: CurrentStep, shield: FailureShield
    ) -> None:
        self._parameters: list[Tensor] = []
        self._frozen: dict[int, Tensor] = {}  # those that a loop may yet unfreeze
        self._known: dict[int, int] = {}  # each parameter's place in the list, by its id
        self._step, self._loop = step, step.loop
        self._shield = shield
        self._task: int | None = None  # the pass in progress, by the engine's number
        self._before: Fingerprint | None = None
        self.gradients_left: Fingerprint | None = None  # as the last pass left them
        self._losses: list[Loss] = []
        self._passes: dict[int, int] = {}
        self._released = False
        self._again = Hook(shield, self._queue_last)
        self._last = Hook(shield, self._finish)
        self.add(parameters)

    def add(self, parameters: Sequence[Tensor]) -> None:
        """Follow backward passes into these parameters too."""
        for parameter in parameters:
            if id(parameter) in self._known:
                continue
            if not parameter.requires_grad:
                self._frozen[id(parameter)] = parameter
                continue
            self._frozen.pop(id(parameter), None)
            self._known[id(parameter)] = len(self._parameters)
            self._parameters.append(parameter)
            self.gradients_left = None

    def look_again(self) -> None:
        """Follow backward passes into parameters that have been unfrozen since."""
        self.add([parameter for parameter in self._frozen.values() if parameter.requires_grad])

    def follow_instead(self, parameters: Sequence[Tensor]) -> None:
        """Follow backward passes into these parameters only: they took the place of all."""
        self._parameters.clear()
        self._frozen.clear()
        self._known.clear()
        self._passes.clear()
        self._before = None
        self.add(parameters)

    def follow(self, start: Tensor, loss: Loss | None) -> None:
        """Mark the backward pass that will start at this tensor."""
        if not self._parameters:  # no model was given and no optimizer has been seen yet
            self.add(leaves_of(start))
        hook_gradient(start, Hook(self._shield, self._pass_begins, loss))

    def _pass_begins(self, loss: Loss | None, gradient: Tensor) -> None:
        if self._released:
            return
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            self._losses = []
            self._before = fingerprint(self._parameters)
            self._loop.backward_began()
            device_type = gradient.device.type
            if torch.is_autocast_enabled(device_type):
                self._step.misuse("AMP409", {"device": device_type})
            Variable._execution_engine.queue_callback(self._again)
        if loss is not None:
            self._losses.append(loss)

    def _queue_last(self) -> None:
        Variable._execution_engine.queue_callback(self._last)

    def _finish(self) -> None:
        self._task = None
        if self._released:
            return
        now = fingerprint(self._parameters)
        if now == self._before:
            count = len(self._parameters)
            self.look_again()
            if all(parameter.grad is None for parameter in self._parameters[count:]):
                return
            now = fingerprint(self._parameters)
        self._count_passes(now)
        self.gradients_left = now
        for loss in self._losses:
            loss.counted = True
        self._loop.backward_ended()

    def _count_passes(self, now: Fingerprint) -> None:
        """Count this backward pass for each parameter that it has reached."""
        before = self._before
        if before is None or len(before.identities) != len(now.identities):
            return
        for position, parameter in enumerate(self._parameters):
            same = before.identities[position] == now.identities[position]
            if not same or before.versions[position] != now.versions[position]:
                self._passes[id(parameter)] = self._passes.get(id(parameter), 0) + 1

    def passes_of(self, parameter: Tensor) -> int:
        """How many of the backward passes that were followed have reached this parameter."""
        return self._passes.get(id(parameter), 0)

    def left(self, parameter: Tensor) -> tuple[int, int] | None:
        """This parameter's gradient, by id and version, as the last pass left it."""
        position = self._known.get(id(parameter))
        if self.gradients_left is None or position is None:
            return None
        return self.gradients_left.identities[position], self.gradients_left.versions[position]

    def edited(self, parameters: Sequence[Tensor]) -> bool:
        """Whether someone wrote to these parameters' gradients since the last pass left them."""
        left = self.gradients_left
        if left is None:
            return False
        now = fingerprint(parameters)
        if now.versions == left.versions and now.identities == left.identities:
            return False  # the common case: one optimizer, and it holds just these parameters
        at = [self._known.get(id(parameter)) for parameter in parameters]
        return any(
            position is not None
            and identity != id(None)
            and (left.identities[position], left.versions[position]) != (identity, version)
            for position, identity, version in zip(at, now.identities, now.versions, strict=True)
        )

    def release(self) -> None:
        """Follow no backward pass any more; hooks still on tensors do nothing from now on."""
        self._released = True
        self._parameters = []
        self._frozen = {}
        self._known = {}
        self._losses = []


class Losses:
    """The losses scaled since the last optimizer's turn, and whether passes are followed now.

    A loss counts if its backward accumulated into `.grad`: the inner loss of a gradient penalty
    does not.
    """

    def __init__(self, step: CurrentStep, backward: BackwardWatch) -> None:
        self.pending: list[Loss] = []
        self.followed = True  # in this step
        self.closely_for = STEPS_TO_LEARN  # so many more steps are followed
        self._step = step
        self._backward = backward
        self._sentinels: Sequence[Tensor] = ()
        self._result: weakref.ref[Tensor] | None = None  # of the one loss nobody follows

    def take(self, outputs: Any, results: Any) -> None:
        """Take the loss given to `scaler.scale`; from its result a backward pass will start."""
        if not isinstance(outputs, Tensor):
            if isinstance(outputs, (list, tuple)):
                for output, result in zip(outputs, results, strict=False):
                    self.take(output, result)
            return
        step = self._step
        if step.forwards.unused:
            step.forwards.used()
        pack = (step.record or step.begin()).pack
        if outputs.is_cpu and outputs.ndim == 0:
            values = pack.values
            at = len(values)
            values.append(outputs.item())
        else:  # the user may go on to change it in place
            value = outputs.detach()
            at = pack.put(value.sum() if value.ndim else value.clone())
        loss = Loss(pack, at)
        if self.pending and not self.followed:
            self._follow_from_here()
        self.pending.append(loss)
        if not results.requires_grad:
            return
        if self.followed:
            self._backward.follow(results, loss)
        else:
            self._result = weakref.ref(results)

    def _follow_from_here(self) -> None:
        """A second loss in a step: the loop is not plain, at least here."""
        first = self.pending[0]
        result = None if self._result is None else self._result()
        if any(p.grad is not None for p in self._sentinels):
            first.counted = True
        elif result is not None:
            self._backward.follow(result, first)
        self.followed = True
        self.doubt()

    def doubt(self) -> None:
        """Something was not as in a plain loop: follow backward passes for a while."""
        self.closely_for = max(self.closely_for, STEPS_AFTER_DOUBT)

    def follow_always(self) -> None:
        """Follow every backward pass: this loop does what no version counter shows."""
        self.closely_for = sys.maxsize

    def hand_over(self, sentinels: Sequence[Tensor]) -> list[Loss]:
        """The pending losses, to the optimizer whose turn it is; `sentinels` are parameters of it.

        A few of them stand for all.
        """
        pending, self.pending = self.pending, []
        self._sentinels = sentinels
        if not self.followed:
            for loss in pending:
                loss.counted = True
        elif not _is_plain(pending, sentinels):
            self.doubt()
        return pending

    def begin_step(self, *, sampled: bool) -> None:
        """The next step begins: are its backward passes followed?"""
        if self.closely_for:
            self.closely_for -= 1
        self.followed = sampled or self.closely_for > 0

    def release(self) -> None:
        """Let go of the losses, and of every parameter."""
        self.pending = []
        self._sentinels = ()


def _is_plain(pending: Sequence[Loss], sentinels: Sequence[Tensor]) -> bool:
    """One loss, one backward that used it, and gradients that nobody has written to again."""
    if len(pending) != 1 or not pending[0].counted:
        return False
    return not any_written([p.grad for p in sentinels])


# -- gradients that are older than the step that is about to use them ------------------------------


class StaleGradients:
    """Follows what becomes of gradients between one step and the next; by the optimizer's number.

    Nothing is known of an optimizer, or either its gradients as its last step left them (`used`),
    or as an update found them before any step (`waiting`).
    """

    def __init__(self, backward: BackwardWatch, losses: Losses) -> None:
        self._backward = backward
        self._losses = losses
        self.used: dict[int, tuple[Mark, ...]] = {}
        self.waiting: dict[int, Waiting] = {}
        self._held: dict[int, Value] = {}

    def used_by(self, view: OptimizerView) -> None:
        """A step has used this optimizer's gradients."""
        self.used[view.number] = self._marks(view)
        self.waiting.pop(view.number, None)

    def forget(self, number: int) -> None:
        """Nothing is known any more of what this optimizer's gradients hold from before."""
        self.used.pop(number, None)
        self.waiting.pop(number, None)

    def knows(self, view: OptimizerView) -> bool:
        """Whether it is known what gradients of this optimizer hold from before."""
        return bool(self.used.get(view.number)) or view.number in self.waiting

    def passed_by(self, views: Iterable[OptimizerView], record: StepRecord) -> None:
        """An update closes this record: whose gradients still wait for their step?"""
        turns = {turn.optimizer: turn for turn in record.turns}
        for view in views:
            turn = turns.get(view.number)
            if turn is not None and turn.done:
                continue
            used = self.used.get(view.number, ())
            if not (self._are_untouched(used) or self._is_added_to(used)):
                waiting = self._still_waiting(view, record, unscaled=turn is not None)
                self.forget(view.number)
                if waiting is not None:
                    self.waiting[view.number] = waiting

    def backward_began(self, views: Iterable[OptimizerView], pack: Pack) -> None:
        """Note what gradients from before hold now: zeros, if somebody cleared them."""
        for view in views:
            for mark in self._marks_before(view)[:1]:
                gradient = mark.parameter.grad
                same = gradient is not None and id(gradient) == mark.identity
                if same and gradient is not None and not gradient.is_sparse:
                    held = getattr(gradient, "_local_tensor", gradient).detach()
                    value = Value(pack, pack.put_magnitude(*torch.aminmax(held)))
                    self._held.setdefault(view.number, value)

    def found_by(self, view: OptimizerView) -> Stale | None:
        """The old gradients that the optimizer's turn is about to use; asked once a turn."""
        if not self.knows(view):
            return None
        held = self._held.pop(view.number, None)
        waiting = self.waiting.get(view.number)
        if not self._is_added_to(self._marks_before(view)):
            return None
        newest = () if held is None else (held,)
        return Stale(newest if waiting is None else (*waiting.held, *newest), waiting)

    def release(self) -> None:
        """Let go of every parameter whose gradients were followed."""
        self.used.clear()
        self.waiting.clear()

    # -- parts -----------------------------------------------------------------------------------

    def _marks(self, view: OptimizerView) -> tuple[Mark, ...]:
        return tuple(
            Mark(p, id(p.grad), version, self._backward.passes_of(p))
            for p, version in zip(view.sentinels, fingerprint(view.sentinels).versions, strict=True)
            if p.grad is not None
        )

    def _marks_before(self, view: OptimizerView) -> tuple[Mark, ...]:
        waiting = self.waiting.get(view.number)
        return self.used.get(view.number, ()) if waiting is None else waiting.marks

    def _is_added_to(self, marks: Iterable[Mark]) -> bool:
        """Whether backward passes, and nothing else, have written to one of these since."""
        for mark in marks:
            added = self._backward.passes_of(mark.parameter) - mark.passes
            left = self._backward.left(mark.parameter)
            if added and left == (mark.identity, mark.version + added):
                return True
        return False

    def _are_untouched(self, marks: Iterable[Mark]) -> bool:
        """Whether one of these gradients is still there, and nobody has written to it since."""
        now = fingerprint([mark.parameter for mark in marks])
        return any(
            mark.parameter.grad is not None and (mark.identity, mark.version) == grad
            for mark, grad in zip(
                marks, zip(now.identities, now.versions, strict=True), strict=True
            )
        )

    def _still_waiting(
        self, view: OptimizerView, record: StepRecord, *, unscaled: bool
    ) -> Waiting | None:
        """The gradients that wait now; for longer if backward passes have added to them."""
        before, marks = self.waiting.get(view.number), self._marks(view)
        if before is not None and self._are_untouched(before.marks):
            return replace(before, unscaled=before.unscaled or unscaled)
        held = self._held.pop(view.number, None)
        scales = () if record.scale_at is None else (Value(record.pack, record.scale_at),)
        if before is None or not self._is_added_to(before.marks):
            return Waiting(marks, scales, (), 1, unscaled) if marks else None
        self._losses.doubt()  # this loop accumulates over updates: look closely
        return Waiting(
            marks,
            (*before.scales, *scales)[:MOST_WINDOWS],
            before.held if held is None else (*before.held, held)[:MOST_WINDOWS],
            before.updates + 1,
            before.unscaled or unscaled,
        )


# -- the losses of trainings without a scaler ------------------------------------------------------


class Training(Protocol):
    """What is asked of a watched training."""

    @property
    def scales(self) -> bool: ...  # noqa: D102
    @property
    def has_scaled(self) -> bool: ...  # noqa: D102
    def knows(self, optimizer: Any) -> bool: ...  # noqa: D102
    def watches(self, scaler: Any) -> bool: ...  # noqa: D102
    def found_loss(self, loss: Tensor) -> None: ...  # noqa: D102


class BackwardLosses:
    """The sum of the losses of a step's backward passes, one of each micro-batch."""

    def __init__(self, watches: Callable[[], Collection[Training]], shield: FailureShield) -> None:
        self._watches = watches  # those that go on; nothing here keeps one alive
        self._shield = shield
        self._handles: list[Handle] = []
        self.is_kept = False  # a script may attach at any time
        self._total: Tensor | None = None
        self._parts = 0  # of that sum
        # In this step, by scalers that nobody watches yet: the sum of the losses, if they are that.
        self._scaled: weakref.WeakKeyDictionary[Any, Tensor | None] = weakref.WeakKeyDictionary()
        self._stepping: Any = None  # an optimizer in whose step we are: a closure evaluates anew

    def begin(self) -> None:
        """Hear of each loss, and of optimizers' steps, which end a step's sum of them."""
        tell_of_lookups(Tensor, "backward", self._going_back)
        self._handles = [hook_step_begin(self._begins_step), hook_any_step_end(self._ended_step)]

    @property
    def is_needed(self) -> bool:
        """Whether a watched training has no scaler."""
        return any(not watch.scales for watch in self._watches())

    def end(self) -> None:
        """Hear of nothing more: everything is as it was."""
        tell_no_more(Tensor, "backward", self._going_back)
        while self._handles:
            self._handles.pop().remove()

    def _going_back(self, loss: Tensor) -> None:
        if not torch.compiler.is_compiling():
            self._shield.run(self.add, loss)

    def add(self, loss: Tensor) -> None:
        """Add the loss whose `backward` is about to run to the step's sum."""
        watches = self._watches()
        if loss.ndim or self._scaled or any(watch.has_scaled for watch in watches):
            return
        unscaled = [watch for watch in watches if not watch.scales]
        if unscaled:
            before = None if self._stepping is not None else self._total
            self._parts = 1 if before is None else self._parts + 1
            self._total = _sum(before, loss)
            if self._parts == 1:  # more of them are told as the optimizer steps
                self._log(unscaled, self._total)

    def add_scaled(self, scaler: Any, outputs: Any) -> None:
        """Note a loss that a scaler without a watch is about to scale."""
        total = self._scaled.get(scaler) if scaler in self._scaled else 0.0
        is_loss = isinstance(outputs, Tensor) and outputs.ndim == 0 and total is not None
        self._scaled[scaler] = _sum(total, outputs) if is_loss else None

    def log_scaled(self, scaler: Any) -> None:
        """Log the losses that a scaler has scaled in this step; it is watched from now on."""
        loss = self._scaled.pop(scaler, None)
        for watch in self._watches():
            if loss is not None and watch.watches(scaler):
                watch.found_loss(loss)

    def _log(self, unscaled: Collection[Training], total: Tensor) -> None:
        """Log the sum of backward losses to the watch of the training whose optimizer steps."""
        stepping = None if self._stepping is None else self._stepping()
        for watch in unscaled:
            if len(unscaled) == 1 or (stepping is not None and watch.knows(stepping)):
                watch.found_loss(total)

    def _begins_step(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():  # the step: we must not become part of its graph
            return
        self._stepping = weakref.ref(optimizer)
        if self._total is not None:
            self._shield.run(self._log_several, self._total)

    def _log_several(self, total: Tensor) -> None:
        unscaled = [watch for watch in self._watches() if not watch.scales]
        if len(unscaled) > 1 or self._parts > 1:
            self._log(unscaled, total)

    def _ended_step(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._stepping = self._total = None
        self._scaled.clear()


def _sum(before: Tensor | float | None, loss: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may do as it likes in these
        part = loss.detach().clone()
        return part if before is None else before + part


_heard: list[BackwardLosses] = []


def hear_of_losses(
    watches: Callable[[], Collection[Training]], shield: FailureShield
) -> BackwardLosses:
    """The losses of this process that go backward; they are heard of from the first call on."""
    if not _heard:
        _heard.append(BackwardLosses(watches, shield))
        _heard[0].begin()
    return _heard[0]


def hear_no_more() -> None:
    """Give back what hears of losses, once no training without a scaler is watched."""
    if _heard and not _heard[0].is_kept and not _heard[0].is_needed:
        _heard.pop().end()
