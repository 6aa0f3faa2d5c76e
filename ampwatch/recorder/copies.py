"""One rank's copy: its files, what it lacks, and recorder.json, which says that it is a copy."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from ampwatch import store
from ampwatch.codec import Batch
from ampwatch.errors import AmpwatchError, RunError
from ampwatch.files import make_folder
from ampwatch.store import locks
from ampwatch.store.index import INDEX_FILE
from ampwatch.store.layout import rank_folder

_MOST_GAPS = 1000
_MOST_STRETCHES = 10_000  # live rows come ahead of older ones, but not in so many pieces
_PATIENCE_S = 90.0  # a network share may show another host's writes a minute late

Range = tuple[int, int]  # from the first number up to and without the last


@dataclass(slots=True)
class RankCopy:
    """A rank's place in the recorder's folder, while the recorder hears of it.

    Where the trainer itself writes the rank there (`is_copy` false), nothing is ever written.
    """

    rank: int
    folder: Path
    info: store.RunInfo
    is_copy: bool
    head_at_hello: int
    filed: int = 0
    gaps: list[Range] = field(default_factory=list)
    has_ended: bool = False
    blocked_until_s: float | None = None
    _writer: store.RankWriter | None = None
    _suspect: tuple[float, int] | None = None

    @property
    def open_files(self) -> int:
        """How many files it holds open."""
        return 0 if self._writer is None else self._writer.open_files

    def open(self) -> None:
        """Continue the copy from what it holds; RunError if that cannot be now.

        It is noted as a copy before it has a folder: one killed in between leaves no folder that
        its successor would take for the trainer's own, and never fill.
        """
        if not _has_log(self.folder, self.rank):
            self._recall()
        self._refuse_if_in_use()
        self._recall()
        self._writer = store.RankWriter(self.folder, self.rank)
        self.filed = self._lowest_wanted(0)
        self.blocked_until_s = None

    def file(self, sequence: int, batch: Batch) -> None:
        """Keep a batch, unless it lies beyond too many holes; RunError if it cannot be kept now."""
        if not self.is_copy:
            self.filed = max(self.filed, sequence + 1)
            return
        if self._writer is None:
            self.open()
        assert self._writer is not None
        if self._writer.ranges >= _MOST_STRETCHES and sequence > self.filed:
            return  # like one that was lost under way: it comes again after those below it
        self._writer.append(batch, sequence)
        self.filed = self._lowest_wanted(self.filed)

    def lose(self, first: int, after: int) -> bool:
        """Note numbers that will never come; whether that is news."""
        if not self.is_copy:
            self.filed = max(self.filed, after)
            return False
        if any(start <= first and after <= end for start, end in self.gaps):
            return False
        if self._writer is None:
            self.open()
        if len(self.gaps) >= _MOST_GAPS:
            raise RunError("it has lost more stretches of its log than can be noted.")
        self.gaps = sorted([*self.gaps, (first, after)])
        self.filed = self._lowest_wanted(self.filed)
        self.save()
        return True

    def is_gone(self) -> bool:
        """Whether somebody took the copy's files away: what is written there now is lost."""
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
        """Let go of the files; what they hold stays acknowledged."""
        if self._writer is not None:
            with contextlib.suppress(OSError, AmpwatchError):
                self._writer.close()
            self._writer = None

    def save(self) -> None:
        """Write down what the copy's own rows cannot say."""
        notes = store.load_copies(self.folder)
        note = store.CopyNote(tuple(self.gaps), self.filed if self.has_ended else None)
        if notes.get(self.rank) == note:
            return
        notes[self.rank] = note
        try:
            store.write_copies(self.folder, notes)
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunError(
                f"{self.folder / store.COPY_FILE} cannot be written ({reason})."
            ) from error

    def is_stale(self, head: int) -> bool:
        """Whether these files, not a copy of ours, do not grow though the trainer goes on."""
        index_bytes = _size(rank_folder(self.folder, self.rank) / INDEX_FILE)
        if self._suspect is None or self._suspect[1] != index_bytes:
            self._suspect = (time.monotonic(), index_bytes)
        waited_s = time.monotonic() - self._suspect[0]
        return waited_s > _PATIENCE_S and head > self.head_at_hello

    def _recall(self) -> None:
        """Take up what is noted of this copy, and note that it is one."""
        self.gaps = list(store.load_copies(self.folder).get(self.rank, store.CopyNote()).gaps)
        self.save()

    def _refuse_if_in_use(self) -> None:
        """Ask for the lock without waiting, as a writer would: other ranks' rows are due."""
        folder = rank_folder(self.folder, self.rank)
        try:
            make_folder(folder)
            os.close(locks.hold(folder))
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunError(f"{folder} cannot be written ({reason}).", path=folder) from error

    def _lowest_wanted(self, number: int) -> int:
        """The lowest number from this one on that is neither in the files nor known to be lost."""
        assert self._writer is not None
        while (after := self._past_lost(self._writer.next_missing(number))) != number:
            number = after
        return number

    def _past_lost(self, number: int) -> int:
        for first, after in self.gaps:
            if first <= number < after:
                number = after
        return number


def place(directory: Path, info: store.RunInfo, rank: int, head: int) -> RankCopy:
    """Where a rank belongs in the recorder's directory; its run's folder is made if need be."""
    folder = store.create_run(directory, info)
    is_copy = rank in store.load_copies(folder) or not _has_log(folder, rank)
    return RankCopy(rank, folder, info, is_copy, head)


def _has_log(run_folder: Path, rank: int) -> bool:
    """Whether somebody has written a rank there: a trainer's index is before its first word."""
    folder = rank_folder(run_folder, rank)
    return _size(folder / INDEX_FILE) > 0 or (folder.exists() and locks.is_held(folder))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
