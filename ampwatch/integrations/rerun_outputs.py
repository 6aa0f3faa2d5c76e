"""The files that a rerun writes, in the process that trains: kept apart from the user's files.

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
from ampwatch.recovery.change import CHANGE, Change, changes_from_text

_SYSTEMS = ("/dev/", "/proc/", "/sys/")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def is_rerun() -> bool:
    """Whether this process is a rerun that `ampwatch prove` started."""
    return CHANGE in os.environ


def redirect_outputs() -> None:
    """Redirect a rerun's writes to the user's files into its own folder, from now on."""
    outputs = RerunOutputs(Path(_changes()[0].outputs))
    builtins.open = io.open = outputs.opening(builtins.open)
    os.open = outputs.opening_descriptor(os.open)
    for name in ("remove", "unlink", "rmdir", "rename", "replace", "truncate"):
        setattr(os, name, outputs.changing(getattr(os, name)))
    for name in ("stat", "lstat", "listdir", "scandir"):
        setattr(os, name, outputs.looking(getattr(os, name)))
    os.mkdir = outputs.making(os.mkdir)


def prepare_torch() -> None:
    """Apply the rerun's changes to torch, and let `torch.save` write through Python."""
    import torch

    from ampwatch.integrations.rerun_changes import apply_change

    for change in _changes():
        apply_change(change)
    save = torch.save

    @functools.wraps(save)
    def saved(thing: Any, f: Any, *more: Any, **named: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            return save(thing, f, *more, **named)
        with Path(f).open("wb") as file:  # the C++ writer would open the path itself
            return save(thing, file, *more, **named)

    setattr(torch, "save", saved)  # noqa: B010


def _changes() -> list[Change]:
    return changes_from_text(os.environ[CHANGE])


class RerunOutputs:
    """A rerun's own copies of the files it writes, by the paths that it gave."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        own = f"{os.path.realpath(folder.parent)}{os.sep}"
        self._free = (own, f"{os.path.realpath(state_folder())}{os.sep}", *_SYSTEMS)
        self._asked = threading.local()  # whether the thread is in here: its calls are ours

    def opening(self, really: Callable[..., Any]) -> Callable[..., Any]:
        """`open` for a rerun: what it writes goes to its own folder."""

        @functools.wraps(really)
        def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            if isinstance(file, int) or named.get("opener"):
                return really(file, mode, *more, **named)
            if set(mode) & set("wax+"):
                file = self._to_write(file, keeps="w" not in mode)
            return really(self._to_read(file), mode, *more, **named)

        return opened

    def opening_descriptor(self, really: Callable[..., int]) -> Callable[..., int]:
        """`os.open` for a rerun: what it writes goes to its own folder."""

        @functools.wraps(really)
        def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if named.get("dir_fd") is not None:
                return really(path, flags, *more, **named)
            if flags & _WRITES:
                path = self._to_write(path, keeps=not flags & os.O_TRUNC)
            return really(self._to_read(path), flags, *more, **named)

        return opened

    def changing(self, really: Callable[..., Any]) -> Callable[..., Any]:
        """A call that removes or moves files, for a rerun: the user's files are copied first."""

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
        """A call that looks at a path, for a rerun: at its own file where it made one."""

        @functools.wraps(really)
        def looked(path: Any = ".", *more: Any, **named: Any) -> Any:
            if named.get("dir_fd") is None and not getattr(self._asked, "inside", False):
                path = self._to_look_at(path)
            return really(path, *more, **named)

        return looked

    def making(self, really: Callable[..., None]) -> Callable[..., None]:
        """`os.mkdir` for a rerun, in its own folder; a folder of the run may be made again."""

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
        """The path a rerun looks at: its own file, if it has one; the user's folders stay whole."""
        with self._inside():
            if isinstance(path, int) or not path or self._is_free(path):
                return path
            own, theirs = self._own(path), Path(os.fsdecode(path))
            return str(own) if own.exists() and not theirs.is_dir() else path

    def _to_write(self, path: Any, *, keeps: bool) -> Any:
        """The path a rerun writes to; a file that is changed, not replaced, is copied first."""
        if isinstance(path, int) or self._is_free(path):
            return path
        own = self._own(path)
        own.parent.mkdir(parents=True, exist_ok=True)
        if keeps and not own.exists() and Path(os.fsdecode(path)).is_file():
            own.write_bytes(Path(os.fsdecode(path)).read_bytes())
        return str(own)

    def _to_read(self, path: Any) -> Any:
        """The path a rerun reads: its own copy of the file, if it has one."""
        if isinstance(path, int) or self._is_free(path):
            return path
        own = self._own(path)
        return str(own) if own.exists() else path

    def _own(self, path: Any) -> Path:
        with self._inside():
            return self._folder / os.path.realpath(os.fsdecode(path)).lstrip(os.sep)

    def _is_free(self, path: Any) -> bool:
        """Whether a path belongs to the rerun or the system, so that it is not redirected."""
        with self._inside():
            return os.path.realpath(os.fsdecode(path)).startswith(self._free)


def _is_folder(path: Any) -> bool:
    return not isinstance(path, int) and Path(os.fsdecode(path)).is_dir()


def _folder_of(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return os.sep  # not known: not ours
