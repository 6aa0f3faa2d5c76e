"""One lock a rank: its writer holds it, and compaction must hold it to replace the files.

The lock is the operating system's, on RUN/rank-N/lock, so it ends with the process that holds it.
Where a file system has no locks (some network shares), rows are written without one, and compaction
refuses. A lock taken before a fork is held until the last of the processes has ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ampwatch.errors import RunInUseError
from ampwatch.files import open_file
from ampwatch.retry import retry
from ampwatch.store.layout import rank_folder, ranks_in

LOCK_FILE = "lock"
_HELD = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe in its place would block for ever


def hold(folder: Path, *, wait_s: float = 0.0, required: bool = False) -> int:
    """Take the lock of a rank's folder and return its descriptor; closing it releases the lock.

    Raises RunInUseError when another process holds it for longer than `wait_s`, and, if the lock
    is `required`, where the file system has none.
    """
    flags = os.O_RDWR | _NO_WAIT | getattr(os, "O_NOFOLLOW", 0)
    descriptor = open_file(folder / LOCK_FILE, flags)
    try:
        is_ours = retry(lambda: _try(descriptor, folder, required=required), wait_s)
    except BaseException:
        os.close(descriptor)
        raise
    if is_ours:
        return descriptor
    os.close(descriptor)
    raise RunInUseError(
        f"{folder} is being written by another process: wait until that ends, or give this run "
        f"another name.",
        path=folder,
    )


@contextlib.contextmanager
def held(folder: Path, *, wait_s: float = 0.0, required: bool = False) -> Iterator[None]:
    """Hold the lock of a folder while the block runs; see `hold`."""
    descriptor = hold(folder, wait_s=wait_s, required=required)
    try:
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether a writer holds the lock of a rank's folder; False if that cannot be known."""
    return _is_locked(folder) is True


def is_written(run_folder: Path) -> bool:
    """Whether a process is writing any rank of a run; False if that cannot be known."""
    return any(is_held(rank_folder(run_folder, rank)) for rank in ranks_in(run_folder))


def is_let_go(run_folder: Path) -> bool:
    """Whether the locks tell that nobody on this machine writes a run; False if they do not."""
    folders = [rank_folder(run_folder, rank) for rank in ranks_in(run_folder)]
    return bool(folders) and all(_is_locked(folder) is False for folder in folders)


def _is_locked(folder: Path) -> bool | None:
    """Whether somebody holds a lock; None if there is none, or the file system has none."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | _NO_WAIT)
    except OSError:
        return None
    try:
        return not _try(descriptor, folder, required=True, shared=True)
    except RunInUseError:
        return None
    finally:
        os.close(descriptor)


def _try(descriptor: int, folder: Path, *, required: bool, shared: bool = False) -> bool:
    try:
        _lock(descriptor, shared=shared)
    except OSError as problem:
        if problem.errno in _HELD:
            return False
        if required:
            raise RunInUseError(
                f"{folder} is on a file system without locks, so ampwatch cannot know whether it "
                f"is still being written: copy the run to a local disk first.",
                path=folder,
            ) from problem
    return True


try:
    import fcntl

    def _lock(descriptor: int, *, shared: bool) -> None:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)

except ImportError:  # Windows
    import msvcrt

    def _lock(descriptor: int, *, shared: bool) -> None:  # noqa: ARG001
        # Windows locks a byte and has no shared lock; a reader holds it for microseconds.
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
