"""How long steps (or their micro-batches) take, folded: the fastest of each window of the record.

Evaluations, checkpoints and samples of layers make single steps long, and the fastest no longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import median
from ampwatch.diagnosis.doubling_windows import DoublingWindows

MOST_WINDOWS = 64
# Steps are slower if the last windows all are, and were not before them for at least as long.
LATEST_WINDOWS = 4
# What lasts that much longer than before began the slower part.
_MUCH = 1.4
SLOWER, SLOWER_COST_S = 2.0, 10.0
_NO_WINDOWS = DoublingWindows.empty(np.fmin, MOST_WINDOWS)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Since when steps take longer than before, and how long each takes."""

    since_step: int
    before_ms: float
    now_ms: float
    cost_s: float  # so far


@dataclass(frozen=True, slots=True)
class StepTimeHistory:
    """The time of the fastest step in each window so far; `fold` makes a new history."""

    fastest_ms: DoublingWindows = _NO_WINDOWS
    first_step: DoublingWindows = _NO_WINDOWS

    def fold(self, block: Block) -> StepTimeHistory:
        """The history with one more block."""
        # A step of more micro-batches is meant to take longer.
        parts = np.fmax(block.columns["micro_batches"], 1.0)
        times = block.columns["step_time_ms"] / parts
        known = times > 0
        return StepTimeHistory(
            self.fastest_ms.with_next(times[known]), self.first_step.with_next(block.step[known])
        )

    def slowdown(self) -> Slowdown | None:
        """Since when steps are slower than they were; None if they are not, by the end."""
        fastest, steps = self.fastest_ms.whole, self.first_step.whole
        if len(fastest) < 2 * LATEST_WINDOWS:
            return None
        latest = float(fastest[-LATEST_WINDOWS:].min())
        fast = np.flatnonzero(fastest * _MUCH < latest)
        since = int(fast[-1]) + 1 if len(fast) else 0
        if since < LATEST_WINDOWS:
            return None
        # The first window holds what is compiled and cached once.
        before, after = median(fastest[1:since]), fastest[since:]
        each = (steps[-1] - steps[since]) / max(1, len(after) - 1)  # steps of a window
        cost_s = float((after - before).sum() * each / 1e3)
        if latest < SLOWER * before or cost_s < SLOWER_COST_S:
            return None
        return Slowdown(int(steps[since]), before, median(after), cost_s)
