"""In which steps the forward pass, the input, the loss and the weights were finite, folded.

Also counts steps, skips and missing calls of scaler.update().
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ampwatch.diagnosis.blocks import Block, Times
from ampwatch.diagnosis.column_arrays import Flags, Integers, Mask
from ampwatch.diagnosis.layer_history import ROOT
from ampwatch.diagnosis.record import Event
from ampwatch.rows import EventKind

# No training has so low a rate throughout: it never left the start of its warm-up.
DEAD_RATE = 1e-8

# torch's own words for a step that no update closed.
SECOND_STEP = "step() has already been called since the last update()"

# What an overflow's direction says of the forward pass of its step; the later outweighs.
_FORWARD_OF = {"backward": 1, "loss": 1, "forward": 0, "input": 0, "weights": 0}


@dataclass(slots=True)
class FinitenessHistory:
    """In which steps the forward pass, input, loss and weights were finite; also counts steps.

    Its fields are set anew and never changed in place, so that a shallow copy is independent.
    """

    sees_forward: bool = False
    bad_forwards_running: int = 0  # at the end
    bad_input: Times = field(default_factory=Times)
    bad_loss: Times = field(default_factory=Times)  # with an input that is finite or unknown
    bad_loss_finite_forward: Times = field(default_factory=Times)
    bad_loss_no_forward: Times = field(default_factory=Times)  # ... and those that nobody saw
    bad_loss_value: str = ""
    any_bad_loss: bool = False
    told: frozenset[str] = frozenset()  # which of loss, rate and gradient norm are recorded
    norms: int = 0  # recorded, finite or not
    rates: int = 0  # recorded
    any_rate: bool = False  # a rate that moves anything
    bad_weights: Times = field(default_factory=Times)
    autocast_dtypes: frozenset[str] = frozenset()
    missing_updates: Times = field(default_factory=Times)
    second_steps: Times = field(default_factory=Times)
    second_unscales: Times = field(default_factory=Times)  # after another backward
    open_missing: tuple[int, int] | None = None  # the last entry, if no update closed it
    last_raised: list[int] = field(default_factory=list)  # exceptions in the last step seen
    steps: int = 0
    new_steps: int = 0  # without those that a later attempt took again
    skipped_steps: int = 0
    highest_step: int = -1
    last_step: int | None = None
    last_skipped_step: int | None = None
    last_position: int = -1

    def fold(self, block: Block, forward: Flags, bad_input: Mask) -> None:
        """Add a block; `forward` says of each step whether its forward pass was finite."""
        self._take_exceptions(block)
        self._take_weights(block)
        if not len(block):
            return
        self._count(block)
        self.sees_forward |= bool((forward >= 0).any())
        bad = forward == 0
        running = int(np.cumprod(bad[::-1]).sum())
        self.bad_forwards_running = running + self.bad_forwards_running * (running == len(bad))
        self.autocast_dtypes |= block.autocast_dtypes
        self.bad_input = self.bad_input.and_where(bad_input, block)
        self._count_values(block)
        self._take_loss(block, forward, bad_input)
        self._take_updates(block)

    def _count(self, block: Block) -> None:
        self.steps += _count_distinct_steps(block.step, self.last_step)
        highest = np.maximum.accumulate(np.concatenate(([self.highest_step], block.step)))
        self.new_steps += int(np.count_nonzero(np.diff(highest)))
        self.highest_step = int(highest[-1])
        skipped = block.step[block.skipped]
        self.skipped_steps += _count_distinct_steps(skipped, self.last_skipped_step)
        if len(skipped):
            self.last_skipped_step = int(skipped[-1])
        self.last_step = int(block.step[-1])
        self.last_position = block.start + len(block) - 1

    def _count_values(self, block: Block) -> None:
        """Note which values the record holds, and whether any rate is above next to nothing."""
        rate = block.columns["lr"]
        rates = rate[~np.isnan(rate)]
        self.rates += len(rates)
        self.any_rate |= bool((rates > DEAD_RATE).any())
        norms = int(block.norm_known.sum())
        counts = {"loss": block.loss_known.sum(), "lr": len(rates), "grad_norm": norms}
        self.told |= {name for name, count in counts.items() if count}
        self.norms += norms

    def _take_loss(self, block: Block, forward: Flags, bad_input: Mask) -> None:
        bad = block.loss_bad
        self.any_bad_loss |= bool(bad.any())
        traced = {e.step: e for e in block.events if e.is_guarded and e.is_traced_to("loss")}
        bad |= block.entries_of(list(traced))
        bad &= ~bad_input
        at = np.flatnonzero(bad)
        if len(at) and not self.bad_loss.count:
            guarded = traced.get(int(block.step[at[0]]))
            value = None if guarded is None else guarded.detail.get("value")
            self.bad_loss_value = str(value or float(block.columns["loss"][at[0]]))
        self.bad_loss = self.bad_loss.and_where(bad, block)
        self.bad_loss_finite_forward = self.bad_loss_finite_forward.and_where(
            bad & (forward == 1), block
        )
        self.bad_loss_no_forward = self.bad_loss_no_forward.and_where(bad & (forward != 0), block)

    def _take_weights(self, block: Block) -> None:
        """Count steps with weights that were not finite, by rows and by overflow events."""
        traced = Times()
        for event in block.events:
            if event.is_traced_to("weights"):
                traced = traced.and_at(event.step, block.position(event.step))
        layers, bad = block.layers, block.param_norm_bad.copy()
        bad[layers.entry[layers.has_entry & (layers.flags("weight_finite") == 0)]] = True
        recorded = Times().and_where(bad, block)
        self.bad_weights = self.bad_weights.joined(traced.joined(recorded))

    def _take_updates(self, block: Block) -> None:
        """Count steps of the scaler without an update; the last one may still get its own."""
        raised = [e.step for e in block.events if e.kind == EventKind.EXCEPTION.value]
        missing = (block.update_seen == 0) & ~block.bypassed & ~block.left_out
        if not block.restart:  # the step may go on from the block before
            raised += self.last_raised
        missing &= ~block.entries_of(raised)
        self.last_raised = [step for step in raised if step >= block.step[-1]]
        if self.open_missing is not None:
            self.missing_updates = self.missing_updates.and_at(*self.open_missing)
        closed = missing.copy()
        closed[-1] = False
        self.missing_updates = self.missing_updates.and_where(closed, block)
        last = (int(block.step[-1]), block.start + len(block) - 1)
        self.open_missing = last if missing[-1] else None

    def _take_exceptions(self, block: Block) -> None:
        for event in block.events:
            if event.kind != EventKind.EXCEPTION.value:
                continue
            at = event.step, block.position(event.step)
            if _is_second_step(event):
                self.second_steps = self.second_steps.and_at(*at)
            elif event.detail.get("second_unscale"):
                self.second_unscales = self.second_unscales.and_at(*at)
            elif event.detail.get("input_finite") is False:
                self.bad_input = self.bad_input.and_at(*at)


def forward_finite(block: Block) -> Flags:
    """Whether the forward pass of each step in a block was finite; -1 where nobody looked."""
    layers, result = block.layers, np.full(len(block), -1, np.int8)
    for flag in (1, 0):  # one layer that is not finite outweighs all that are
        result[layers.entry[layers.has_entry & (layers.flags("act_finite") == flag)]] = flag
    for direction, flag in _FORWARD_OF.items():
        steps = [event.step for event in block.events if event.is_traced_to(direction)]
        result[block.entries_of(steps)] = flag
    return result


def bad_input(block: Block) -> Mask:
    """Which steps of a block had an input that was not finite."""
    steps = [event.step for event in block.events if event.is_traced_to("input")]
    return np.asarray((block.input_finite == 0) | block.entries_of(steps))


def inputs_from_models(block: Block) -> dict[int, str]:
    """Steps in which one model's non-finite output was another's input; and the layer it is from.

    A layer whose input was finite and whose output was not caused it, not the data.
    """
    layers = block.layers
    if not layers.names or ROOT in layers.names or not bad_input(block).any():
        return {}
    makers = (layers.flags("act_finite") == 0) & (layers.flags("input_finite") == 1)
    makers_of: dict[int, str] = {}
    for at in np.flatnonzero(makers & (layers.layer >= 0)).tolist():
        step, name = int(layers.step[at]), layers.names[layers.layer[at]]
        if step not in makers_of or name.startswith(f"{makers_of[step]}."):
            makers_of[step] = name
    return makers_of


def _is_second_step(event: Event) -> bool:
    is_worded = SECOND_STEP in str(event.detail.get("message", ""))
    return bool(event.detail.get("second_step")) or is_worded


def _count_distinct_steps(steps: Integers, before: int | None) -> int:
    if not len(steps):
        return 0
    return int((np.diff(steps) != 0).sum()) + int(before is None or steps[0] != before)
