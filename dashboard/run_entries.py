"""The entries of the table of runs: made in the background, kept until the run has new rows."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import small_charts
from run_list import Choice
from step_curves import SCALE, Numbers

from ampwatch.errors import AmpwatchError
from ampwatch.follow import Follower, follow
from ampwatch.store import open_run

REMAKE_S = 5.0  # a live run's entry is made anew after so long
_SPARK_POINTS = 48


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run in one line of the table."""

    last_time_ns: int
    verdict: str
    headline: str  # code and name of the gravest finding, or nothing
    source: str
    steps: int
    last_step: int
    skipped: int
    final_scale: float | None
    spark: str  # the path of a small SVG
    problem: str = ""


class RunEntries:
    """The entries; one that is missing or old is made when it is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, RunEntry] = {}
        self._made_at: dict[str, float] = {}
        self._asked: set[str] = set()
        self._followers: dict[str, Follower] = {}  # of live runs, whose engines go on
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="ampwatch-entries")

    def of(self, choice: Choice) -> RunEntry | None:
        """The run's entry as last made; None while the first is being made."""
        with self._lock:
            entry = self._kept.get(choice.path)
            made_at = self._made_at.get(choice.path, -REMAKE_S)
            is_old = entry is None or (
                entry.last_time_ns < choice.last_time_ns and time.monotonic() - made_at >= REMAKE_S
            )
            if is_old and choice.path not in self._asked:
                self._asked.add(choice.path)
                self._workers.submit(self._make, choice)
        return entry

    def keep(self, paths: set[str]) -> None:
        """Forget the runs that are no longer listed."""
        with self._lock:
            for path in set(self._kept) - paths:
                del self._kept[path]
                self._followers.pop(path, None)

    def _make(self, choice: Choice) -> None:
        follower, entry = _entry(choice)
        with self._lock:
            self._followers.pop(choice.path, None)
            if follower is not None and choice.live:
                self._followers[choice.path] = follower
            self._kept[choice.path] = entry
            self._made_at[choice.path] = time.monotonic()
            self._asked.discard(choice.path)


def _entry(choice: Choice) -> tuple[Follower | None, RunEntry]:
    try:
        follower = follow(choice.path)
        diagnosis = follower.look().diagnosis
        run = open_run(choice.path)
        curves = Numbers().take(run)
    except (AmpwatchError, OSError) as problem:
        return None, RunEntry(
            choice.last_time_ns, "incomplete", "", "", 0, 0, 0, None, "", problem=str(problem)
        )
    head = diagnosis.headline
    serious = head is not None and head.severity.weight > 0
    return follower, RunEntry(
        last_time_ns=choice.last_time_ns,
        verdict=diagnosis.verdict.value,
        headline=f"{head.code} {head.name}" if head is not None and serious else "",
        source=run.info.source,
        steps=diagnosis.run.steps,
        last_step=curves.ends[1],
        skipped=diagnosis.run.skipped,
        final_scale=diagnosis.run.final_scale,
        spark=small_charts.spark(_lowest(curves.points(SCALE)[1])),
    )


def _lowest(values: np.ndarray) -> np.ndarray:
    """The lowest value of each of a few parts, so that no fall is lost between two points."""
    known = values[np.isfinite(values)]
    if not len(known):
        return known
    starts = np.linspace(0, len(known), min(_SPARK_POINTS, len(known)), endpoint=False)
    return np.minimum.reduceat(known, starts.astype(np.int64))
