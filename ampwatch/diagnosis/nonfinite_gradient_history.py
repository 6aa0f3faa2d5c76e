"""Steps without a scaler: gradients that were not finite, and steps that moved no weight, folded.

A step whose gradients are not finite writes nan into the weights unless something leaves it out.
The update shows whether the loop did: it is exactly zero, after steps that moved the weights; or no
optimizer stepped, and the forward pass or the loss shows why.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Integers, Mask
from ampwatch.diagnosis.finiteness_history import DEAD_RATE
from ampwatch.diagnosis.layer_history import innermost_layers
from ampwatch.diagnosis.times import Times


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
            bad=self.bad.and_entries(at, block.step, block.start),
            nans=self.nans.and_entries(at[~infs], block.step, block.start),
            early_nans=self.early_nans + int(((at < first) & ~infs).sum()),
            late_infs=self.late_infs + int((infs & (at >= first)).sum()),
            unsettled=unsettled.and_entries(since, block.step, block.start),
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
    entry, there = block.layer_entries
    made = (layers.flags["grad_finite"] == 0) | (layers.flags["in_grad_finite"] == 0)
    made &= (layers.flags["out_grad_finite"] == 1) & there & np.isin(entry, at)
    names = innermost_layers(
        {layers.names[code] for code in layers.layer[made].tolist() if code >= 0}
    )
    return names[0] if len(names) == 1 else None


def _is_still(block: Block) -> Mask:
    """Where a step moved no weight, as if its gradients were not finite; null is no zero."""
    columns = block.columns
    pushed = ~(columns["grad_norm"] == 0) & ~(columns["lr"] <= DEAD_RATE)
    taken = ~block.skipped & ~block.left_out & ~block.guarded
    return np.asarray((columns["update_norm"] == 0) & pushed & taken)
