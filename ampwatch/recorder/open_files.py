"""How many files copies hold open together, and whose are closed when that is too many."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable

from ampwatch import feed
from ampwatch.recorder.copies import RankCopy

_OTHERS = 64  # the process's own: libraries, pipes, a compaction
_UNKNOWN = 2048  # where the system does not say how many files it allows


class OpenFiles:
    """Keeps the copies that were written last open; the idlest is opened again at its next rows."""

    def __init__(self, note: Callable[[str], None], most: int | None = None) -> None:
        self._note = note
        self._most = most or files_for_copies()
        self._counts: OrderedDict[feed.PeerKey, tuple[RankCopy, int]] = OrderedDict()
        self._total = 0

    def used(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Note that a copy was written just now, and close what has become too much."""
        _, before = self._counts.pop(key, (copy, 0))
        self._counts[key] = (copy, copy.open_files)
        self._total += copy.open_files - before
        while self._total > self._most and len(self._counts) > 1:
            self._close_idlest()

    def forget(self, key: feed.PeerKey) -> None:
        """Count a copy no more that is closed for good."""
        _, count = self._counts.pop(key, (None, 0))
        self._total -= count

    def _close_idlest(self) -> None:
        _, (copy, count) = self._counts.popitem(last=False)
        self._total -= count
        if copy.open_files:
            copy.close()
            self._note(
                f"More ranks send than may have files open here ({self._most} files): the copies "
                "that are idle longest are closed, and opened again at their next rows. `ulimit "
                "-n` before starting the recorder allows more."
            )


def files_for_copies() -> int:
    """How many files copies may hold: three quarters, as each rank has a connection too."""
    return max(8, (_allowed() - _OTHERS) * 3 // 4)


def allow_more_files() -> None:
    """Raise this process's own limit as far as the system lets it."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _allowed() -> int:
    if sys.platform == "win32":
        return _UNKNOWN
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNKNOWN if soft == resource.RLIM_INFINITY else soft
