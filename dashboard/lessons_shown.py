"""What earlier runs that are alike have shown, as a page says it: looked up now and then."""

from __future__ import annotations

import threading
import time

from open_runs import Look

REMADE_S = 30.0  # earlier runs are over, so what they teach changes only as more are judged
_MOST = 64


class LessonsShown:
    """The sentences, by the run's path; shared by all tabs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, tuple[float, str]] = {}

    def of(self, look: Look) -> str:
        """What earlier runs of its folder teach this one; empty where none is alike or near."""
        with self._lock:
            at_s, text = self._made.get(look.path, (-REMADE_S, ""))
            now_s = time.monotonic()
            if now_s - at_s < REMADE_S:
                return text
            lesson = look.lesson()
            self._made.pop(look.path, None)
            self._made[look.path] = now_s, lesson.text if lesson else ""
            while len(self._made) > _MOST:
                self._made.pop(next(iter(self._made)))
            return self._made[look.path][1]
