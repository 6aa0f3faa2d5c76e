"""Find runs: those in a folder, and those registered in the user's state folder.

A registered run is one small file that holds its path, so that a dashboard started elsewhere finds
it. Runs that were deleted are dropped silently; those that cannot be read are listed with a reason.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ampwatch.environment import state_folder
from ampwatch.errors import AmpwatchError
from ampwatch.files import draft_of
from ampwatch.rows import Table
from ampwatch.store.layout import rank_folder, ranks_in, sweep
from ampwatch.store.rank_log import RankLog
from ampwatch.store.run_info import RUN_FILE, RunInfo, read_info


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of a list of runs."""

    path: Path
    name: str
    id: str = ""
    source: str = ""
    host: str = ""
    started_ns: int = 0
    last_time_ns: int = 0
    ranks: tuple[int, ...] = ()
    steps: int = 0  # from the first to the last logged, of the first rank
    ended: bool = False
    final_scale: float | None = None
    problem: str | None = None  # why it cannot be read


def default_log_dir() -> Path:
    """$AMPWATCH_DIR, else ./ampwatch-runs."""
    return Path(os.environ.get("AMPWATCH_DIR") or "ampwatch-runs")


def register_run(run_folder: str | Path) -> bool:
    """List a run in the user's state folder; False, without an error, if that cannot be written."""
    path = Path(run_folder).absolute()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    try:
        folder = state_folder() / "runs"
        folder.mkdir(parents=True, exist_ok=True)
        with draft_of(folder / name) as draft:
            draft.write_bytes(os.fsencode(path))
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return False
    return True


def list_runs(
    log_dir: str | Path | None = None, *, line: Callable[[Path], RunSummary] | None = None
) -> list[RunSummary]:
    """The runs in a folder, newest first; without one, the default folder's and the registered.

    `line` replaces `summarize`, for callers that look often and keep lines.
    """
    folder = default_log_dir() if log_dir is None else Path(log_dir)
    sweep(folder)
    folders = _runs_in(folder)
    if log_dir is None:
        folders += _registered()
    distinct = {os.path.realpath(folder): folder for folder in reversed(folders)}
    found = [(line or summarize)(folder) for folder in distinct.values()]
    return sorted(found, key=lambda run: (run.started_ns, run.name), reverse=True)


def summarize(run_folder: Path) -> RunSummary:
    """A run's line; if the run cannot be read, the line says why."""
    try:
        info = read_info(run_folder)
        return _summary(run_folder, info)
    except (AmpwatchError, OSError) as problem:
        return RunSummary(run_folder, run_folder.name, problem=str(problem))


def _summary(run_folder: Path, info: RunInfo) -> RunSummary:
    ranks = ranks_in(run_folder)
    logs = [RankLog(rank_folder(run_folder, rank), rank) for rank in ranks]
    steps, final_scale = _progress(logs[0]) if logs else (0, None)
    return RunSummary(
        path=run_folder,
        name=info.name,
        id=info.id,
        source=info.source,
        host=info.host,
        started_ns=info.started_ns,
        last_time_ns=max([info.started_ns, *(log.last_time_ns for log in logs)]),
        ranks=ranks,
        steps=steps,
        ended=bool(logs) and all(log.ended for log in logs),
        final_scale=final_scale,
    )


def _progress(log: RankLog) -> tuple[int, float | None]:
    last = log.newest(Table.STEPS, ["step", "scale", "scale_after"], 1).to_pylist()
    first = log.read(Table.STEPS, ["step"], 0, 1).to_pylist()
    if not last or not first:
        return 0, None
    scale = last[0]["scale"] if last[0]["scale_after"] is None else last[0]["scale_after"]
    return last[0]["step"] - first[0]["step"] + 1, scale


def _runs_in(folder: Path) -> list[Path]:
    if _holds_info(folder):
        return [folder]
    try:
        children = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    except OSError:
        return []
    return [child for child in children if _may_be_run(child)]


def _may_be_run(folder: Path) -> bool:
    """Whether a folder is a run, was one before it lost its run.json, or cannot be looked into."""
    is_closed = not os.access(folder, os.R_OK | os.X_OK)
    return folder.is_dir() and (_holds_info(folder) or is_closed or bool(ranks_in(folder)))


def _holds_info(folder: Path) -> bool:
    """Whether there is a run.json of any kind, a dangling link included: that is reported."""
    return os.path.lexists(folder / RUN_FILE)


def _registered() -> list[Path]:
    try:
        notes = sorted((state_folder() / "runs").iterdir())
    except (OSError, RuntimeError):
        return []
    return [path for note in notes for path in _still_there(note)]


def _still_there(note: Path) -> Iterator[Path]:
    try:
        path = Path(os.fsdecode(note.read_bytes()))
        if note.name.startswith(".") or not path.is_absolute():
            return
        if _may_be_run(path):
            yield path
        elif path.parent.is_dir():  # deleted, not merely on a disk that is not mounted
            note.unlink()
    except (OSError, ValueError):
        return
