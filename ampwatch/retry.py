"""Try something again: for a while, or with pauses that grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def retry(
    act: Callable[[], T],
    for_s: float,
    *,
    every_s: float = 0.02,
    stop: Callable[[], bool] = lambda: False,
) -> T:
    """Call `act` again and again until it returns something true, time is over or `stop` says so.

    Returns what the last call returned; there is always one.
    """
    until_s = time.monotonic() + for_s
    while not (found := act()) and time.monotonic() < until_s and not stop():
        time.sleep(every_s)
    return found


class Retry:
    """When to try again: after a pause that doubles with each failure in a row."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self.failures = self.failures_in_a_row = 0
        self._first_s, self._longest_s = first_s, longest_s
        self._not_before_s = 0.0

    @property
    def due_in_s(self) -> float:
        """How long until the next try."""
        return max(0.0, self._not_before_s - time.monotonic())

    def note(self, *, failed: bool, rest_s: float = 0.0) -> bool:
        """Note whether a try succeeded; True if it is the first that failed."""
        pause_s = rest_s
        if failed:
            pause_s = min(self._first_s * 2.0 ** min(self.failures_in_a_row, 16), self._longest_s)
        self._not_before_s = time.monotonic() + pause_s
        self.failures_in_a_row = self.failures_in_a_row + 1 if failed else 0
        self.failures += failed
        return failed and self.failures == 1
