"""Append one rank's batches: data first, then the index record that vouches for them.

Acknowledged means that both write() calls have returned: it survives `kill -9`, not a power cut.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from pathlib import Path
from typing import NoReturn

import numpy as np

from ampwatch.codec import Batch, stream_head
from ampwatch.errors import RunError, reason_of
from ampwatch.files import make_folder, make_run_folder, open_file, size_of
from ampwatch.ranges import Ranges
from ampwatch.rows import TABLES, Table
from ampwatch.store import locks
from ampwatch.store.compacted_log import CompactedLog
from ampwatch.store.layout import INDEX_FILE, new_aside, rank_folder, table_file
from ampwatch.store.live_log import (
    HEADER_BYTES,
    RECORD_BYTES,
    Header,
    good_count,
    pack_header,
    pack_record,
    read_header,
    read_records,
)
from ampwatch.store.run_info import RUN_FILE, RunInfo, describe_run, read_info

# A compaction holds the lock for the moment in which it swaps files.
_LOCK_WAIT_S = 5.0


class RankWriter:
    """Appends one rank's rows; used by one thread at a time.

    Opening takes the rank's lock (RunInUseError if another process writes this rank) and cuts a
    torn tail back to the last good batch. Every failure to write is a RunError. With `info` the
    writer can start again if its folder is deleted or moved.
    """

    def __init__(self, run_folder: Path, rank: int, info: RunInfo | None = None) -> None:
        self._folder = rank_folder(Path(run_folder), rank)
        self._info = info
        self._lock = -1
        self._fate = ""  # of files that were deleted or moved
        self._from = 0  # a log that was started again has no lower numbers
        self._begin()

    def _begin(self) -> None:
        self._files: dict[Table, _File] = {}
        self._index = _File(None)
        self._base: CompactedLog | None = None
        self._first = self._count = 0  # the live index: its first sequence, its records
        self._in_order = True  # whether a record's position gives its sequence
        self.held = Ranges()  # the sequence numbers in the log; for others to read only
        try:
            make_folder(self._folder)
            self._lock = locks.hold(self._folder, wait_s=_LOCK_WAIT_S)
        except OSError as problem:
            _fail(self._folder, problem)
        try:
            self._open()
        except OSError as problem:
            self.close()
            _fail(self._folder, problem)
        except BaseException:
            self.close()
            raise

    @property
    def next_sequence(self) -> int:
        """The lowest sequence number this log does not hold, from its first one on."""
        return self.held.next_missing(self._from)

    def is_in_place(self) -> bool:
        """Whether its files are still where it opened them: not deleted, moved or replaced."""
        if self._lock < 0:
            return False
        try:
            here = (self._folder / locks.LOCK_FILE).stat()
        except OSError:
            return False
        return os.path.samestat(here, os.fstat(self._lock))

    def begin_anew(self) -> str | None:
        """Create the log again in its place; returns the fate of its rows, None if they are there.

        Numbers go on. After a RunError, nothing but this may be called.
        """
        if self._lock >= 0:
            self._from, self._fate = self.next_sequence, _fate(self._lock)
        self.close()
        self._stand_again(self._folder.parent)
        self._begin()
        return None if self.held.end >= self._from else self._fate

    def append(self, batch: Batch, sequence: int | None = None) -> int:
        """Write a batch and return its sequence number; the batch is then acknowledged.

        A recorder passes the sender's sequence, in any order; a batch that is held already is not
        written again. After a RunError the log is as it was before.
        """
        number = self.next_sequence if sequence is None else sequence
        if number in self.held:
            return number
        try:
            file = self._file(batch.table)
            offset = file.end
            file.append(batch.payload)
            try:
                self._index.append(pack_record(number, offset, batch))
            except OSError:
                file.cut(offset)
                raise
        except OSError as problem:
            _fail(self._folder, problem)
        self._in_order = self._in_order and number == self._first + self._count
        self._count += 1
        self.held.add(number)
        return number

    def read_from(self, sequence: int, max_bytes: int) -> list[tuple[int, Batch]]:
        """Batches from `sequence` on, for replay: at least one if there is one."""
        try:
            old = self._base is not None and sequence < self._first
            batches = self._base.batches_from(sequence, max_bytes) if self._base and old else []
            return batches or self._live_from(sequence, max_bytes)
        except OSError as problem:
            raise RunError(f"{self._folder} cannot be read: {problem}", path=self._folder) from None

    def close(self) -> None:
        """Close the files and release the lock; idempotent."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._index.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- starting again --------------------------------------------------------------------------

    def _stand_again(self, run_folder: Path) -> None:
        """Create the run's folder and run.json again, unless another run has taken their place."""
        if self._info is None:
            raise RunError(f"{run_folder} was deleted or moved.", path=run_folder)
        try:
            run_folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                make_run_folder(run_folder)
            if not os.path.lexists(run_folder / RUN_FILE):
                describe_run(run_folder, self._info)
        except OSError as problem:
            _fail(run_folder, problem)
        if read_info(run_folder).id != self._info.id:
            raise RunError(f"{run_folder} is another run by now.", path=run_folder)

    # --- opening ---------------------------------------------------------------------------------

    def _open(self) -> None:
        self._base = CompactedLog.load(self._folder)
        self._index = _File(self._folder / INDEX_FILE)
        data = self._index.read(0, self._index.size)
        header = read_header(data, self._folder / INDEX_FILE)
        generation = self._base.generation if self._base else 0
        if header is None or header.generation < generation:
            # No index, a foreign one, or one left by a killed compaction: nothing in it counts.
            header = self._restart(keep_aside=header is None and self._has_data())
            data = b""
        self._first = header.first_sequence
        self._recover(read_records(data[HEADER_BYTES:]), data)

    def _restart(self, *, keep_aside: bool) -> Header:
        if keep_aside:
            self._set_aside()
        for table in TABLES:
            table_file(self._folder, table).unlink(missing_ok=True)
        generation, first = (0, self._from) if self._base is None else self._base.next_header
        header = Header(generation, first)
        self._index.cut(0)
        self._index.append(pack_header(header))
        return header

    def _recover(self, records: np.ndarray, data: bytes) -> None:
        """Cut the index and every table back to the last batch that all agree on."""
        good = good_count(self._folder, records)
        left = data[HEADER_BYTES + good * RECORD_BYTES :].rstrip(b"\0")
        if len(left) > RECORD_BYTES:  # more than a torn tail, or the zeros of a power cut
            self._set_aside()
        good_records = records[:good]
        if data:
            self._index.cut(HEADER_BYTES + good * RECORD_BYTES)
        for table in TABLES:
            mine = good_records[good_records["table"] == table.number]
            if table_file(self._folder, table).exists():
                end = int((mine["offset"] + mine["length"]).max()) if len(mine) else 0
                self._file(table).cut(end or len(stream_head(table)))
        live = good_records["sequence"].astype(np.int64)
        compacted = self._base.sequences if self._base else live[:0]
        self.held = Ranges.of_numbers(np.concatenate([compacted, live]))
        if self._base is None:  # a log that was started again, and is now opened again
            self._from = max(self._from, self._first)
        elif self._info is not None:  # a trainer's own log gets no batches from before its first
            self._from = max(self._from, self.held.start)
        self._count = good
        self._in_order = bool(np.array_equal(live, self._first + np.arange(good)))

    def _has_data(self) -> bool:
        sizes = (size_of(table_file(self._folder, table)) for table in TABLES)
        return self._index.size > 0 or any(sizes)

    def _set_aside(self) -> None:
        """Copy damaged files before they are cut: good batches may follow the damage."""
        aside = new_aside(self._folder)
        make_folder(aside)
        for path in self._folder.iterdir():
            if path.name == INDEX_FILE or path.suffix == ".arrows":
                shutil.copy2(path, aside)

    def _file(self, table: Table) -> _File:
        """The table's file, which begins with its schema."""
        if table not in self._files:
            file = _File(table_file(self._folder, table))
            self._files[table] = file
            file.end = file.size
        file = self._files[table]
        if file.end < len(stream_head(table)):
            file.cut(0)
            file.append(stream_head(table))
        return file

    # --- replay ----------------------------------------------------------------------------------

    def _live_from(self, start: int, max_bytes: int) -> list[tuple[int, Batch]]:
        batches: list[tuple[int, Batch]] = []
        taken = 0
        for record in self._records_from(start):
            if batches and taken + int(record["length"]) > max_bytes:
                break
            table = TABLES[int(record["table"])]
            sequence = int(record["sequence"])
            payload = self._file(table).read(int(record["offset"]), int(record["length"]))
            if zlib.crc32(payload) != int(record["crc"]):
                raise RunError(f"Batch {sequence} is damaged on disk.")
            batches.append((sequence, Batch(table, int(record["rows"]), payload)))
            taken += len(payload)
        return batches

    def _records_from(self, sequence: int) -> np.ndarray:
        """Some records, in order of sequence, from the one asked for on."""
        if self._in_order:
            position = max(0, sequence - self._first)
            count = min(_REPLAY_RECORDS, self._count - position)
            start = HEADER_BYTES + position * RECORD_BYTES
            return read_records(self._index.read(start, max(0, count) * RECORD_BYTES))
        records = read_records(self._index.read(HEADER_BYTES, self._count * RECORD_BYTES))
        records = records[records["sequence"] >= sequence]
        return records[np.argsort(records["sequence"])][:_REPLAY_RECORDS]


_REPLAY_RECORDS = 1024


class _File:
    """A file written at its known end, so that a failed write leaves nothing that counts."""

    __slots__ = ("_descriptor", "end")

    def __init__(self, path: Path | None) -> None:
        self._descriptor = -1 if path is None else open_file(path, os.O_RDWR)
        self.end = 0

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> None:
        """Write all of it; on failure the file ends where it did."""
        start = self.end
        os.lseek(self._descriptor, start, os.SEEK_SET)
        try:
            rest = memoryview(data)
            while rest:  # write() may take a part, on a full disk above all
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self.cut(start)
            raise
        self.end = start + len(data)

    def cut(self, end: int) -> None:
        self.end = end
        if self.size > end:
            os.ftruncate(self._descriptor, end)

    def read(self, offset: int, length: int) -> bytes:
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        parts = []
        while length > 0 and (part := os.read(self._descriptor, length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _fate(lock: int) -> str:
    """What happened to the writer's files, of which the lock is one: deleted or moved away."""
    return "deleted" if os.fstat(lock).st_nlink == 0 else "moved away"


def _fail(folder: Path, problem: OSError) -> NoReturn:
    raise RunError(
        f"{folder} cannot be written ({reason_of(problem)}), so rows are being lost: free "
        "some space, or choose another log_dir.",
        path=folder,
    ) from problem
