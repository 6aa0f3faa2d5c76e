"""What was worked out about runs, kept in the user's state folder until the runs' files change.

A list of runs looks at every run again and again. A stamp says whether any of a run's files has
changed, from what the file system alone knows, so no file is opened. Tags are apart: who tags a run
changes nothing that was worked out from its rows.

There is one file for each folder of runs and each kind of facts, with a line for each run: its
name, the stamp of its files, the facts. Lines are appended and the last one counts, so two
processes may write at once. A file that is damaged or cannot be written costs time, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampwatch.environment import state_folder
from ampwatch.files import open_file, open_regular, replace_file
from ampwatch.store.layout import is_rank_name
from ampwatch.store.locks import LOCK_FILE
from ampwatch.store.run_info import RUN_FILE
from ampwatch.store.tags import TAGS_FILE

# --- the stamp of a run's files -------------------------------------------------------------------

Marks = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A run's files at one moment."""

    text: str  # another one if a file was added, changed or removed; empty if that is not known
    tags: tuple[int, int] | None = None  # time and size of the tags, if there are any
    info_ns: int = 0  # when run.json was written


def stamp_of(folder: str) -> FileStamp | None:
    """The stamp of a run's files, which changes with them; None if it is no run's folder.

    A run that has lost its run.json, and a folder that cannot be looked into, are runs too: their
    lines say what is wrong.
    """
    try:
        entries = list(os.scandir(folder))
    except PermissionError:
        return FileStamp("")
    except OSError:
        return None
    names = {entry.name for entry in entries}
    if RUN_FILE not in names and not any(is_rank_name(name) for name in names):
        return None
    try:
        return _stamp(entries)
    except OSError:  # it changes as we look
        return FileStamp("")


def _stamp(entries: list[os.DirEntry[str]]) -> FileStamp:
    marks: list[Marks] = []
    tags, info_ns = None, 0
    for entry in entries:
        if entry.name == LOCK_FILE or entry.name.startswith("."):
            continue
        about = entry.stat(follow_symlinks=False)
        if entry.name == TAGS_FILE:
            tags = (about.st_mtime_ns, about.st_size)
            continue
        if entry.name == RUN_FILE:
            info_ns = about.st_mtime_ns
        marks.append((entry.name, about.st_mtime_ns, about.st_size))
        if stat.S_ISDIR(about.st_mode):
            marks += _marks_in(entry.path, entry.name)
    text = hashlib.blake2b(repr(sorted(marks)).encode("utf-8", "surrogatepass"), digest_size=12)
    return FileStamp(text.hexdigest(), tags, info_ns)


def _marks_in(folder: str, name: str) -> list[Marks]:
    marks = []
    for entry in os.scandir(folder):
        about = entry.stat(follow_symlinks=False)  # a dangling link is a file too
        marks.append((f"{name}/{entry.name}", about.st_mtime_ns, about.st_size))
    return marks


# --- the facts ------------------------------------------------------------------------------------

_FOLDER = "kept"
_SPARE_LINES = 1000  # of runs that have changed or are gone; more are cleared away


class KeptFacts:
    """Facts of one kind about the runs in one folder; `save` keeps what is new.

    `edition` is part of each stamp: facts that other code worked out are worked out anew.
    """

    def __init__(self, kind: str, folder: Path, edition: str) -> None:
        self._folder = folder.absolute()
        self._edition = edition
        self._path = _path_of(kind, self._folder)
        self._kept: dict[str, tuple[str, Any]] = {}
        self._lines = 0
        for name, stamp, facts in _lines_of(self._path):
            self._kept[name] = (stamp, facts)
            self._lines += 1
        self._fresh: dict[str, tuple[str, Any]] = {}

    def of(self, name: str, stamp: str) -> Any | None:
        """What is kept about this run, if its files are as they were."""
        entry = self._kept.get(name)
        return entry[1] if entry and stamp and entry[0] == self._edition + stamp else None

    def every(self) -> Iterator[tuple[str, str, Any]]:
        """Name, stamp and facts of every run that is kept; its files may have changed since."""
        for name, (stamp, facts) in self._kept.items():
            if stamp.startswith(self._edition):
                yield name, stamp.removeprefix(self._edition), facts

    def add(self, name: str, stamp: str, facts: Any) -> None:
        """Keep facts, in JSON's types; an empty stamp says that nothing can be kept."""
        if stamp:
            self._kept[name] = self._fresh[name] = (self._edition + stamp, facts)

    def save(self) -> None:
        """Write what is new; errors are ignored."""
        if self._path is None or not self._fresh:
            return
        with contextlib.suppress(OSError):
            if not self._path.exists():
                _begin(self._path, self._folder)
            if self._lines > 2 * len(self._kept) + _SPARE_LINES:
                self._rewrite(self._path)
            else:
                _append(self._path, _text(self._fresh))
                self._lines += len(self._fresh)
        self._fresh = {}

    def _rewrite(self, path: Path) -> None:
        here = {n: known for n, known in self._kept.items() if os.path.lexists(self._folder / n)}
        replace_file(path, _first_line(self._folder) + _text(here))
        self._kept, self._lines = here, len(here)


def _path_of(kind: str, folder: Path) -> Path | None:
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
    try:
        return state_folder() / _FOLDER / f"{name}.{kind}"
    except RuntimeError:  # no home folder
        return None


def _lines_of(path: Path | None) -> Iterator[tuple[str, str, Any]]:
    try:
        if path is None:
            return
        with open_regular(path) as file:
            data = file.read()
    except OSError:
        return
    for line in data.split(b"\n"):
        try:
            name, stamp, facts = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue  # the first line, and one that was written halfway
        if isinstance(name, str) and isinstance(stamp, str):
            yield name, stamp, facts


def _text(lines: dict[str, tuple[str, Any]]) -> bytes:
    return b"".join(json.dumps([n, *known]).encode() + b"\n" for n, known in lines.items())


def _first_line(folder: Path) -> bytes:
    return json.dumps({"folder": str(folder)}).encode() + b"\n"


def _append(path: Path, data: bytes) -> None:
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, data)  # in one piece: two writers do not mix
    finally:
        os.close(descriptor)


def _begin(path: Path, folder: Path) -> None:
    """Begin the facts of another folder of runs; those of folders that are gone are cleared."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in path.parent.iterdir():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open_regular(other) as file:
                about = Path(json.loads(file.readline())["folder"])
            if about.parent.is_dir() and not about.exists():  # else its disk may be away
                other.unlink()
    _append(path, _first_line(folder))
