"""Steps whose gradients were exactly zero or not finite, and how the loop moved weights and rates.

Without a scaler a step whose gradients are not finite writes nan into the weights unless something
leaves it out. The update shows whether the loop did: it is exactly zero, after steps that moved the
weights; or no optimizer stepped, and the forward pass or the loss shows why.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block, Times
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask
from ampwatch.diagnosis.finiteness_history import DEAD_RATE
from ampwatch.diagnosis.layer_history import innermost_layers
from ampwatch.diagnosis.record import Event, positive_number
from ampwatch.rows import EventKind

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
        losses = loss[np.isfinite(loss)]
        shares = _shares(block, at)
        return ZeroGradientRun(
            self.times.and_entries(at, block),
            self.cleared + int(block.norm_cleared[at].sum()),
            self.without_loss + int((losses == 0).sum()),
            float(min(self.lowest_loss, losses.min(initial=np.inf))),
            float(max(self.highest_loss, losses.max(initial=-np.inf))),
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
        history = self
        if len(block.layers):
            trainable = block.layers.flags("trainable")
            history = replace(
                self,
                frozen=self.frozen or bool((trainable == 0).any()),
                learning=self.learning or bool((trainable == 1).any()),
            )
        at = np.flatnonzero(~block.skipped & (block.norm_zero >= 0))
        if not len(at):
            return history
        good = np.flatnonzero(block.norm_zero[at] == 0)
        if not len(good):
            return replace(history, run=self.run.and_entries(block, at))
        loss = block.columns["loss"][at[good]]
        losses = loss[np.isfinite(loss)]
        return replace(
            history,
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
        is_harmless = self.is_lossless or self.is_underflow or self.run.cleared
        return self.gave > 0 and not is_harmless and not self.is_learnt


def _shares(block: Block, at: Integers) -> Floats:
    """The share of gradients that layers lost to underflow in these zero-gradient steps."""
    layers, share = block.layers, block.layers.numbers("underflow_share")
    here = layers.has_entry & np.isin(layers.entry, at)
    return np.asarray(share[here & np.isfinite(share)])


@dataclass(frozen=True, slots=True)
class NonfiniteGradientHistory:
    """Counts of steps with gradients that were not finite, and of steps that moved no weight."""

    bad: Times = field(default_factory=Times)  # gradients not finite, the loss was
    nans: Times = field(default_factory=Times)  # of them, nan, or edited after the backward pass
    early_nans: int = 0  # ... before the first finite norm
    late_infs: int = 0  # of them, those that were inf after it
    unsettled: Times = field(default_factory=Times)  # ... inf since the last finite norm
    layer: str | None = None  # in whose backward it began, where a sample shows it
    found_good: bool = False  # a finite norm
    skipped: Times = field(default_factory=Times)  # steps recorded as skipped, by anyone
    unmoved: Times = field(default_factory=Times)  # ... after steps that moved the weights
    unmoved_bad: Times = field(default_factory=Times)  # of them, with gradients not finite
    moved: int = 0
    left_out: Times = field(default_factory=Times)  # no optimizer had a turn
    left_out_last: Times = field(default_factory=Times)  # those in a row at the record's end

    def fold(self, block: Block) -> NonfiniteGradientHistory:
        """The history with one more block."""
        if not len(block):
            return self
        still, bad = _is_still(block), _not_finite(block)
        moves = np.flatnonzero(block.columns["update_norm"] > 0)
        began = 0 if self.moved else int(moves[0]) if len(moves) else len(block)
        after = still & (np.arange(len(block)) >= began)
        taken = np.flatnonzero(~block.left_out)
        last = self.left_out_last if not len(taken) else Times()
        ending = block.left_out & (np.arange(len(block)) > (taken[-1] if len(taken) else -1))
        return replace(
            self._with_gradients(block, np.flatnonzero(bad & ~still)),
            skipped=self.skipped.and_where(block.skipped, block),
            unmoved=self.unmoved.and_where(after, block),
            unmoved_bad=self.unmoved_bad.and_where(after & bad, block),
            moved=self.moved + len(moves),
            left_out=self.left_out.and_where(block.left_out, block),
            left_out_last=last.and_where(ending, block),
        )

    def _with_gradients(self, block: Block, at: Integers) -> NonfiniteGradientHistory:
        """Count which bad gradients were nan or inf, and after which a finite norm followed.

        An optimizer that takes an inf makes nan of the weights: if loss and norm are finite
        afterwards, somebody skipped the step.
        """
        norm, loss = block.columns["grad_norm"], block.columns["loss"]
        good, infs = np.isfinite(norm), np.isinf(norm[at])
        sound = np.flatnonzero(good & ~(block.loss_known & ~np.isfinite(loss)))
        first = 0 if self.found_good else int(np.argmax(good)) if good.any() else len(block)
        since = at[infs & (at > (sound[-1] if len(sound) else -1))]
        unsettled = Times() if len(sound) else self.unsettled
        return replace(
            self,
            bad=self.bad.and_entries(at, block),
            nans=self.nans.and_entries(at[~infs], block),
            early_nans=self.early_nans + int(((at < first) & ~infs).sum()),
            late_infs=self.late_infs + int((infs & (at >= first)).sum()),
            unsettled=unsettled.and_entries(since, block),
            layer=self.layer or _maker(block, at),
            found_good=self.found_good or bool(good.any()),
        )


def _not_finite(block: Block) -> Mask:
    """Where gradients were not finite at steps that nobody skipped, though the loss was finite."""
    bad = (block.norm_known & ~np.isfinite(block.columns["grad_norm"])) | block.applied_bad
    taken = ~block.skipped & ~block.left_out & ~block.guarded
    return np.asarray(bad & ~block.loss_bad & taken)


def _maker(block: Block, at: Integers) -> str | None:
    """The innermost layer that turned finite gradients into non-finite ones in one of these steps.

    None if the steps were not sampled, or if several layers did.
    """
    layers = block.layers
    if not len(at) or not len(layers):
        return None
    makes = (layers.flags("grad_finite") == 0) | (layers.flags("in_grad_finite") == 0)
    makes &= (layers.flags("out_grad_finite") == 1) & layers.has_entry & np.isin(layers.entry, at)
    names = innermost_layers(
        {layers.names[code] for code in layers.layer[makes].tolist() if code >= 0}
    )
    return names[0] if len(names) == 1 else None


def _is_still(block: Block) -> Mask:
    """Where a step moved no weight, as if its gradients were not finite; null is no zero."""
    columns = block.columns
    pushed = ~(columns["grad_norm"] == 0) & ~(columns["lr"] <= DEAD_RATE)
    taken = ~block.skipped & ~block.left_out & ~block.guarded
    return np.asarray((columns["update_norm"] == 0) & pushed & taken)


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
        has_rates = skipped_before & np.isfinite(lr) & np.isfinite(lr_before)
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
            skips=self.skips + int(has_rates.sum()),
            moved_on_skips=self.moved_on_skips.and_where(has_rates & (lr != lr_before), block),
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
    scalers = [event for event in block.events if event.kind == EventKind.SCALER_REPLACED.value]
    if not scalers:
        return 0
    at, there = block.at_step(np.array([event.step for event in scalers], np.int64))
    scales = block.columns["scale"][at].tolist()
    return sum(
        _halvings(event, scale)
        for event, scale, known in zip(scalers, scales, there, strict=True)
        if known
    )


def _halvings(event: Event, scale: float) -> int:
    first = positive_number(event.detail.get("init_scale"))
    factor = positive_number(event.detail.get("backoff_factor"))
    if first is None or factor is None or factor >= 1.0 or not 0.0 < scale < first < math.inf:
        return 0
    return round((math.log(first) - math.log(scale)) / -math.log(factor))
