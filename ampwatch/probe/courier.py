"""The courier: one thread that makes rows of records, files them and sends them.

The training thread only appends to a deque. While a disk hangs, queued steps first lose their
update slices (those columns are null then); beyond `MOST_QUEUED` whole rows are lost. Lost rows are
counted, and reported in a `gap` event as soon as the log can be written again. If the log is
deleted or moved, a new one is started; the deleted rows count as lost.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ampwatch import codec
from ampwatch.errors import AmpwatchError, warn
from ampwatch.probe.control import Control
from ampwatch.probe.hooks import FailureShield
from ampwatch.probe.records import EventRecord, HostUpdate, StepRecord
from ampwatch.probe.row_maker import RowMaker
from ampwatch.rows import EventKind, Table
from ampwatch.store import RankWriter

if TYPE_CHECKING:
    from ampwatch.feed import Sender  # loads zmq

Columns = tuple[Table, dict[str, list[Any]]]

FLUSH_SECONDS = 0.2
DEVICE_SECONDS = 1.0
LOOK_SECONDS = 1.0
QUEUE_BYTES = 64 * 2**20
MOST_QUEUED = 20_000  # records without slices: some 50 MB
JOIN_SECONDS = 10.0
MOST_OPENING = 64


class MemoryLog:
    """A log where none can be written: batches are numbered for the wire, and none is kept."""

    def __init__(self) -> None:
        self.next_sequence = 0

    def append(self, _batch: codec.Batch, _sequence: int | None = None) -> int:
        """Number the batch, and keep nothing of it."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def read_from(self, _sequence: int, _max_bytes: int) -> list[tuple[int, codec.Batch]]:
        """Nothing: no batch was kept."""
        return []

    def is_in_place(self) -> bool:
        """There is no place that this log could be taken from."""
        return True

    def begin_anew(self) -> str | None:
        """There is no log on disk to begin anew."""
        return None

    def close(self) -> None:
        """There are no files to let go of."""


Log = RankWriter | MemoryLog


class Courier:
    """Carries the records of one watch; `deliver` may be called from any thread."""

    def __init__(
        self,
        row_maker: weakref.ref[RowMaker],
        log: Log,
        connect: Callable[[], Sender | None],
        sample_devices: Callable[[int], dict[str, list[Any]]],
        control: Control | None,
        shield: FailureShield,
    ) -> None:
        self.lost_rows = 0
        self._row_maker = row_maker  # it knows the model, which this thread must not keep alive
        self._last_row_maker: RowMaker | None = None
        self._afterwards: Sequence[Callable[[], None]] = ()
        self._log = log
        self._connect = connect
        self._sender: Sender | None = None
        self._sample_devices = sample_devices
        self._control = control
        self._shield = shield
        self._queue: deque[StepRecord | EventRecord] = deque()
        self._record_bytes = 0  # of the largest record carried last
        self._wake = threading.Event()
        self._stop = False
        self._sampled_at = -DEVICE_SECONDS
        self._unsaid_rows: int | None = None
        self._why = ""  # they were lost
        self._filed_rows = 0  # in the log as it stands
        self._opening: list[codec.Batch] = []  # what no log can be read without
        self._looked_at = time.monotonic()
        self._is_away = False  # the log, and it cannot be started again
        self._was_taken = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="ampwatch-courier", daemon=True)
        self._thread.start()

    @property
    def failures(self) -> int:
        """How often the courier failed, not counting what was lost."""
        return self._shield.failures

    def deliver(self, record: StepRecord | EventRecord) -> None:
        """Take a record; never blocks and never grows without bound."""
        waiting = len(self._queue)
        if waiting >= MOST_QUEUED:
            self._lose(1, "they came faster than they could be written")
            return
        if waiting * self._record_bytes > QUEUE_BYTES and isinstance(record, StepRecord):
            for turn in record.turns:
                turn.update = None  # the dearest part: the update's figures become absent
        self._queue.append(record)

    def close(
        self,
        last: EventRecord,
        row_maker: RowMaker,
        *,
        wait: bool,
        afterwards: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Write what is left and the end, and close; waits a few seconds at most.

        Without waiting it may be called by the garbage collector, at any moment and on any thread:
        no lock is taken, and the thread finds out by itself, as does who is called `afterwards`.
        """
        if os.getpid() != self._pid:
            return
        self._shield.off = False  # what was seen before a failure is still to be carried
        self._last_row_maker = row_maker
        self._afterwards = afterwards
        self._queue.append(last)
        self._stop = True
        if wait:
            self._wake.set()
            self.join()
        else:  # whoever lets a watch go does not wait for it, but the process's end does
            with contextlib.suppress(RuntimeError):
                atexit.register(self.join)

    def join(self) -> None:
        """Wait until everything is written, a few seconds at most."""
        if threading.current_thread() is self._thread:  # who is called afterwards asks for the end
            return
        self._wake.set()
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            warn("could not finish writing within 10 s; the end of the log may be missing.")

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        self._sender = self._shield.run(self._connect)
        while not self._stop:
            self._wake.wait(FLUSH_SECONDS)
            self._shield.run(self._flush)
        self._shield.run(self._finish)
        for callback in self._afterwards:
            self._shield.run(callback)
        atexit.unregister(self.join)  # it would be held for good

    def _finish(self) -> None:
        self._looked_at = -LOOK_SECONDS
        self._flush()
        if self._last_row_maker is not None:
            self._last_row_maker.forget()
            self._last_row_maker = None
        if self._sender is not None:
            self._sender.close()
        self._log.close()

    def _flush(self) -> None:
        row_maker = self._last_row_maker or self._row_maker()
        if row_maker is None:
            return  # the watch is being collected, and hands its row maker over in a moment
        records = [self._queue.popleft() for _ in range(len(self._queue))]
        steps = [record for record in records if isinstance(record, StepRecord)]
        self._record_bytes = max(map(_size_bytes, steps), default=self._record_bytes)
        sets = self._rows(row_maker, records)
        now = time.monotonic()
        if now - self._sampled_at >= DEVICE_SECONDS:
            self._sampled_at = now
            sets.append((Table.DEVICES, self._sample_devices(time.time_ns())))
        self._look_after_log(now)
        for table, columns in sets:
            batch = codec.encode(table, columns)
            self._remember(table, columns, batch)
            self._file(batch)
        if self._sender is not None:
            self._sender.poll()
        if self._control is not None:
            self._shield.run(self._control.look)

    def _rows(self, row_maker: RowMaker, records: list[StepRecord | EventRecord]) -> list[Columns]:
        """The rows of these records; where that fails, of each whose rows can be made alone."""
        sets: list[Columns] = []
        try:
            return list(row_maker.rows(records)) if records else sets
        except Exception as error:  # noqa: BLE001 - the shield has it in a moment
            self._shield.failed(error)
        for record in records:
            rows = self._shield.run(row_maker.rows, [record])
            if rows is None:
                self._lose(1, "they could not be made from what was seen")
            sets += rows or ()
        return sets

    def _file(self, batch: codec.Batch) -> None:
        if self._is_away or (self._unsaid_rows is not None and not self._say_gap()):
            self._lose(batch.row_count)
            return
        try:
            sequence = self._log.append(batch)
        except (AmpwatchError, OSError) as error:
            if not self._log.is_in_place() and self._begin_anew():
                self._file(batch)
                return
            if not self.lost_rows and self._log.is_in_place():  # else `_look_after_log` warns
                warn(f"rows are being lost ({error}); training goes on.")
            self._lose(batch.row_count)
            return
        self._filed_rows += batch.row_count
        if self._sender is not None:
            self._sender.send(sequence, batch)

    def _lose(self, row_count: int, why: str = "the log could not be written") -> None:
        self.lost_rows += row_count
        self._unsaid_rows = (self._unsaid_rows or 0) + row_count
        self._why = why

    def _say_gap(self) -> bool:
        """Writing works again: write an event that says how many rows are missing."""
        columns: dict[str, list[Any]] = {
            "step": [None],
            "time_ns": [time.time_ns()],
            "kind": [EventKind.GAP.value],
            "detail": [json.dumps({"lost_rows": self._unsaid_rows, "reason": self._why})],
        }
        try:
            self._log.append(codec.encode(Table.EVENTS, columns))
        except (AmpwatchError, OSError):
            return False
        self._unsaid_rows = None
        return True

    # -- a log that is deleted or moved ----------------------------------------------------------

    def _look_after_log(self, now: float) -> None:
        """Ask now and then whether the log is where it was; else begin it anew."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        if not self._log.is_in_place():
            self._begin_anew()

    def _begin_anew(self) -> bool:
        """Begin a log that is no longer where it was; whether there is one again."""
        try:
            fate = self._log.begin_anew()
        except (AmpwatchError, OSError) as error:
            self._say_taken(f"cannot be started again ({error}): rows are being lost")
            self._forget_filed("the log was taken away")
            self._is_away = True
            return False
        if fate is not None:
            self._say_taken(f"was {fate}: a new one is begun in its place")
            self._forget_filed(f"the log was {fate}", are_lost=fate == "deleted")
        self._is_away = False
        if fate is not None:
            for batch in self._opening:
                self._file_opening(batch)
        return True

    def _say_taken(self, words: str) -> None:
        if not self._was_taken:
            warn(f"the run's log {words}; training goes on.")
        self._was_taken = True

    def _forget_filed(self, why: str, *, are_lost: bool = True) -> None:
        """The rows filed so far are not in the log that stands now."""
        self._lose(self._filed_rows if are_lost else 0, why)
        self._filed_rows = 0

    def _remember(self, table: Table, columns: dict[str, list[Any]], batch: codec.Batch) -> None:
        """Keep the batches that name the attempt's start and its layers."""
        if table is Table.LAYER_INFO or EventKind.STARTED.value in columns.get("kind", ()):
            self._opening.append(batch)
            if len(self._opening) > MOST_OPENING:
                del self._opening[2]  # neither the start nor the first names

    def _file_opening(self, batch: codec.Batch) -> None:
        with contextlib.suppress(AmpwatchError, OSError):
            sequence = self._log.append(batch)
            if self._sender is not None:
                self._sender.send(sequence, batch)


def _size_bytes(record: StepRecord) -> int:
    """What a queued record holds, roughly."""
    slices = [t.update for t in record.turns if isinstance(t.update, HostUpdate)]
    return 8 * len(record.pack.values) + sum(s.before.nbytes + s.after.nbytes for s in slices)
