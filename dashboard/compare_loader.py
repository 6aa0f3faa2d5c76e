"""Loads the runs that are compared, in the background, and keeps them until they have new rows.

A run is opened, outlined, thinned for the chart and let go, so that fifty long ones take no more
memory than their lines. Of a live run its follower is kept, whose engine goes on.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from run_chart import thinned_lines
from run_list import ListedRun
from step_curves import StepCurvesReader
from user_value_curves import UserValues

from ampwatch.errors import AmpwatchError
from ampwatch.follow import Follower, follow
from ampwatch.report.compared_run import Outline, outline_as
from ampwatch.report.divergence import Divergence, divergence_of, step_rows
from ampwatch.report.painter.message import Arrays
from ampwatch.report.thinning import Stretches
from ampwatch.store import open_run

MOST = 50  # runs that are compared at once
_LEAST_S = 2.0  # a live run is outlined anew after so long,
_REST = 10  # and after so many times as long as it took
_KEPT = 3 * MOST
_MOST_PAIRS = 10 * MOST
MOST_VALUES = 24  # of the user's own that are drawn
OWN = "own."  # before the name of a user's value, among a run's lines

_Version = tuple[int, bool, bool]
_Pair = tuple[str, _Version, str, _Version]  # two runs, as they were when they were read


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run that was loaded to be compared; without an outline `problem` says why it was not."""

    version: _Version
    outline: Outline | None
    lines: Arrays  # by column: `loss.x`, `loss.y`
    ends: tuple[int, int]
    rows: int
    odd: Mapping[str, Stretches] = field(default_factory=dict)  # where a column is not finite
    problem: str = ""
    due_at_s: float = 0.0  # before that a live run is not read again
    follower: Follower | None = None  # of a live run, whose engine goes on

    @property
    def columns(self) -> frozenset[str]:
        """The columns of a compared run that have anything to draw."""
        return frozenset(name.removesuffix(".x") for name in self.lines if name.endswith(".x"))


class CompareLoader:
    """Loads runs to compare and finds where they part; what is missing or old is made on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, LoadedRun] = OrderedDict()
        self._pairs: OrderedDict[tuple[str, str], tuple[_Pair, Divergence]] = OrderedDict()
        self._jobs: dict[object, Future[None]] = {}
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="ampwatch-compare")

    def loaded(self, choices: Sequence[ListedRun], wait_s: float) -> dict[str, LoadedRun]:
        """The compared runs as last loaded, by name; waits a while for those that are new."""
        with self._lock:
            self._forget_done_jobs()
            for choice in choices:
                if self._is_old(choice) and choice.path not in self._jobs:
                    self._jobs[choice.path] = self._workers.submit(self._load, choice)
            jobs = [self._jobs[one.path] for one in choices if one.path in self._jobs]
        wait(jobs, wait_s)
        with self._lock:
            for choice in choices:
                if choice.path in self._kept:
                    self._kept.move_to_end(choice.path)
            while len(self._kept) > max(_KEPT, len(choices)):
                self._kept.popitem(last=False)
            return {c.name: self._kept[c.path] for c in choices if c.path in self._kept}

    def divergences(
        self,
        first: ListedRun,
        others: Sequence[ListedRun],
        known: dict[str, LoadedRun],
        wait_s: float,
    ) -> list[Divergence | None]:
        """Where compared runs part from the first, as last read; None where it is not known yet."""
        base = known[first.name].version
        keys = [(first.path, base, one.path, known[one.name].version) for one in others]
        with self._lock:
            self._forget_done_jobs()
            new = [key for key in keys if self._is_new(key)]
            if new:
                self._jobs |= dict.fromkeys(new, self._workers.submit(self._find_divergences, new))
            jobs = [self._jobs[key] for key in keys if key in self._jobs]
        wait(jobs, wait_s)
        with self._lock:
            while len(self._pairs) > _MOST_PAIRS:
                self._pairs.popitem(last=False)
            found = [self._pairs.get((first.path, one.path)) for one in others]
        return [None if one is None else one[1] for one in found]

    # --- within ----------------------------------------------------------------------------------

    def _forget_done_jobs(self) -> None:
        """Forget the loading jobs that are done; the error of one is raised here."""
        done = [(key, job) for key, job in self._jobs.items() if job.done()]
        for key, _ in done:
            del self._jobs[key]
        for _, job in done:
            job.result()

    def _is_old(self, choice: ListedRun) -> bool:
        kept = self._kept.get(choice.path)
        if kept is None:
            return True
        is_due = time.monotonic() >= kept.due_at_s
        return kept.version != _version(choice) and (is_due or not choice.live)

    def _is_new(self, key: _Pair) -> bool:
        kept = self._pairs.get((key[0], key[2]))
        return key not in self._jobs and (kept is None or kept[0] != key)

    def _load(self, choice: ListedRun) -> None:
        began_s = time.monotonic()
        loaded = _load_run(choice)
        ended_s = time.monotonic()
        due_at_s = ended_s + max(_LEAST_S, _REST * (ended_s - began_s))
        with self._lock:
            self._kept[choice.path] = replace(loaded, due_at_s=due_at_s)

    def _find_divergences(self, keys: Sequence[_Pair]) -> None:
        """Find where compared runs part from one of them."""
        for key, found in zip(keys, _divergences(keys), strict=False):
            with self._lock:
                self._pairs[key[0], key[2]] = key, found


def _version(choice: ListedRun) -> _Version:
    return choice.run.last_time_ns, choice.live, choice.cut_off


def _load_run(choice: ListedRun) -> LoadedRun:
    version = _version(choice)
    try:
        follower = follow(choice.path)
        followed = follower.update()
        run = open_run(choice.path)
        outline = outline_as(run, followed.diagnosis, followed.for_several)
        curves = StepCurvesReader().read(run)
        lines = {k.removeprefix("base."): v for k, v in thinned_lines(curves).items()}
        own, own_odd = _user_value_lines(follower)
    except (AmpwatchError, OSError) as problem:
        return LoadedRun(version, None, {}, (0, 0), 0, problem=str(problem))
    odd = {**curves.odd, **own_odd}
    return LoadedRun(
        version, outline, lines | own, curves.ends, len(curves), odd,
        follower=follower if choice.live else None,
    )  # fmt: skip


def _user_value_lines(follower: Follower) -> tuple[Arrays, dict[str, Stretches]]:
    """A compared run's lines of the user's values, and where each is not finite."""
    values = UserValues(follower, None)
    lines: Arrays = {}
    odd = {}
    for name, value in list(values.read().items())[:MOST_VALUES]:
        line = values.line(name, None)
        lines[f"{OWN}{name}.x"], lines[f"{OWN}{name}.y"] = line.x, line.y
        odd[f"{OWN}{name}"] = value.odd
    return lines, odd


def _divergences(keys: Sequence[_Pair]) -> list[Divergence]:
    """Where compared runs part from the first, up to one that is gone: it is asked for anew."""
    found = []
    try:
        first = open_run(keys[0][0])
        rows = step_rows(first)
        for _, _, path, _ in keys:
            found.append(divergence_of(first, open_run(path), rows))
    except (AmpwatchError, OSError):
        pass
    return found
