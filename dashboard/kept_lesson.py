"""What earlier runs that are alike have shown a run, looked up now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ampwatch.diagnosis.earlier_runs import LessonOfEarlierRuns
from ampwatch.follow import Follower, lesson_for

REMADE_S = 30.0  # earlier runs are over, so what they teach changes only as more are judged


class KeptLesson:
    """One run's; shared by all tabs that look at it."""

    def __init__(self, follower: Follower, clock: Callable[[], float]) -> None:
        self._follower, self._clock = follower, clock
        self._lock = threading.Lock()
        self._lesson: LessonOfEarlierRuns | None = None
        self._made_s: float | None = None

    def now(self) -> LessonOfEarlierRuns | None:
        """What earlier runs of its folder teach it; None where none is alike or near."""
        with self._lock:
            if self._made_s is None or self._clock() - self._made_s >= REMADE_S:
                with self._follower.reading() as run:
                    self._lesson = lesson_for(run)
                self._made_s = self._clock()
            return self._lesson
