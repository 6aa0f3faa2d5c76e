"""What a recorder's process has told so far, and those before it, put together for who asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ampwatch.recorder.filing import ALIVE_S
from ampwatch.recorder.messages import Counted, RankTold
from ampwatch.recorder.records import RankRecord, RecordedRun, RecorderStats


@dataclass(frozen=True, slots=True)
class _Told:
    rank: RankTold
    life: int  # of the process that told it


class Heard:
    """Filled by one thread, asked by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ranks: dict[tuple[str, int], _Told] = {}
        self._before, self._latest = Counted(), Counted()
        self._life = 0
        self._since_s = clock()

    def begin_anew(self) -> None:
        """Another process tells from now on, and counts from nothing."""
        self._before, self._latest = self._before + self._latest, Counted()
        self._life += 1
        self._since_s = self._clock()

    def take(self, message: RankTold | Counted) -> None:
        """Note how a rank or the counts stand."""
        if isinstance(message, Counted):
            self._latest = message
        else:
            key = (message.run_id, message.record.rank)
            self._ranks[key] = _Told(message, self._life)

    @property
    def runs(self) -> dict[str, RecordedRun]:
        """The runs heard of, by id."""
        found: dict[str, RecordedRun] = {}
        for told in sorted(self._ranks.copy().values(), key=lambda told: told.rank.record.rank):
            rank = told.rank
            before = found[rank.run_id].ranks if rank.run_id in found else ()
            records = (*before, self._as_of_now(told))
            found[rank.run_id] = RecordedRun(rank.run_id, rank.run_name, rank.folder, records)
        return found

    @property
    def stats(self) -> RecorderStats:
        """The counts of all processes together."""
        counted = self._before + self._latest
        gaps = [gap for told in self._ranks.copy().values() for gap in told.rank.record.gaps]
        return RecorderStats(
            frames=counted.frames,
            rows=counted.rows,
            bytes=counted.bytes,
            bad_frames=counted.bad_frames,
            ignored_frames=counted.ignored_frames,
            requests=counted.requests,
            gaps=sum(after - first for first, after in gaps),
            denied_keys=counted.denied_keys,
        )

    def _as_of_now(self, told: _Told) -> RankRecord:
        """A rank that this process has not heard of for long is alive no more, whoever said so."""
        record = told.rank.record
        is_news = told.life == self._life or self._clock() - self._since_s < ALIVE_S
        return record if is_news else replace(record, is_alive=False)
