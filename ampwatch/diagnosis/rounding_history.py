"""What rounding left of the updates of weights in half precision, folded."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block

# Kahan sums and float32 masters keep what rounding loses, but give nothing back before the updates
# add up to a spacing or two of the weights: until then all optimizers look alike.
SETTLED_SPACINGS = 2.0
# Beyond so many, every second sample is dropped.
_MOST_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class RoundingSample:
    """How much of its update one sampled step lost to rounding."""

    step: int
    unmoved_share: float
    asked_share: float
    update_kept_share: float


@dataclass(frozen=True, slots=True)
class RoundingHistory:
    """The samples of what rounding left of updates; `fold` makes a new one."""

    samples: tuple[RoundingSample, ...] = ()
    seen: int = 0
    every: int = 1  # one of so many samples is kept
    spacings: float = 0.0  # that a typical weight was asked to move so far
    last_step: int | None = None

    def fold(self, block: Block) -> RoundingHistory:
        """The history of rounding with one more block."""
        # After a restart, masters and sums may have been made from the weights again.
        history = replace(self, spacings=0.0, last_step=None) if block.restart else self
        figures = np.array([block.columns[name] for name in _COLUMNS])
        for at in np.isfinite(figures).all(axis=0).nonzero()[0].tolist():
            history = history._with(RoundingSample(int(block.step[at]), *figures[:, at].tolist()))
        return history

    def _with(self, sample: RoundingSample) -> RoundingHistory:
        gap = 1 if self.last_step is None else max(1, sample.step - self.last_step)
        spacings = self.spacings + gap * sample.asked_share
        history = replace(self, spacings=spacings, last_step=sample.step)
        if spacings < SETTLED_SPACINGS:
            return history
        kept = self.samples if self.seen % self.every else (*self.samples, sample)
        every = self.every
        if len(kept) > _MOST_SAMPLES:
            kept, every = kept[::2], 2 * every
        return replace(history, samples=kept, seen=self.seen + 1, every=every)


_COLUMNS = ("unmoved_share", "asked_share", "update_kept_share")


@dataclass(frozen=True, slots=True)
class KeptUpdates:
    """How much of their updates the weights kept after rounding, over some samples."""

    share: float
    error: float  # of that mean

    @classmethod
    def of(cls, samples: Sequence[RoundingSample]) -> KeptUpdates:
        """The mean that rounding kept over these samples (two at least), and its error."""
        shares = [sample.update_kept_share for sample in samples]
        return cls(statistics.fmean(shares), statistics.stdev(shares) / math.sqrt(len(shares)))
