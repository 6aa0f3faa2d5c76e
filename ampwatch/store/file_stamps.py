"""What the file system alone says of a run's folder: whether any of its files has changed.

A list of runs looks at every run again and again, so no file is opened here. Tags are apart: who
tags a run changes nothing that was worked out from its rows.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass

from ampwatch.store.layout import is_rank_name
from ampwatch.store.locks import LOCK_FILE
from ampwatch.store.run_info import RUN_FILE
from ampwatch.store.tags import TAGS_FILE

Marks = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A run's files at one moment."""

    text: str  # another one if a file was added, changed or removed; empty if that is not known
    tags: tuple[int, int] | None = None  # time and size of the tags, if there are any
    info_ns: int = 0  # when run.json was written


def stamp_of(folder: str) -> FileStamp | None:
    """The stamp of a run's folder; None if it is no run's folder.

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
    found = []
    for entry in os.scandir(folder):
        about = entry.stat(follow_symlinks=False)  # a dangling link is a file too
        found.append((f"{name}/{entry.name}", about.st_mtime_ns, about.st_size))
    return found
