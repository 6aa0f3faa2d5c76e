"""Time and processor time: interleaved rounds, so that whatever else the machine does hits all."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from typing import Any


def cpu_s() -> float:
    """CPU seconds of this process, its threads and its ended children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long this work takes, by this clock."""
    began = clock()
    work()
    return clock() - began


def in_turns(
    works: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    clock: Callable[[], float] = time.process_time,
    warm_up: int = 0,
) -> dict[str, list[float]]:
    """The seconds of each work, round by round; in a round all works take a turn each."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(warm_up + rounds):
        for name, work in works.items():
            spent = seconds(work, clock)
            if number >= warm_up:
                taken[name].append(spent)
    return taken
