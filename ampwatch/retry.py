"""Try something again for a while."""

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
