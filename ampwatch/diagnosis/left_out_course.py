"""Steps that the loop itself left out because its numbers were not finite, folded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.named import Times


@dataclass(frozen=True, slots=True)
class LeftOutCourse:
    """What is remembered of them; `fold` makes a new one."""

    times: Times = field(default_factory=Times)
    running: Times = field(default_factory=Times)  # those in a row at the end of the record

    def fold(self, block: Block) -> LeftOutCourse:
        """The course with a block more."""
        if not len(block):
            return self
        at = np.flatnonzero(block.left_out)
        taken = np.flatnonzero(~block.left_out)
        before = Times() if len(taken) else self.running
        late = at[at > taken[-1]] if len(taken) else at
        return replace(
            self,
            times=self.times.and_entries(at, block.step, block.start),
            running=before.and_entries(late, block.step, block.start),
        )
