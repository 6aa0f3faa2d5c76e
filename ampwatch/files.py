"""Files of ours: made private, opened without blocking, replaced whole.

Private: a log holds a program's command line, its settings and its host, so only its user may read
it, whatever the umask says, as with the keys. AMPWATCH_SHARED=1, set when a run is made, lets the
umask decide, for a shared disk. A run's folder is made so; what is later made in it is as open as
the folder.

Opened without blocking: somebody else may have made a run's files. A pipe in place of a file would
block whoever opens it for ever, and a device has no end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SHARED = "AMPWATCH_SHARED"
_PRIVATE, _UMASK_DECIDES = 0o700, 0o777
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_READ = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)

# --- making ---------------------------------------------------------------------------------------


def make_run_folder(path: Path) -> None:
    """Make a run's private folder; an OSError if something is there already."""
    path.mkdir(mode=_UMASK_DECIDES if os.environ.get(_SHARED) == "1" else _PRIVATE)


def make_private_folder(path: Path) -> None:
    """Make a folder that only the user may enter; the files in it are as private."""
    path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    if os.name != "nt" and path.stat().st_mode & 0o077:
        path.chmod(_PRIVATE)


def make_folder(path: Path) -> None:
    """Make a folder within a run, as private as the run's folder, unless it exists."""
    path.mkdir(mode=_permissions_of(path.parent), exist_ok=True)


def open_file(path: Path, flags: int) -> int:
    """Open a file within a run, made if need be; returns its descriptor."""
    flags |= os.O_CREAT | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, _permissions_of(path.parent) & 0o666)


def write_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a whole file in its place. `durable`: it survives a power cut."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_TRUNC | _NO_LINKS), "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _permissions_of(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


# --- replacing ------------------------------------------------------------------------------------


@contextlib.contextmanager
def draft_of(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A draft to write a file to; when the block ends without an error, it replaces the file.

    Readers see the old file or the new one, whole, at any moment, and after a kill. A power cut
    may leave either, or an empty file; with `durable` either, and the new one once this returns.
    Each process has its own draft, so that two never write to the same one; a killed process leaves
    its draft behind.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        yield draft
        if durable:
            sync(draft)
        draft.replace(path)
        if durable:
            sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace a file, which may exist or not, by one with these bytes; see `draft_of`."""
    with draft_of(path, durable=durable) as draft:
        write_file(draft, data)


def sync(path: Path) -> None:
    """Wait until a file or a folder is written to disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading --------------------------------------------------------------------------------------

# What is raised where a file's JSON is not as we wrote it and is taken apart all the same.
BAD_VALUES = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read; an OSError for a folder, a pipe, a device or none."""
    descriptor = os.open(path, _READ)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_at_most(path: Path, size: int) -> bytes:
    """Read a whole file; an OSError if it is longer than `size`."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > size:
            raise OSError(errno.EFBIG, f"it is longer than {size} bytes", str(path))
        return file.read()


def version_of(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from one that takes its place; None if there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if it does not exist or cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
