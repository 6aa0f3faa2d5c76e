"""What the ranks of a run have in common and where they differ, folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block, BlockRows, Times
from ampwatch.diagnosis.column_arrays import Mask
from ampwatch.diagnosis.record import Event
from ampwatch.rows import EventKind


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What is known of one rank beside the lowest one."""

    compared: int = 0  # steps with a loss on both
    same_losses: int = 0  # bit for bit
    last_step: int = 0
    last_time_ns: int = 0
    ahead_ns: int | None = None  # its clock, at the first step that both have closed
    # The lowest rank's and its own, at the first step with a scale on both.
    first_scales: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class RankHistory:
    """What the ranks of a run have in common and where they differ; `fold` makes a new one."""

    others: Mapping[int, RankFacts] = field(default_factory=dict)
    first_time_ns: float = float("nan")  # of the lowest rank
    last_time_ns: float = float("nan")
    last_step: int = 0
    rows: int = 0
    differ: Times = field(default_factory=Times)  # in scale, or in who skipped
    differing: tuple[int, ...] = ()  # the ranks that did
    losses_vary: bool = False
    attempts: Mapping[int, int] = field(default_factory=dict)  # how often each rank began
    ended: frozenset[int] = frozenset()  # those that said so

    def fold(self, block: Block) -> RankHistory:
        """The history of ranks with one more block."""
        history = self._with_marks(block.events)
        if not len(block):
            return history
        history = history._with_spine(block)
        if not block.others:
            return history
        apart = np.zeros(len(block), np.bool_)
        for rank, rows in sorted(block.others.items()):
            if len(rows.step):
                history, here = history._with_rank(block, rank, rows)
                apart |= here
        where = np.flatnonzero(apart)
        return replace(history, differ=history.differ.and_entries(where, block))

    def is_gone(self, rank: int) -> bool:
        """Whether this rank recorded its end, or is not part of the newest attempt."""
        newest = max(self.attempts.values(), default=0)
        return rank in self.ended or self.attempts.get(rank, 0) < newest

    def _with_marks(self, events: tuple[Event, ...]) -> RankHistory:
        """Note which ranks began, and which recorded their end."""
        if not events:
            return self
        attempts, ended = dict(self.attempts), set(self.ended)
        for event in events:
            if event.kind == EventKind.STARTED.value:
                attempts[event.rank] = attempts.get(event.rank, 0) + 1
                ended.discard(event.rank)
            elif event.kind == EventKind.ENDED.value:
                ended.add(event.rank)
        return replace(self, attempts=attempts, ended=frozenset(ended))

    def _with_spine(self, block: Block) -> RankHistory:
        times, loss = block.columns["time_ns"], block.columns["loss"]
        known, finite = times[times > 0], loss[np.isfinite(loss)]
        rows, last_step = self.rows + len(block), int(block.step[-1])
        if not len(known):
            return replace(self, rows=rows, last_step=last_step)
        return replace(
            self,
            rows=rows,
            last_step=last_step,
            first_time_ns=self.first_time_ns if self.rows else float(known[0]),
            last_time_ns=float(known[-1]),
            losses_vary=self.losses_vary or bool((finite != finite[:1]).any()),
        )

    def _with_rank(self, block: Block, rank: int, rows: BlockRows) -> tuple[RankHistory, Mask]:
        """Compare one rank's steps of a block with the lowest rank's; also where they differ."""
        at, there = block.at_step(rows.step)
        at, mine = at[there], np.flatnonzero(there)
        scale, theirs = block.columns["scale"][at], rows.numbers("scale")[mine]
        places = np.flatnonzero(~np.isnan(scale) & ~np.isnan(theirs))
        apart = (scale != theirs) & ~np.isnan(scale) & ~np.isnan(theirs)
        flag, other = block.skipped_here[at], rows.flags("skipped")[mine]
        apart |= (flag != other) & (flag >= 0) & (other >= 0)
        loss, their_loss = block.columns["loss"][at], rows.numbers("loss")[mine]
        both = np.isfinite(loss) & np.isfinite(their_loss)
        times = rows.integers("time_ns")
        time, their_time = block.columns["time_ns"][at], times[mine]
        ahead = (their_time - time)[(time > 0) & (their_time > 0)]
        old = self.others.get(rank, RankFacts())
        facts = RankFacts(
            old.compared + int(both.sum()),
            old.same_losses + int((both & (loss == their_loss)).sum()),
            int(rows.step[-1]),
            int(max(old.last_time_ns, times.max())),
            int(ahead[0]) if old.ahead_ns is None and len(ahead) else old.ahead_ns,
            (float(scale[places[0]]), float(theirs[places[0]]))
            if old.first_scales is None and len(places)
            else old.first_scales,
        )
        where = np.zeros(len(block), np.bool_)
        where[at[apart]] = True
        differing = {*self.differing, rank} if where.any() else self.differing
        others = {**self.others, rank: facts}
        return replace(self, others=others, differing=tuple(sorted(differing))), where
