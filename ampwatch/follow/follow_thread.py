"""A thread that looks at runs again and again, until each is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ampwatch.errors import AmpwatchError, NotARunError
from ampwatch.follow.follower import Follower, follow


class FollowThread:
    """Calls `visit` with each run's folder and follower in each round, until it is done with it.

    A run that cannot be read is reported to `on_trouble` once and tried again in the next round,
    unless it is gone. The thread ends when all that it follows is done, or when it is closed, after
    one more round; `at_end` is the last thing that it calls.
    """

    def __init__(
        self,
        visit: Callable[[Path, Follower], bool],
        on_trouble: Callable[[Path, AmpwatchError], None],
        *,
        every_s: float,
        name: str,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.is_closing = False
        self._visit, self._on_trouble, self._at_end = visit, on_trouble, at_end
        self._every_s = every_s
        self._open: dict[Path, Follower | None] = {}  # opened in the thread
        self._began_ns: dict[Path, int] = {}
        self._woken: set[Path] = set()  # since the last round
        self._unreadable: set[Path] = set()
        self._has_followed = self._is_open_ended = False
        self._alive: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._stirred = threading.Event()  # do not wait for the next round
        self._thread = threading.Thread(target=self._run_rounds, name=name, daemon=True)
        self._thread.start()

    @property
    def is_at_work(self) -> bool:
        """Whether the thread that follows runs is alive."""
        return self._thread.is_alive()

    def follow(self, folder: Path, began_ns: int = 0) -> None:
        """Follow a run until it is over; `began_ns` is when this process began to write it."""
        with self._lock:
            self._open.setdefault(folder, None)
            self._began_ns[folder] = began_ns
            self._has_followed = True
        self._stirred.set()

    def wake(self, folder: Path) -> None:
        """Follow a run that new rows have come for, in the next round; more runs may come."""
        with self._lock:
            self._open.setdefault(folder, None)
            self._woken.add(folder)
            self._is_open_ended = True

    def hear(self, alive: frozenset[str]) -> None:
        """Note the ids of the followed runs whose trainers were heard of just now."""
        self._alive = alive

    def end(self) -> None:
        """Let the thread look at each run once more and end; returns at once."""
        self.is_closing = True
        self._stirred.set()

    def close(self, wait_s: float | None = None) -> bool:
        """End the thread and wait for it; False from within `visit`, where nothing can wait."""
        self.end()
        if self._thread is threading.current_thread():
            return False
        self._thread.join(wait_s)
        return True

    # --- the thread ------------------------------------------------------------------------------

    def _run_rounds(self) -> None:
        is_last = False
        while not is_last:
            self._stirred.wait(self._every_s)
            self._stirred.clear()
            is_last = self.is_closing  # before the round: what came until then is seen in it
            with self._lock:
                due = sorted(self._open)
                self._woken.clear()
            for folder in due:
                self._visit_run(folder)
            with self._lock:
                is_idle = self._has_followed and not self._open and not self._is_open_ended
            is_last = is_last or is_idle
        self._at_end()

    def _visit_run(self, folder: Path) -> None:
        is_done = False
        try:
            follower = self._follower(folder)
            is_done = self._visit(folder, follower)
        except AmpwatchError as problem:
            is_done = isinstance(problem, NotARunError)
            if folder not in self._unreadable:
                self._unreadable.add(folder)
                self._on_trouble(folder, problem)
        with self._lock:
            if is_done and folder not in self._woken:
                del self._open[folder]

    def _follower(self, folder: Path) -> Follower:
        follower = self._open[folder]
        if follower is None:
            follower = self._open[folder] = follow(folder)
            began_ns = self._began_ns.pop(folder, 0)
            follower.liveness.began_ns = max(follower.liveness.began_ns, began_ns)
        if follower.run_id in self._alive:
            follower.liveness.hear()
        return follower
