"""Whether a run is live, ended or lost, and its diagnosis in that state.

A run has *ended* when its ranks wrote their end marks. It is *lost* when they did not and nobody
writes it any more: the lock that its writer holds is free, as the operating system leaves it when a
process is killed, or, where a lock tells nothing, no row has come for a minute. Else it is *live*.
The engine judges rows alone; whether somebody still writes them only the moment tells.
"""

from __future__ import annotations

import dataclasses
import enum
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from ampwatch import diagnosis
from ampwatch.diagnosis import Diagnosis, Record, SeveralDiagnoses, with_muted
from ampwatch.diagnosis.case import NATIVE
from ampwatch.errors import NotARunError
from ampwatch.rows import TABLES
from ampwatch.store import Run, RunFolder, RunSummary, open_run

# A trainer on another machine, or a file system without locks, shows itself by its rows alone.
QUIET_S = 60.0
# Of a free lock before a run is given up: a writer may open its files anew, and clocks differ.
GRACE_S = 3.0
_HEARD_S = 5.0  # who hears of a trainer says so more often than this


class State(enum.Enum):
    """The state of a run: live, ended or lost."""

    LIVE = "live"
    ENDED = "ended"
    LOST = "lost"


class Liveness:
    """Decides whether a followed run is live, ended or lost; asked again and again."""

    def __init__(self) -> None:
        self.began_ns = 0  # when this process began to write the run; 0 if it does not
        self._since_s = time.monotonic()
        self._rows: int | None = None
        self._last_time_ns = 0  # of the rows that were there when we began to look
        self._grown_s: float | None = None  # these three: when that was seen last
        self._held_s: float | None = None
        self._heard_s: float | None = None

    def hear(self) -> None:
        """Note that the run's trainer was heard of just now, by another way than its rows."""
        self._heard_s = time.monotonic()

    def refresh(self, run: Run) -> tuple[State, int]:
        """Refresh the run; whether it is live, ended or lost, and how many rows it has.

        NotARunError if it is gone.
        """
        if not run.files.is_there():
            gone = f"{run.path} is gone: deleted, or its disk is away."
            raise NotARunError(gone, path=run.path)
        is_held = run.files.is_written()  # before its rows: a lock set free says no more come
        run.refresh()
        rows = sum(run.rows_logged(table, rank) for table in TABLES for rank in run.ranks)
        if not run.files.grows():
            return at_a_glance(run), rows
        return self._state(run, rows, is_held=is_held), rows

    def _state(self, run: Run, rows: int, *, is_held: bool) -> State:
        now_s = time.monotonic()
        if self._rows is None:
            self._last_time_ns = run.last_time_ns
        elif rows != self._rows:
            self._grown_s = now_s
        self._rows = rows
        if is_held:
            self._held_s = now_s
        ended = ended_ranks(run, self.began_ns)
        is_marked = bool(ended) and len(ended) == len(run.ranks)
        is_whole = len(ended) >= run.info.world_size  # else a rank may yet begin
        if is_marked and (is_whole or self._is_quiet):
            return State.ENDED
        # Who imports another tool's log runs here; the times in that log tell nothing of today.
        is_import = run.info.source != NATIVE
        is_abandoned = run.files.is_abandoned(platform.node() if is_import else run.info.host)
        is_old = is_abandoned and (is_import or self._is_quiet)
        if not self._is_given_up(now_s, is_abandoned=is_abandoned, is_old=is_old):
            return State.LIVE
        return State.ENDED if is_marked else State.LOST

    @property
    def silent_s(self) -> float:
        """Seconds since the run grew; before it did so while followed, as its rows say.

        Rows of a log without times say nothing: then it is how long we have looked.
        """
        if self._grown_s is None and self._last_time_ns:
            return max(0.0, (time.time_ns() - self._last_time_ns) / 1e9)
        return time.monotonic() - (self._grown_s or self._since_s)

    def _is_given_up(self, now_s: float, *, is_abandoned: bool, is_old: bool) -> bool:
        """Whether nobody writes the run any more; at once for one left long ago."""
        signs_s = [s for s in (self._held_s, self._grown_s) if s is not None]
        was_left = is_old and not signs_s and not self.began_ns
        if not was_left and now_s - max([self._since_s, *signs_s]) < GRACE_S:
            return False
        if self._heard_s is not None and now_s - self._heard_s < _HEARD_S:
            return False
        if self._held_s is not None:
            return self._held_s < now_s
        if not self.began_ns and is_abandoned:
            return True
        # This process lives, so its own run is not lost for being quiet: it may be evaluating.
        return not self.began_ns and (self._is_quiet or not self._last_time_ns)

    @property
    def _is_quiet(self) -> bool:
        return self.silent_s > QUIET_S


def ended_ranks(run: Run, began_ns: int = 0) -> tuple[int, ...]:
    """The ranks of a run that wrote their end marks.

    Of a run that is resumed, the marks of an attempt that ended before `began_ns` are no end.
    """
    marked = tuple(rank for rank, has_ended in run.ended.items() if has_ended)
    return marked if marked and (not began_ns or run.last_time_ns >= began_ns) else ()


def at_a_glance(run: Run | RunSummary) -> State:
    """The state of a run at a single look, for a list or a report: live, ended or lost."""
    if isinstance(run, Run):
        source, host, has_ended = run.info.source, run.info.host, run.clean_end
    else:
        source, host, has_ended = run.source, run.host, run.ended
    if has_ended:
        return State.ENDED
    files = run.files if isinstance(run, Run) else RunFolder(run.path)
    if files.is_written():
        return State.LIVE
    is_recent = time.time_ns() - run.last_time_ns < QUIET_S * 1e9
    # The times in another trainer's log are of its own clock.
    if is_recent and source == NATIVE and not files.is_abandoned(host):
        return State.LIVE
    return State.LOST


# --- the diagnosis of a run as it stands now ------------------------------------------------------


def diagnose(run: Record | str | Path) -> Diagnosis:
    """Diagnose a run as it stands now: what is wrong, since when, why, and what to do about it.

    `run` is an opened run, or what `open_run` takes: a path, or a name in the default folder.
    """
    opened = open_run(run) if isinstance(run, (str, Path)) else run
    return as_it_stands(opened, diagnosis.diagnose(opened))


def diagnose_together(runs: Sequence[Record]) -> SeveralDiagnoses:
    """Diagnose runs of one model together, as each stands now; of several models refused."""
    together = diagnosis.diagnose_together(runs)
    pairs = zip(runs, together.diagnoses, strict=True)
    return dataclasses.replace(
        together, diagnoses=tuple(as_it_stands(run, judged) for run, judged in pairs)
    )


def as_it_stands(run: Record, judged: Diagnosis) -> Diagnosis:
    """The diagnosis of a run by its present state; rows in memory have no state."""
    if not isinstance(run, Run):
        return judged
    return with_muted(with_state(at_a_glance(run), judged), dict(run.files.muted()))


def with_state(state: State, judged: Diagnosis) -> Diagnosis:
    """The diagnosis of a run in this state; logs of other tools have no end marks to miss."""
    if state is State.LIVE:
        return judged.while_running()
    return judged.once_over() if judged.run.source == NATIVE else judged
