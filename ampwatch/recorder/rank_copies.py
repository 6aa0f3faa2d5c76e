"""Copies of trainers' logs: one rank's files, how many may be open at once, and their compaction.

Beside a copy's run.json lies recorder.json, which says that it is a copy and what it lacks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ampwatch import feed, store
from ampwatch.codec import Batch
from ampwatch.errors import AmpwatchError, RunError, RunInUseError, reason_of
from ampwatch.files import make_folder, size_of
from ampwatch.ranges import Ranges
from ampwatch.rows import TABLES
from ampwatch.store import locks
from ampwatch.store.layout import INDEX_FILE, find_in, rank_folder
from ampwatch.store.run_info import MOST_GAPS

_MOST_RANGES = 10_000  # live rows come ahead of older ones, but not in so many pieces
_PATIENCE_S = 90.0  # a network share may show another host's writes a minute late
_COMPACTION_PATIENCE_S = 10.0
_OTHER_FILES = 64  # the process's own: libraries, pipes, a compaction
_FILES_A_COPY = 2 + len(TABLES)  # the lock, the index, and one a table
_UNKNOWN_FILES = 2048  # where the system does not say how many it allows


@dataclass(slots=True)
class RankCopy:
    """A rank's place in the recorder's folder, while the recorder hears of it.

    If the trainer itself writes the rank there (`is_copy` false), nothing is ever written.
    """

    rank: int
    folder: Path
    info: store.RunInfo
    is_copy: bool
    head_at_hello: int
    filed: int = 0
    lost: Ranges = field(default_factory=Ranges)  # numbers that will never come
    has_ended: bool = False
    blocked_until_s: float | None = None
    _writer: store.RankWriter | None = None
    _suspect: tuple[float, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether its files are open."""
        return self._writer is not None

    def open(self) -> None:
        """Continue the copy from what it holds; RunError if that is not possible now.

        It is noted as a copy before it has a folder. Killed in between, it would otherwise leave a
        folder that the next recorder takes for the trainer's own, and never fills.
        """
        if not _has_log(self.folder, self.rank):
            self._load_note()
        self._refuse_if_in_use()
        self._load_note()
        self._writer = store.RankWriter(self.folder, self.rank)
        self.filed = self._lowest_wanted(0)
        self.blocked_until_s = None

    def file(self, sequence: int, batch: Batch) -> None:
        """Keep a batch, unless too many are missing below it; RunError if it cannot be kept now."""
        if not self.is_copy:
            self.filed = max(self.filed, sequence + 1)
            return
        writer = self._open_writer()
        if len(writer.held) >= _MOST_RANGES and sequence > self.filed:
            return  # as if lost under way: it is sent again after those below it
        writer.append(batch, sequence)
        self.filed = self._lowest_wanted(self.filed)

    def lose(self, first: int, after: int) -> bool:
        """Note numbers that will never come; False if that was known."""
        if not self.is_copy:
            self.filed = max(self.filed, after)
            return False
        if self.lost.next_missing(first) >= after:
            return False
        self._open_writer()
        if len(self.lost) >= MOST_GAPS:
            raise RunError("it has lost more ranges of its log than can be noted.")
        self.lost.add(first, after)
        self.filed = self._lowest_wanted(self.filed)
        self.save()
        return True

    def is_gone(self) -> bool:
        """Whether the copy's files were deleted or moved: what is written to them now is lost."""
        if not self.is_copy:
            return False
        in_place = self._writer is None or self._writer.is_in_place()
        return not in_place or not (self.folder / store.RUN_FILE).exists()

    def end(self) -> None:
        """Note that the rank has ended and everything is here."""
        self.has_ended = True
        self.close()
        if self.is_copy:
            self.save()

    def close(self) -> None:
        """Close the files; what they hold stays acknowledged."""
        if self._writer is not None:
            with contextlib.suppress(OSError, AmpwatchError):
                self._writer.close()
            self._writer = None

    def save(self) -> None:
        """Write to recorder.json what the copy's own rows cannot say."""
        notes = store.load_copies(self.folder)
        note = store.CopyNote(tuple(self.lost), self.filed if self.has_ended else None)
        if notes.get(self.rank) == note:
            return
        notes[self.rank] = note
        try:
            store.write_copies(self.folder, notes)
        except OSError as error:
            raise _not_writable(self.folder / store.COPY_FILE, error) from error

    def is_stale(self, head: int) -> bool:
        """Whether these files, not a copy of ours, do not grow though the trainer goes on."""
        index_bytes = size_of(rank_folder(self.folder, self.rank) / INDEX_FILE)
        if self._suspect is None or self._suspect[1] != index_bytes:
            self._suspect = (time.monotonic(), index_bytes)
        waited_s = time.monotonic() - self._suspect[0]
        return waited_s > _PATIENCE_S and head > self.head_at_hello

    def _open_writer(self) -> store.RankWriter:
        if self._writer is None:
            self.open()
        assert self._writer is not None
        return self._writer

    def _load_note(self) -> None:
        """Load what is noted of this copy, and note that it is one."""
        note = store.load_copies(self.folder).get(self.rank, store.CopyNote())
        self.lost = Ranges(note.gaps)
        self.save()

    def _refuse_if_in_use(self) -> None:
        """Try the lock without waiting, as a writer would: other ranks' rows are due."""
        folder = rank_folder(self.folder, self.rank)
        try:
            make_folder(folder)
            os.close(locks.hold(folder))
        except OSError as error:
            raise _not_writable(folder, error) from error

    def _lowest_wanted(self, number: int) -> int:
        """The lowest number from this one on that is neither in the files nor known to be lost."""
        assert self._writer is not None
        held = self._writer.held
        while (after := self.lost.next_missing(held.next_missing(number))) != number:
            number = after
        return number


def copy_in(
    directory: Path,
    info: store.RunInfo,
    rank: int,
    head: int,
    *,
    beside: Sequence[Path] = (),
) -> RankCopy:
    """A rank's place in the recorder's directory; its run's folder is made if need be.

    A run whose own log is in one of the folders `beside`, which are read here too, is only watched.
    """
    for own in filter(None, (find_in(folder, info) for folder in beside)):
        if rank not in store.load_copies(own) and _has_log(own, rank):
            return RankCopy(rank, own, info, is_copy=False, head_at_hello=head)
    folder = store.create_run(directory, info)
    is_copy = rank in store.load_copies(folder) or not _has_log(folder, rank)
    return RankCopy(rank, folder, info, is_copy, head)


def _has_log(run_folder: Path, rank: int) -> bool:
    """Whether a rank was written where its copy would be: trainers write an index first."""
    folder = rank_folder(run_folder, rank)
    return size_of(folder / INDEX_FILE) > 0 or (folder.exists() and locks.is_held(folder))


def _not_writable(path: Path, error: OSError) -> RunError:
    return RunError(f"{path} cannot be written ({reason_of(error)}).", path=path)


# --- open files -----------------------------------------------------------------------------------


class OpenFiles:
    """Keeps the copies that were written last open; others are opened again at their next rows."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        # Three quarters of what the process may have: each rank has a connection too.
        self._most_files = max(_FILES_A_COPY, (_allowed_files() - _OTHER_FILES) * 3 // 4)
        self._copies: OrderedDict[feed.PeerKey, RankCopy] = OrderedDict()

    def used(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Note that a copy was written just now, and close others if too many files are open."""
        self._copies[key] = copy
        self._copies.move_to_end(key)
        while len(self._copies) * _FILES_A_COPY > self._most_files and len(self._copies) > 1:
            self._close_idlest()

    def forget(self, key: feed.PeerKey) -> None:
        """Stop counting a copy that is closed for good."""
        self._copies.pop(key, None)

    def _close_idlest(self) -> None:
        _, copy = self._copies.popitem(last=False)
        if copy.is_open:
            copy.close()
            self._note(
                "More ranks send than may have files open here "
                f"({self._most_files} files): the copies that have been idle longest are closed, "
                "and opened again at their next rows. `ulimit -n` before starting the recorder "
                "allows more."
            )


def allow_more_files() -> None:
    """Raise the limit of open files, which copies need, as far as the system lets it."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _allowed_files() -> int:
    if sys.platform == "win32":
        return _UNKNOWN_FILES
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNKNOWN_FILES if soft == resource.RLIM_INFINITY else soft


# --- compaction -----------------------------------------------------------------------------------


class Compactor:
    """Compacts finished copies, one after the other, beside the thread that receives.

    If a compaction fails, `on_note` is called with a sentence, and the run stays as it is.
    """

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._on_note = on_note
        self._latest: threading.Thread | None = None

    def compact(self, folder: Path) -> None:
        """Compact a run when those before it are done."""
        self._latest = threading.Thread(
            target=self._compact_after,
            args=(folder, self._latest),
            name="ampwatch-compact",
            daemon=True,
        )
        self._latest.start()

    def finish(self) -> None:
        """Wait a while for what was begun; abandoned, it leaves the run as it was."""
        if self._latest is not None:
            self._latest.join(_COMPACTION_PATIENCE_S)

    def _compact_after(self, folder: Path, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            store.compact(folder)
        except RunInUseError:
            return  # the run goes on, or somebody else compacts it
        except (OSError, AmpwatchError) as error:
            self._on_note(f"{folder} could not be compacted and stays as it is: {error}")
