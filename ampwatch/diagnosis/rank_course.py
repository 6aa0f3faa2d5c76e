"""What the ranks of a run have in common and what not, folded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block, RankRows
from ampwatch.diagnosis.named import Times


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank beside the lowest one."""

    compared: int = 0  # steps of which both tell a loss
    same_losses: int = 0  # bit for bit
    last_step: int = 0
    last_time_ns: int = 0


@dataclass(frozen=True, slots=True)
class RankCourse:
    """What is remembered of the ranks; `fold` makes a new one."""

    others: dict[int, RankFacts] = field(default_factory=dict)
    first_time_ns: float = float("nan")  # of the lowest rank
    last_time_ns: float = float("nan")
    last_step: int = 0
    rows: int = 0
    differ: Times = field(default_factory=Times)  # in scale, or in who skipped
    differing: tuple[int, ...] = ()  # the ranks that did
    losses_vary: bool = False

    def fold(self, block: Block) -> RankCourse:
        """The course with a block more."""
        if not len(block):
            return self
        made = self._with_spine(block)
        for rank, rows in block.others.items():
            made = made._with_rank(block, rank, rows)
        return made

    def _with_spine(self, block: Block) -> RankCourse:
        times, loss = block.columns["time_ns"], block.columns["loss"]
        known = times[times > 0]
        if not len(known):
            return replace(self, rows=self.rows + len(block), last_step=int(block.step[-1]))
        first = self.first_time_ns if self.rows else float(known[0])
        finite = loss[np.isfinite(loss)]
        vary = self.losses_vary or bool(len(finite) and (finite != finite[0]).any())
        return replace(
            self, first_time_ns=first, last_time_ns=float(known[-1]), rows=self.rows + len(block),
            last_step=int(block.step[-1]), losses_vary=vary,
        )  # fmt: skip

    def _with_rank(self, block: Block, rank: int, rows: RankRows) -> RankCourse:
        if not len(rows.step):
            return self
        at, there = block.at_step(rows.step)
        at, mine = at[there], np.flatnonzero(there)
        scale, theirs = block.columns["scale"][at], rows.scale[mine]
        apart = (scale != theirs) & ~np.isnan(scale) & ~np.isnan(theirs)
        flag, other = block.skipped_here[at], rows.skipped[mine]
        apart |= (flag != other) & (flag >= 0) & (other >= 0)
        loss, their_loss = block.columns["loss"][at], rows.loss[mine]
        both = np.isfinite(loss) & np.isfinite(their_loss)
        old = self.others.get(rank, RankFacts())
        facts = RankFacts(
            old.compared + int(both.sum()),
            old.same_losses + int((both & (loss == their_loss)).sum()),
            int(rows.step[-1]),
            int(max(old.last_time_ns, rows.time_ns.max())),
        )
        where = np.unique(at[apart])
        differing = {*self.differing, rank} if len(where) else set(self.differing)
        return replace(
            self,
            others={**self.others, rank: facts},
            differ=self.differ.and_entries(where, block.step, block.start),
            differing=tuple(sorted(differing)),
        )
