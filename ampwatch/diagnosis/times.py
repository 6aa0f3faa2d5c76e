"""How often something was seen, and when first and last."""

from __future__ import annotations

from dataclasses import dataclass

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Integers, Mask


@dataclass(frozen=True, slots=True)
class Times:
    """How often something was seen, and when first and last."""

    count: int = 0
    first_step: int | None = None
    last_step: int | None = None
    last_position: int = -1  # an entry of the run

    def and_at(self, step: int, position: int, count: int = 1) -> Times:
        """These times and one more step, `count` times."""
        first = step if self.first_step is None else self.first_step
        return Times(self.count + count, first, step, position)

    def and_entries(self, at: Integers, steps: Integers, start: int) -> Times:
        """These times and these entries of a block that begins at `start`."""
        if not len(at):
            return self
        first = int(steps[at[0]]) if self.first_step is None else self.first_step
        return Times(self.count + len(at), first, int(steps[at[-1]]), start + int(at[-1]))

    def and_where(self, mask: Mask, block: Block) -> Times:
        """These times and the entries of a block that a mask marks."""
        return self.and_entries(mask.nonzero()[0], block.step, block.start)

    def joined(self, other: Times) -> Times:
        """These times and others, together."""
        if not self.count or not other.count:
            return other if other.count else self
        first = self if self.began_before(other) else other
        last = max(self, other, key=lambda times: times.last_position)
        return Times(self.count + other.count, first.first_step, last.last_step, last.last_position)

    def began_before(self, other: Times) -> bool:
        """Whether both were seen at all, and these first."""
        if self.first_step is None or other.first_step is None:
            return False
        return self.first_step < other.first_step
