"""Who may read what a run holds: its user alone, whatever the umask, as with the keys.

A log has a program's command line, its settings and host. Where others are to read it, on a shared
disk, set AMPWATCH_SHARED=1 when the run is made, and the umask decides. A run's folder is made so;
whatever is later made in it is as open as the folder is.
"""

from __future__ import annotations

import os
from pathlib import Path

_SWITCH = "AMPWATCH_SHARED"
_ALONE, _UMASK_DECIDES = 0o700, 0o777
_NO_FOLLOWING = getattr(os, "O_NOFOLLOW", 0)


def make_run_folder(path: Path) -> None:
    """A run's folder; an OSError if there is something already."""
    path.mkdir(mode=_UMASK_DECIDES if os.environ.get(_SWITCH) == "1" else _ALONE)


def make_folder(path: Path) -> None:
    """A folder within a run, be it there or not."""
    path.mkdir(mode=_mode_of(path.parent), exist_ok=True)


def open_file(path: Path, flags: int) -> int:
    """The descriptor of a file within a run, made if need be."""
    flags |= os.O_CREAT | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, _mode_of(path.parent) & 0o666)


def write_file(path: Path, data: bytes) -> None:
    """A whole file within a run, in place of one that is there."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_TRUNC | _NO_FOLLOWING), "wb") as file:
        file.write(data)


def _mode_of(folder: Path) -> int:
    return folder.stat().st_mode & 0o777
