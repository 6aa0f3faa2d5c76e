"""Open files of a run that somebody else may have made: only regular ones, and never to wait.

A pipe in place of a file would hold whoever opens it for ever, and a device has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def open_regular(path: Path) -> BinaryIO:
    """The file, to be read; an OSError for a folder, a pipe, a device or what cannot be opened."""
    descriptor = os.open(path, _FLAGS)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_at_most(path: Path, size: int) -> bytes:
    """The whole file; an OSError where it is longer than `size`."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > size:
            raise OSError(errno.EFBIG, f"it is longer than {size} bytes", str(path))
        return file.read()
