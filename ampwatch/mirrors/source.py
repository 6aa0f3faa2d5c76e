"""One run as bulletins: what is new of it, as often as it is asked for."""

from __future__ import annotations

from pathlib import Path

from ampwatch.alerts.news import News
from ampwatch.diagnosis import Engine
from ampwatch.mirrors.cursor import Cursor, Part
from ampwatch.mirrors.readings import Bulletin, Points
from ampwatch.store import Run, open_run

MOST_ROWS = 4096  # of a rank in one bulletin: what a client has to take at once


class Source:
    """A run that one mirror follows. A bulletin comes again until `taken` says that it arrived.

    `part` says which rows are shown; findings are the whole run's.
    """

    def __init__(self, folder: Path, part: Part) -> None:
        self.folder = folder
        self.is_over = False
        self._part = part
        self._run: Run | None = None
        self._cursors: dict[int, Cursor] = {}
        self._engine, self._news = Engine(), News()
        self._is_judged = False  # nothing has come since the last diagnosis
        self._pending: Bulletin | None = None

    def look(self) -> None:
        """Take in what was logged since the last look; opens the run, and may raise RunError."""
        if self._run is None:
            self._run, grown = open_run(self.folder), True
            self.is_over = False
        else:
            grown = self._run.refresh()
        if grown:
            self._is_judged = False
        for rank in self._shown(self._run):
            self._cursors.setdefault(rank, Cursor(rank, self._part))

    def next(self) -> Bulletin | None:
        """What is to be shown next; None if all of it was."""
        if self._pending is None and self._run is not None:
            self._pending = self._bulletin(self._run)
        return self._pending

    def taken(self) -> None:
        """The bulletin has arrived."""
        if self._pending is not None and self._pending.is_over:
            self.is_over = True
            self._run, self._engine = None, Engine()  # it may go on one day: its place is kept
        self._pending = None

    @property
    def is_behind(self) -> bool:
        """Whether a bulletin did not arrive."""
        return self._pending is not None

    @property
    def waiting_rows(self) -> int:
        """How many rows did not arrive."""
        pending = self._pending.row_count if self._pending else 0
        return pending + (self._waiting(self._run) if self._run else 0)

    # --- within ----------------------------------------------------------------------------------

    def _shown(self, run: Run) -> list[int]:
        return [rank for rank in run.ranks if self._part.rank in (None, rank)]

    def _bulletin(self, run: Run) -> Bulletin | None:
        points = self._points(run)
        if points or self._waiting(run):  # by themselves: a finding that fails repeats none of them
            return Bulletin(run.info, str(self.folder), points)
        if self._is_judged:
            return None
        self._is_judged = True
        is_over = self._has_ended(run)
        diagnosis = self._engine.feed(run).look()
        diagnosis = diagnosis if is_over else diagnosis.while_running()
        fresh = self._news.of(diagnosis)
        return Bulletin(run.info, str(self.folder), (), diagnosis, fresh, is_over)

    def _points(self, run: Run) -> tuple[Points, ...]:
        """The next rows that are to be shown, past those that are thinned out."""
        while True:
            before = self._waiting(run)
            found = [p for cursor in self._cursors.values() for p in cursor.read(run, MOST_ROWS)]
            if found or not 0 < self._waiting(run) < before:
                return tuple(found)

    def _waiting(self, run: Run) -> int:
        return sum(cursor.waiting(run) for cursor in self._cursors.values())

    def _has_ended(self, run: Run) -> bool:
        """Whether all that is shown has its end mark, and not that of an attempt before."""
        expected = run.info.world_size if self._part.rank is None else 1
        has_ended = len(self._cursors) >= expected and all(run.ended[r] for r in self._cursors)
        return has_ended and run.last_time_ns >= self._part.began_ns
