"""What a rerun does otherwise, in the process that trains: one thing, and where it writes.

The script's files are not overwritten: what it opens for writing goes to a folder of the rerun's,
and is read from there again; so do folders that it makes. Parts that write without Python are not
held back.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ampwatch.environment import state_folder
from ampwatch.recovery.change import CHANGE, Change

_SYSTEMS = ("/dev/", "/proc/", "/sys/")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def is_asked_for() -> bool:
    """Whether this process is a rerun."""
    return CHANGE in os.environ


def prepare() -> None:
    """Redirect writes to the user's files, from now on."""
    outputs = Outputs(Path(_change().outputs))
    builtins.open = io.open = outputs.opening(builtins.open)
    os.open = outputs.opening_number(os.open)
    for name in ("remove", "unlink", "rmdir", "rename", "replace", "truncate"):
        setattr(os, name, outputs.changing(getattr(os, name)))
    for name in ("stat", "lstat", "listdir", "scandir"):
        setattr(os, name, outputs.looking(getattr(os, name)))
    os.mkdir = outputs.making(os.mkdir)


def change_torch() -> None:
    """Do the change, and write torch's files through Python."""
    import torch

    from ampwatch.integrations.rerun_changes import do

    do(_change())
    save = torch.save

    @functools.wraps(save)
    def saved(thing: Any, f: Any, *more: Any, **named: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            return save(thing, f, *more, **named)
        with Path(f).open("wb") as file:  # the C++ writer would open the path itself
            return save(thing, file, *more, **named)

    setattr(torch, "save", saved)  # noqa: B010


def _change() -> Change:
    return Change.from_text(os.environ[CHANGE])


class Outputs:
    """The rerun's own copies of the files it writes, by the paths that it gave."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        own = f"{os.path.realpath(folder.parent)}{os.sep}"
        self._free = (own, f"{os.path.realpath(state_folder())}{os.sep}", *_SYSTEMS)
        self._asked = threading.local()  # whether the thread is in here: its calls are ours

    def opening(self, really: Callable[..., Any]) -> Callable[..., Any]:
        """`open`, redirected if it would write."""

        @functools.wraps(really)
        def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            if isinstance(file, int) or named.get("opener"):
                return really(file, mode, *more, **named)
            if set(mode) & set("wax+"):
                file = self._to_write(file, keeps="w" not in mode)
            return really(self._to_read(file), mode, *more, **named)

        return opened

    def opening_number(self, really: Callable[..., int]) -> Callable[..., int]:
        """`os.open`, redirected if it would write."""

        @functools.wraps(really)
        def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if named.get("dir_fd") is not None:
                return really(path, flags, *more, **named)
            if flags & _WRITES:
                path = self._to_write(path, keeps=not flags & os.O_TRUNC)
            return really(self._to_read(path), flags, *more, **named)

        return opened

    def changing(self, really: Callable[..., Any]) -> Callable[..., Any]:
        """A call that removes or moves files; files of the user are copied first."""

        @functools.wraps(really)
        def changed(*paths: Any, **named: Any) -> Any:
            if any(value is not None for value in named.values()):  # relative to an open folder
                inside = next((fd for fd in named.values() if isinstance(fd, int)), -1)
                return really(*paths, **named) if self._is_free(_folder_of(inside)) else None
            if any(_is_folder(one) and not self._is_free(one) for one in paths[:1]):
                return None
            return really(*(self._to_write(one, keeps=True) for one in paths))

        return changed

    def looking(self, really: Callable[..., Any]) -> Callable[..., Any]:
        """A call that looks at a path: at the rerun's own where it made it."""

        @functools.wraps(really)
        def looked(path: Any = ".", *more: Any, **named: Any) -> Any:
            if named.get("dir_fd") is None and not getattr(self._asked, "inside", False):
                path = self._to_look_at(path)
            return really(path, *more, **named)

        return looked

    def making(self, really: Callable[..., None]) -> Callable[..., None]:
        """`os.mkdir`, elsewhere; a folder that the run made before may be made again."""

        @functools.wraps(really)
        def made(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None or self._is_free(path):
                return really(path, mode, dir_fd=dir_fd)
            own = self._own(path)
            with self._inside():
                own.parent.mkdir(parents=True, exist_ok=True)
                really(str(own), mode)
            return None

        return made

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        was, self._asked.inside = getattr(self._asked, "inside", False), True
        try:
            yield
        finally:
            self._asked.inside = was

    def _to_look_at(self, path: Any) -> Any:
        """A file or folder of the rerun's where it has one; a folder of the user's stays whole."""
        with self._inside():
            if isinstance(path, int) or not path or self._is_free(path):
                return path
            own, theirs = self._own(path), Path(os.fsdecode(path))
            return str(own) if own.exists() and not theirs.is_dir() else path

    def _to_write(self, path: Any, *, keeps: bool) -> Any:
        """Where to write a file; a file that is changed, not replaced, is copied first."""
        if isinstance(path, int) or self._is_free(path):
            return path
        own = self._own(path)
        own.parent.mkdir(parents=True, exist_ok=True)
        if keeps and not own.exists() and Path(os.fsdecode(path)).is_file():
            own.write_bytes(Path(os.fsdecode(path)).read_bytes())
        return str(own)

    def _to_read(self, path: Any) -> Any:
        """Where to read a file: the rerun's own copy, if it has one."""
        if isinstance(path, int) or self._is_free(path):
            return path
        own = self._own(path)
        return str(own) if own.exists() else path

    def _own(self, path: Any) -> Path:
        with self._inside():
            return self._folder / os.path.realpath(os.fsdecode(path)).lstrip(os.sep)

    def _is_free(self, path: Any) -> bool:
        """Whether it is nobody's but the rerun's or the system's."""
        with self._inside():
            return os.path.realpath(os.fsdecode(path)).startswith(self._free)


def _is_folder(path: Any) -> bool:
    return not isinstance(path, int) and Path(os.fsdecode(path)).is_dir()


def _folder_of(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return os.sep  # not known: not ours
