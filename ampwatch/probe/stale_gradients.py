"""Gradients that are older than the step that is about to use them.

Two mistakes leave some. A step has used them and nobody cleared them (AMP412); or `scaler.update()`
ran before their step, so that the next backward adds to them under another scale (AMP403). Either
way only backward passes have written to the same tensor since. Clearing replaces the tensor, or
writes zeros, which counts as one more write unless it goes through `.data`. So what the gradients
held when the next pass began decides; it is read late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ampwatch.probe.backward_passes import BackwardWatch, Losses
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.readback import Pack
from ampwatch.probe.records import Mark, Stale, StepRecord, Value, Waiting

# A window may hold a thousand micro-batches; its first scales tell the story.
MOST_WINDOWS = 16


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
        """Nothing is known of this optimizer's gradients."""
        self.used.pop(number, None)
        self.waiting.pop(number, None)

    def knows(self, view: OptimizerView) -> bool:
        """Whether gradients of this optimizer are followed."""
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
        """What the optimizer's turn is about to use that is older; asked once a turn."""
        if not self.knows(view):
            return None
        held = self._held.pop(view.number, None)
        waiting = self.waiting.get(view.number)
        if not self._is_added_to(self._marks_before(view)):
            return None
        newest = () if held is None else (held,)
        return Stale(newest if waiting is None else (*waiting.held, *newest), waiting)

    def release(self) -> None:
        """Let go of every parameter."""
        self.used.clear()
        self.waiting.clear()

    # -- parts -----------------------------------------------------------------------------------

    def _marks(self, view: OptimizerView) -> tuple[Mark, ...]:
        return tuple(
            Mark(p, id(p.grad), p.grad._version, self._backward.passes_of(p))
            for p in view.sentinels
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
        return any(
            mark.identity == id(grad := mark.parameter.grad)
            and grad is not None
            and grad._version == mark.version
            for mark in marks
        )

    def _still_waiting(
        self, view: OptimizerView, record: StepRecord, *, unscaled: bool
    ) -> Waiting | None:
        """What waits now; a window longer if backward passes have added to what waited before."""
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


def is_poisoned(record: StepRecord) -> bool:
    """Whether a turn of this step used gradients that were not finite before its backward."""
    return any(turn.stale is not None and turn.stale.is_poison for turn in record.turns)
