"""How the loop moved learning rates and weights around skipped steps, folded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.event import Event, positive_number
from ampwatch.diagnosis.times import Times
from ampwatch.rows import EventKind

# An optimizer was starved that was given less of its gradients than the first and moved the weights
# by less of their norm than the second. Clipping hard leaves a large update, a converged run all of
# its small gradients, and Adam does not mind a factor until its eps is the larger.
STARVED = ((1e-3, 1e-6), (1e-6, 2e-5))
TWICE_SCALE, TWICE_ERROR = 16.0, 0.02  # from this scale on, and so nearly, a share is 1 / scale


@dataclass(frozen=True, slots=True)
class LoopHistory:
    """How the loop moved rates and weights around skipped steps; `fold` makes a new one."""

    skips: int = 0  # whose rate and the next step's are known
    moved_on_skips: Times = field(default_factory=Times)  # the rate moved all the same
    skipped_in_part: Times = field(default_factory=Times)
    still: Times = field(default_factory=Times)  # accepted, with a rate and a gradient, unmoved
    starved: Times = field(default_factory=Times)  # ... given next to nothing of the gradient
    divided_twice: int = 0  # ... of them, those given the gradient divided by the scale once more
    starved_share: float = float("nan")  # of the last starved step
    moved: int = 0  # accepted steps that moved the weights
    unmoved: int = 0  # steps of any kind that did not, as far as recorded
    updates: int = 0  # ... and steps that did
    searched: int = 0  # steps that new scalers skipped before the watch saw them
    last_lr: float = float("nan")
    last_skipped: bool = False

    @property
    def pushed(self) -> int:
        """How many accepted steps should have moved the weights."""
        return self.still.count + self.moved

    def fold(self, block: Block) -> LoopHistory:
        """The history of the loop with one more block."""
        if not len(block):
            return self
        lr, columns = block.columns["lr"], block.columns
        lr_before = np.concatenate(([self.last_lr], lr[:-1]))
        skipped_before = np.concatenate(([self.last_skipped], block.skipped[:-1]))
        known = skipped_before & np.isfinite(lr) & np.isfinite(lr_before)
        move = columns["update_norm"]
        pushed = ~block.skipped & ~block.guarded & (lr > 0) & np.isfinite(columns["grad_norm"])
        pushed &= columns["grad_norm"] > 0
        given = columns["grad_norm_applied"] / np.where(pushed, columns["grad_norm"], np.nan)
        starved = np.zeros(len(block), bool)
        for share, least in STARVED:
            starved |= (given > 0) & (given <= share) & (move <= least * columns["param_norm"])
        once_more = given * columns["scale"]
        twice = starved & (abs(once_more - 1) <= TWICE_ERROR)
        twice &= columns["scale"] >= TWICE_SCALE
        return replace(
            self,
            starved=self.starved.and_where(starved, block),
            divided_twice=self.divided_twice + int(twice.sum()),
            starved_share=float(given[starved][-1]) if starved.any() else self.starved_share,
            skips=self.skips + int(known.sum()),
            moved_on_skips=self.moved_on_skips.and_where(known & (lr != lr_before), block),
            skipped_in_part=self.skipped_in_part.and_where(block.skipped_in_part, block),
            still=self.still.and_where(pushed & (move == 0), block),
            moved=self.moved + int((pushed & (move > 0)).sum()),
            unmoved=self.unmoved + int(((move == 0) & ~block.guarded).sum()),
            updates=self.updates + int((move > 0).sum()),
            searched=self.searched + _searched(block),
            last_lr=float(lr[-1]),
            last_skipped=bool(block.skipped[-1]),
        )


def _searched(block: Block) -> int:
    """How many steps new scalers skipped before the loop's watch saw their first step."""
    made = [event for event in block.events if event.kind == EventKind.SCALER_REPLACED.value]
    if not made:
        return 0
    at, there = block.at_step(np.array([event.step for event in made], np.int64))
    scales = block.columns["scale"][at].tolist()
    return sum(
        _halvings(event, scale)
        for event, scale, known in zip(made, scales, there, strict=True)
        if known
    )


def _halvings(event: Event, scale: float) -> int:
    first = positive_number(event.detail.get("init_scale"))
    factor = positive_number(event.detail.get("backoff_factor"))
    if first is None or factor is None or factor >= 1.0 or not 0.0 < scale < first < math.inf:
        return 0
    return round((math.log(first) - math.log(scale)) / -math.log(factor))
