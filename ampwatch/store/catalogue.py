"""Find the runs in folders, list them by a line each, find one by its name, and delete one.

A registered run is one small file in the user's state folder that holds its path, so that a
dashboard started elsewhere finds it. Runs that were deleted are dropped silently; those that cannot
be read are listed with a reason. A run is deleted only if nobody writes it and nothing but ours is
in its folder. Where a name is that of no run, the sentence says what was looked for, where, and
what to type next, on the command line and in Python alike.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ampwatch.environment import state_folder
from ampwatch.errors import AmpwatchError, NotARunError, RunError, RunInUseError, reason_of
from ampwatch.files import draft_of
from ampwatch.rows import FORMAT, Table
from ampwatch.store import locks
from ampwatch.store.kept_facts import FileStamp, KeptFacts, stamp_of
from ampwatch.store.layout import is_rank_name, rank_folder, ranks_in, sweep
from ampwatch.store.locks import LOCK_FILE
from ampwatch.store.rank_log import RankLog
from ampwatch.store.run_info import COPY_FILE, RUN_FILE, RunInfo, read_copies, read_info
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
    title: str = ""  # that somebody gave it instead of its name
    is_pinned: bool = False
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
        paths = [p for p in distinct if p not in left or p in self._lines]
        found = [self._lines[p][1] if p in trusted or p in left else self._line(p) for p in paths]
        for kept in self._kept.values():
            kept.save()
        lines = [line for line in found if line is not None]
        return sorted(lines, key=lambda run: (run.added_ns, run.name), reverse=True)

    def _registered(self) -> list[Place]:
        try:
            notes = sorted((state_folder() / "runs").iterdir())
        except (OSError, RuntimeError):
            return []
        places = {note.name: self._notes.get(note.name) or _still_there(note) for note in notes}
        self._notes = {name: place for name, place in places.items() if place is not None}
        return list(self._notes.values())

    def _line(self, path: str) -> RunSummary | None:
        """A run's line, made anew only if one of its files has changed; None if it is no run."""
        stamp = stamp_of(path)
        if stamp is None:
            self._notes = {name: place for name, place in self._notes.items() if place[0] != path}
            return None
        before = self._lines.get(path)
        if before is not None and stamp.text and before[0] == stamp:
            return before[1]
        line = self._labelled(self._summary(path, stamp), stamp)
        self._lines[path] = (stamp, line)
        return line

    def _summary(self, path: str, stamp: FileStamp) -> RunSummary:
        folder, name = os.path.split(path)
        if folder not in self._kept:
            self._kept[folder] = KeptFacts("runs", Path(folder), _EDITION)
        entry = self._kept[folder]
        line = _line_of(Path(path), entry.of(name, stamp.text))
        if line is None:
            line = summarize(Path(path))
            if line.problem is None:
                entry.add(name, stamp.text, [getattr(line, name) for name in _KEPT])
        return line

    def _labelled(self, line: RunSummary, stamp: FileStamp) -> RunSummary:
        """The line with the tags, and with the time of its import if it is another tool's log."""
        added_ns = line.added_ns if line.source == OWN_SOURCE else stamp.info_ns
        tags = RunTags() if stamp.tags is None else read_tags(line.path)
        return replace(
            line, stamp=stamp.text, added_ns=added_ns, tags=tags.tags, note=tags.note,
            title=tags.title, is_pinned=tags.is_pinned,
        )  # fmt: skip


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
                    entry.path,
                    os.path.realpath(entry)
                    if entry.is_symlink()
                    else f"{real_folder}/{entry.name}",
                )
                for entry in entries
                if not entry.name.startswith(".")
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


# --- find a run by its name -----------------------------------------------------------------------

HOW_TO_BEGIN = "Add `ampwatch.attach(scaler, model)` to a training loop, or run `ampwatch demo`."

_MOST_NAMED = 3
_MOST_COMPARED = 2_000  # names: to compare one takes 50 us
_LEAST_PART = 3  # letters of a name that are looked for within other names


def find_run(named: str | Path) -> Path:
    """The folder of the run at a path, or of this name in the default folder; or NotARunError."""
    for folder in (Path(named), default_log_dir() / named):
        if os.path.lexists(folder / RUN_FILE):  # if it is damaged, its reader says how
            return folder
    raise NotARunError(_why_none(str(named)), path=named)


def report_command(run_folder: Path) -> str:
    """The command that reports on a run: by its name if that suffices, else by its path."""
    if _is_in_default(run_folder):
        return f"ampwatch report {shlex.quote(run_folder.name)}"
    path = shown_folder(run_folder).removeprefix(f".{os.sep}")
    return f"ampwatch report {shlex.quote(path)}"


def how_to_see(run_folder: Path) -> str:
    """The command that reports on a run and where it is, for who started this very program."""
    if _has_moved():
        return f"`ampwatch report {shlex.quote(str(run_folder.absolute()))}`"
    folder = f" (in {shown_folder(run_folder.parent)})" if _is_in_default(run_folder) else ""
    return f"`{report_command(run_folder)}`{folder}"


def _has_moved() -> bool:
    """Whether this program works in another folder than the shell that started it, if one did."""
    shell = os.environ.get("PWD")
    return shell is not None and os.path.realpath(shell) != os.path.realpath(".")


def _is_in_default(run_folder: Path) -> bool:
    return os.path.realpath(run_folder.parent) == os.path.realpath(default_log_dir())


def shown_folder(folder: Path) -> str:
    """A folder as a message shows it: from the working folder if it is below that."""
    try:
        below = Path(os.path.relpath(folder))
    except (OSError, ValueError):  # the working folder is gone, or on another drive
        return str(folder)
    is_elsewhere = ".." in below.parts or below == Path()
    return str(folder) if is_elsewhere else f".{os.sep}{below}"


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - a Path raises for a name that is too long


def _why_none(text: str) -> str:
    """Why this names no run, and what to do."""
    if "://" in text:
        return f"{text} is a place for runs, not a run: name one of its runs, as in {text}#NAME."
    if os.path.isfile(text):  # noqa: PTH113 - a Path raises for a name that is too long
        return (
            f"{text} is a file; a run is a folder with a run.json. If it is the log of another "
            f"trainer, `ampwatch import {shlex.quote(text)}` makes a run of it."
        )
    for folder in (Path(text), default_log_dir() / text):
        if _is_folder(folder):
            return _what_folder_has(folder)
    return _none_in_folder(Path(text)) if len(Path(text).parts) > 1 else _none_by_name(text)


def _what_folder_has(folder: Path) -> str:
    """Which runs there are in a folder that was given as a run."""
    try:
        names = run_names(folder)
    except OSError as problem:
        return f"{folder} cannot be read: {reason_of(problem)}."
    if not names:
        return f'The folder "{folder}" has no run in it.{_guess(folder.name, _known_names())}'
    command = report_command(folder / names[0])
    if len(names) == 1:
        return f"{folder} is a folder of 1 run. Report on it with: {command}"
    named = _listed(names[:_MOST_NAMED], "and")
    some = f", the newest {named}" if len(names) > _MOST_NAMED else f": {named}"
    return f"{folder} is a folder of {len(names):,} runs{some}. Report on one with: {command}"


def _none_in_folder(path: Path) -> str:
    """Why a path with folders in it leads to no run."""
    folder = path.parent
    nothing = f"No run named {path.name} in {shown_folder(folder)}"
    if not _is_folder(folder):
        return f"{nothing}: there is no such folder."
    names = _names_or_none(folder)
    if not names:
        return f"{nothing}, which has no run in it."
    return f"{nothing}.{_guess(path.name, names, folder) or ' `ampwatch list` lists all runs.'}"


def _none_by_name(name: str) -> str:
    """Why a name alone is that of no run."""
    names = _known_names()
    nothing = f"No run named {name} in {shown_folder(default_log_dir())}"
    if not names:
        return f"{nothing}, which has no run yet. {HOW_TO_BEGIN}"
    return f"{nothing}.{_guess(name, names) or ' `ampwatch list` lists all runs.'}"


def _known_names() -> list[str]:
    """The runs that can be named without a path: of the default folder, and of the working one."""
    return [*_names_or_none(default_log_dir()), *_names_or_none(Path())]


def _names_or_none(folder: Path) -> list[str]:
    try:
        return run_names(folder)
    except OSError:
        return []


def run_names(folder: Path) -> list[str]:
    """The names of the runs in a folder, newest first; none of them is opened."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            info = os.path.join(entry.path, RUN_FILE)  # noqa: PTH118 - of 10,000 folders
            if not entry.name.startswith(".") and os.path.lexists(info):
                names.append((os.lstat(info).st_mtime_ns, entry.name))
    return [name for _, name in sorted(names, reverse=True)]


def _guess(name: str, names: Sequence[str], folder: Path = Path()) -> str:
    """A question that names the runs which may have been meant; empty if none is near."""
    near = [shlex.quote(str(folder / name_near)) for name_near in _near(name, names)]
    return f" Did you mean {_listed(near, 'or')}?" if near else ""


def _near(name: str, names: Sequence[str]) -> list[str]:
    """The run names that begin with this one, contain it or are spelled much like it."""
    by_lower_case = {one.lower(): one for one in reversed(names[:_MOST_COMPARED])}
    wanted, newest_first = name.lower(), list(by_lower_case)[::-1]
    begin = [one for one in newest_first if one.startswith(wanted)]
    contain = [one for one in newest_first if wanted in one and len(wanted) >= _LEAST_PART]
    alike = difflib.get_close_matches(wanted, newest_first, _MOST_NAMED)
    return [by_lower_case[one] for one in dict.fromkeys([*begin, *contain, *alike])][:_MOST_NAMED]


def _listed(names: Sequence[str], word: str) -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last
