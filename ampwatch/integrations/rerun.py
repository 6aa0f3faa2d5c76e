"""Applies a rerun's changes in the process that trains: its rate, and where it writes.

Each parameter group's rate is multiplied when the group is created, so schedulers start from the
new rate. The script's files are not overwritten: what it opens for writing is redirected to a
folder of the rerun, and read back from there. Libraries that write without Python are not covered.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.environment import state_folder
from ampwatch.recovery.change import CHANGE, Change

if TYPE_CHECKING:
    import torch

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


def change_torch() -> None:
    """Multiply the rates of new parameter groups, and write torch's files through Python."""
    import torch

    factor = _change().rate_factor
    kind = torch.optim.Optimizer
    made = kind.add_param_group

    @functools.wraps(made)
    def add_param_group(self: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        made(self, group)
        for name in ("lr", "initial_lr"):
            if name in self.param_groups[-1]:
                self.param_groups[-1][name] *= factor

    setattr(kind, "add_param_group", add_param_group)  # noqa: B010
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
        return self._folder / os.path.realpath(os.fsdecode(path)).lstrip(os.sep)

    def _is_free(self, path: Any) -> bool:
        """Whether the file belongs to the rerun or the system, not to the user."""
        return os.path.realpath(os.fsdecode(path)).startswith(self._free)


def _is_folder(path: Any) -> bool:
    return not isinstance(path, int) and Path(os.fsdecode(path)).is_dir()


def _folder_of(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return os.sep  # not known: not ours
