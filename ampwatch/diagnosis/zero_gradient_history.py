"""Steps whose every gradient was exactly zero, folded: the last row of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats, Integers
from ampwatch.diagnosis.times import Times

# In a layer's sample, so much of what was not zero has become so.
ZERO_SHARE = 0.99
# The loss that was there just before: of so many steps, and how much of the way to the zeros' loss
# it may have had left for training to have led there.
ZERO_LOSSES, ZERO_LOSS_LEFT = 5, 0.1


@dataclass(frozen=True, slots=True)
class ZeroGradientRun:
    """Accepted steps in a row in which every gradient of every optimizer was zero."""

    times: Times = field(default_factory=Times)
    cleared: int = 0  # of them, those whose gradients had not been zero after the backward pass
    without_loss: int = 0  # of them, those whose loss was exactly 0
    lowest_loss: float = float("inf")
    highest_loss: float = float("-inf")
    samples: int = 0  # of layers, that hold what their format lost
    lost: int = 0  # of them, those that lost all

    def and_entries(self, block: Block, at: Integers) -> ZeroGradientRun:
        """The row of zero-gradient steps with these entries of a block appended."""
        if not len(at):
            return self
        loss = block.columns["loss"][at]
        known = loss[np.isfinite(loss)]
        shares = _shares(block, at)
        return ZeroGradientRun(
            self.times.and_entries(at, block.step, block.start),
            self.cleared + int(block.norm_cleared[at].sum()),
            self.without_loss + int((known == 0).sum()),
            float(min(self.lowest_loss, known.min(initial=np.inf))),
            float(max(self.highest_loss, known.max(initial=-np.inf))),
            self.samples + len(shares),
            self.lost + int((shares >= ZERO_SHARE).sum()),
        )


@dataclass(frozen=True, slots=True)
class ZeroGradientHistory:
    """Steps with gradients that were all zero, and those with others; `fold` makes a new one."""

    run: ZeroGradientRun = field(default_factory=ZeroGradientRun)  # at the end
    earlier: int = 0  # zero steps before it
    gave: int = 0  # accepted steps with a gradient
    first_losses: tuple[float, ...] = ()  # of theirs
    last_losses: tuple[float, ...] = ()
    frozen: bool = False  # whether any layer was seen whose weights do not learn
    learning: bool = False  # ... and any whose do

    def fold(self, block: Block) -> ZeroGradientHistory:
        """The history of zero gradients with one more block."""
        made = self
        if len(block.layers):
            trainable = block.layers.flags["trainable"]
            made = replace(
                self,
                frozen=self.frozen or bool((trainable == 0).any()),
                learning=self.learning or bool((trainable == 1).any()),
            )
        at = np.flatnonzero(~block.skipped & (block.norm_zero >= 0))
        if not len(at):
            return made
        good = np.flatnonzero(block.norm_zero[at] == 0)
        if not len(good):
            return replace(made, run=self.run.and_entries(block, at))
        loss = block.columns["loss"][at[good]]
        losses = loss[np.isfinite(loss)]
        return replace(
            made,
            run=ZeroGradientRun().and_entries(block, at[good[-1] + 1 :]),
            earlier=self.earlier + self.run.times.count + int(good[-1]) + 1 - len(good),
            gave=self.gave + len(good),
            first_losses=(*self.first_losses, *losses[:ZERO_LOSSES].tolist())[:ZERO_LOSSES],
            last_losses=(*self.last_losses, *losses[-ZERO_LOSSES:].tolist())[-ZERO_LOSSES:],
        )

    @property
    def is_lossless(self) -> bool:
        """Whether the loss was exactly 0 in every step of the last zero-gradient row."""
        return 0 < self.run.times.count == self.run.without_loss

    @property
    def is_constant(self) -> bool:
        """Whether the loss was the same in every step of the last zero-gradient row."""
        return self.run.lowest_loss == self.run.highest_loss

    @property
    def is_learnt(self) -> bool:
        """Whether training itself brought the loss down until no gradient was left.

        The loss had come down nearly all the way, or went to and fro between 0 and more, or was 0
        almost from the start.
        """
        if self.is_lossless and (self.earlier or 0 < self.gave < thresholds.ESTABLISHED_STEPS):
            return True
        if not self.first_losses:
            return False
        begun = min(self.first_losses[0], statistics.median(self.first_losses))
        rest = self.run.highest_loss
        left = min(self.last_losses) - rest
        return rest < begun and left <= ZERO_LOSS_LEFT * (begun - rest)

    @property
    def is_underflow(self) -> bool:
        """Whether half precision turned the gradients into zeros."""
        return 2 * self.run.lost > self.run.samples

    @property
    def has_died(self) -> bool:
        """Whether a model that had learnt passes no gradients any more although its loss is not 0.

        Its units may be dead, and a large update may have killed them.
        """
        known = self.is_lossless or self.is_underflow or self.run.cleared
        return self.gave > 0 and not known and not self.is_learnt


def _shares(block: Block, at: Integers) -> Floats:
    """The share of gradients that layers lost to underflow in these zero-gradient steps."""
    entry, there = block.layer_entries
    share = block.layers.numbers["underflow_share"]
    return np.asarray(share[there & np.isin(entry, at) & np.isfinite(share)])
