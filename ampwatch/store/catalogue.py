"""Find the runs in folders, list them by a line each, and delete one.

A registered run is one small file in the user's state folder that holds its path, so that a
dashboard started elsewhere finds it. Runs that were deleted are dropped silently; those that cannot
be read are listed with a reason. A run is deleted only if nobody writes it and nothing but ours is
in its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ampwatch.environment import state_folder
from ampwatch.errors import AmpwatchError, RunError, RunInUseError, reason_of
from ampwatch.files import draft_of
from ampwatch.rows import FORMAT, Table
from ampwatch.store import locks
from ampwatch.store.copy_notes import COPY_FILE, read_copies
from ampwatch.store.kept_facts import FileStamp, KeptFacts, stamp_of
from ampwatch.store.layout import is_rank_name, rank_folder, ranks_in, sweep
from ampwatch.store.locks import LOCK_FILE
from ampwatch.store.rank_log import RankLog
from ampwatch.store.run_info import RUN_FILE, RunInfo, read_info
from ampwatch.store.tags import TAGS_FILE, RunTags, read_tags

OWN_SOURCE = "ampwatch"  # who wrote the rows; other tools' logs have their tool's name
Place = tuple[str, str]  # a run's folder as it was named, and as it is without links
_EDITION = f"{FORMAT}.1 "  # of what is kept: another one if a line says something else


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
    added_ns: int = 0  # when it was started; of another tool's log, when it was imported
    is_copy: bool = False  # received from a trainer that keeps its log elsewhere
    tags: tuple[str, ...] = ()
    note: str = ""
    stamp: str = ""  # another one if its files have changed; empty if that is not known


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


def list_runs(log_dir: str | Path | None = None) -> list[RunSummary]:
    """The runs in a folder, newest first; without one, the default folder's and the registered."""
    return Catalogue(None if log_dir is None else [Path(log_dir)]).runs()


class Catalogue:
    """The runs in some folders; who lists them again and again pays for what has changed.

    Without folders: the default one, and the registered runs. `also` are folders beside these.
    Summaries are kept on disk too.
    """

    def __init__(self, folders: Sequence[Path] | None = None, *, also: Sequence[Path] = ()) -> None:
        self._folders = folders
        self._also = also
        self._lines: dict[str, tuple[FileStamp, RunSummary]] = {}
        self._kept: dict[str, KeptFacts] = {}
        self.unread = 0
        self._notes: dict[str, Place] = {}  # what registered runs' files say, which never changes

    def runs(self, *, thorough: bool = True, budget_s: float = math.inf) -> list[RunSummary]:
        """All runs, newest first; if not `thorough`, runs that have ended are not looked at again.

        A folder that is gone or new is always seen. New ones are read, by name from the last, until
        `budget_s` is over: `unread` tells how many are left for the next time.
        """
        own = [default_log_dir()] if self._folders is None else self._folders
        folders = [*own, *self._also]
        for folder in folders:
            sweep(folder)
        places = [place for folder in folders for place in _places_in(folder)]
        if self._folders is None:
            places += self._registered()
        distinct = {real: path for path, real in reversed(places)}.values()
        self._lines = {path: self._lines[path] for path in distinct if path in self._lines}
        trusted = () if thorough else {p for p, (_, run) in self._lines.items() if run.ended}
        fresh = sorted((p for p in distinct if p not in self._lines), reverse=True)
        until_s, taken = time.monotonic() + budget_s, 0
        for path in fresh:
            if taken and time.monotonic() > until_s:
                break
            self._line(path)
            taken += 1
        self.unread = len(fresh) - taken
        left = set(fresh)
        known = [p for p in distinct if p not in left or p in self._lines]
        found = [self._lines[p][1] if p in trusted or p in left else self._line(p) for p in known]
        for kept in self._kept.values():
            kept.save()
        lines = [line for line in found if line is not None]
        return sorted(lines, key=lambda run: (run.added_ns, run.name), reverse=True)

    def _registered(self) -> list[Place]:
        try:
            notes = sorted((state_folder() / "runs").iterdir())
        except (OSError, RuntimeError):
            return []
        known = {note.name: self._notes.get(note.name) or _still_there(note) for note in notes}
        self._notes = {name: place for name, place in known.items() if place is not None}
        return list(self._notes.values())

    def _line(self, path: str) -> RunSummary | None:
        """A run's line, made anew only if one of its files has changed; None if it is no run."""
        stamp = stamp_of(path)
        if stamp is None:
            self._notes = {name: place for name, place in self._notes.items() if place[0] != path}
            return None
        known = self._lines.get(path)
        if known is not None and stamp.text and known[0] == stamp:
            return known[1]
        line = self._labelled(self._summary(path, stamp), stamp)
        self._lines[path] = (stamp, line)
        return line

    def _summary(self, path: str, stamp: FileStamp) -> RunSummary:
        folder, name = os.path.split(path)
        if folder not in self._kept:
            self._kept[folder] = KeptFacts("runs", Path(folder), _EDITION)
        kept = self._kept[folder]
        line = _line_of(Path(path), kept.of(name, stamp.text))
        if line is None:
            line = summarize(Path(path))
            if line.problem is None:
                kept.add(name, stamp.text, [getattr(line, name) for name in _KEPT])
        return line

    def _labelled(self, line: RunSummary, stamp: FileStamp) -> RunSummary:
        """The line with the tags, and with the time of its import if it is another tool's log."""
        added_ns = line.added_ns if line.source == OWN_SOURCE else stamp.info_ns
        tags = RunTags() if stamp.tags is None else read_tags(line.path)
        return replace(line, stamp=stamp.text, added_ns=added_ns, tags=tags.tags, note=tags.note)


def summarize(run_folder: Path) -> RunSummary:
    """A run's line in the list; if the run cannot be read, the line says why."""
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
        added_ns=info.started_ns,
        is_copy=bool(read_copies(run_folder)),
    )


_NOT_KEPT = {"path", "problem", "tags", "note", "stamp"}
_KEPT = {f.name: str(f.type) for f in fields(RunSummary) if f.name not in _NOT_KEPT}
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float | None": (float, type(None)),
    "tuple[int, ...]": (list,),
}  # fmt: skip


def _line_of(path: Path, facts: Any) -> RunSummary | None:
    """A run's line of the list as it was kept, if it is one."""
    if not isinstance(facts, list) or len(facts) != len(_KEPT):
        return None
    values = dict(zip(_KEPT, facts, strict=True))
    if not all(isinstance(values[name], _KINDS[kind]) for name, kind in _KEPT.items()):
        return None
    return RunSummary(path, **values | {"ranks": tuple(values["ranks"])})


def _progress(log: RankLog) -> tuple[int, float | None]:
    last = log.newest(Table.STEPS, ["step", "scale", "scale_after"], 1).to_pylist()
    first = log.read(Table.STEPS, ["step"], 0, 1).to_pylist()
    if not last or not first:
        return 0, None
    scale = last[0]["scale"] if last[0]["scale_after"] is None else last[0]["scale_after"]
    return last[0]["step"] - first[0]["step"] + 1, scale


def _places_in(folder: Path) -> list[Place]:
    """The folders that may be listed as runs: the folder itself, or those in it."""
    real_folder = os.path.realpath(folder)
    if os.path.lexists(folder / RUN_FILE):  # a dangling link is a run that is reported
        return [(str(folder), real_folder)]
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (
                    one.path,
                    os.path.realpath(one) if one.is_symlink() else f"{real_folder}/{one.name}",
                )
                for one in entries
                if not one.name.startswith(".")
            )
    except OSError:
        return []


def _still_there(note: Path) -> Place | None:
    """The run's folder that a note of a registered run names, if it is there."""
    try:
        path = Path(os.fsdecode(note.read_bytes()))
        if note.name.startswith(".") or not path.is_absolute():
            return None
        if path.is_dir():
            return str(path), os.path.realpath(path)
        if path.parent.is_dir():  # deleted, not merely on a disk that is not mounted
            note.unlink()
    except (OSError, ValueError):
        return None
    return None


# --- delete a run ---------------------------------------------------------------------------------

_OURS = {RUN_FILE, COPY_FILE, TAGS_FILE, LOCK_FILE}
_DRAFT = re.compile(r"\..+\.\d+\.new")
_GOING = ".deleted"  # such a folder is on its way out; who is killed meanwhile leaves it
_STRANGERS_NAMED = 3


def delete_run(run_folder: Path, run_id: str, within: Iterable[Path]) -> None:
    """Delete a run of this id that lies directly in one of these folders of runs.

    RunError says why it stays as it is. Readers see all of it or nothing.
    """
    _refuse(run_folder, run_id, within)
    for left in run_folder.parent.glob(f".*{_GOING}"):
        shutil.rmtree(left, ignore_errors=True)
    going = run_folder.with_name(f".{run_folder.name[:100]}.{os.getpid()}{_GOING}")
    try:
        with _held(run_folder):
            run_folder.rename(going)
        shutil.rmtree(going)
    except RunInUseError:
        raise RunError(f"{run_folder.name} is being written: it stays.", path=run_folder) from None
    except OSError as problem:
        raise RunError(
            f"{run_folder} cannot be deleted ({reason_of(problem)}): make its folder writable.",
            path=run_folder,
        ) from problem


def _refuse(run_folder: Path, run_id: str, within: Iterable[Path]) -> None:
    name = run_folder.name
    if run_folder.is_symlink():
        raise RunError(f"{name} is a link to a run: delete the link by hand.", path=run_folder)
    parent = os.path.realpath(run_folder.parent)
    if parent not in {os.path.realpath(folder) for folder in within}:
        raise RunError(
            f"{run_folder} is not in a folder of runs that is shown here: it stays.",
            path=run_folder,
        )
    if read_info(run_folder).id != run_id:
        raise RunError(f"{name} is another run by now: it stays.", path=run_folder)
    strangers = sorted(path.name for path in run_folder.iterdir() if not _is_ours(path))
    if strangers:
        more = len(strangers) - _STRANGERS_NAMED
        named = ", ".join(strangers[:_STRANGERS_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise RunError(
            f"{run_folder} also holds what ampwatch did not write ({named}): move that away first.",
            path=run_folder,
        )


def _is_ours(path: Path) -> bool:
    is_rank = is_rank_name(path.name) and path.is_dir() and not path.is_symlink()
    return is_rank or path.name in _OURS or _DRAFT.fullmatch(path.name) is not None


@contextlib.contextmanager
def _held(run_folder: Path) -> Iterator[None]:
    """Hold every rank's lock while the run is deleted, so that no writer begins."""
    with contextlib.ExitStack() as held:
        for rank in ranks_in(run_folder):
            held.enter_context(locks.held(rank_folder(run_folder, rank)))
        if os.name == "nt":  # a folder with an open file cannot be renamed there
            held.close()
        yield
