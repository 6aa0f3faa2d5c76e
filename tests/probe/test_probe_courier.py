"""What the courier does when the log cannot keep up, or cannot be written at all."""

from __future__ import annotations

import json
import threading
import weakref

import pytest

from ampwatch.codec import decode
from ampwatch.errors import RunError
from ampwatch.probe import courier as courier_module
from ampwatch.probe.courier import Courier
from ampwatch.probe.digest import Digest
from ampwatch.probe.guard import AmpwatchWarning, Guard
from ampwatch.probe.memory_log import MemoryLog
from ampwatch.probe.models import survey
from ampwatch.probe.readback import Pack
from ampwatch.probe.records import EventRecord, StepRecord
from ampwatch.rows import EventKind, Table


class KeptLog(MemoryLog):
    """Keeps the batches, fails while it is told to, and hangs while it is held."""

    def __init__(self):
        super().__init__()
        self.batches = []
        self.full = False
        self.held = threading.Event()
        self.held.set()

    def append(self, batch, sequence=None):
        self.held.wait()
        if self.full:
            raise RunError("The disk is full.")
        self.batches.append(batch)
        return super().append(batch, sequence)

    def rows(self, table):
        found = [b for b in self.batches if b.table is table]
        return [row for b in found for row in decode(table, b.payload).to_pylist()]


class Carried:
    """A courier over a kept log, with the digest that a watch would hold."""

    def __init__(self):
        self.log = KeptLog()
        self.digest = Digest(survey(None))
        devices = lambda time_ns: {"time_ns": [time_ns], "device": ["cpu"]}  # noqa: E731
        self.courier = Courier(weakref.ref(self.digest), self.log, lambda: None, devices, Guard())

    def step(self, number):
        record = StepRecord(number, Pack())
        record.time_ns = number + 1
        self.courier.deliver(record)

    def flush(self):
        self.courier._flush()

    def close(self):
        last = EventRecord(0, 0, EventKind.ENDED, {})
        self.courier.close(last, self.digest, wait=True)


@pytest.fixture
def carried(monkeypatch):
    # The thread waits for `close`; the tests flush by hand.
    monkeypatch.setattr(courier_module, "FLUSH_SECONDS", 1000.0)
    made = Carried()
    yield made
    made.log.held.set()
    made.close()


def test_rows_come_in_the_order_of_their_steps_and_the_end_comes_last(carried):
    for number in range(5):
        carried.step(number)
    carried.close()
    assert [row["step"] for row in carried.log.rows(Table.STEPS)] == list(range(5))
    assert [row["kind"] for row in carried.log.rows(Table.EVENTS)] == ["ended"]


def test_rows_that_a_full_disk_cost_are_counted_and_said_when_it_has_room_again(carried):
    carried.step(0)
    carried.flush()
    carried.log.full = True
    for number in (1, 2, 3):
        carried.step(number)
    with pytest.warns(AmpwatchWarning, match="The disk is full"):
        carried.flush()
    assert carried.courier.lost_rows == 3
    carried.log.full = False
    carried.step(4)
    carried.flush()
    assert [row["step"] for row in carried.log.rows(Table.STEPS)] == [0, 4]
    gap = next(row for row in carried.log.rows(Table.EVENTS) if row["kind"] == "gap")
    assert json.loads(gap["detail"])["lost_rows"] == 3


def test_a_log_that_hangs_costs_rows_but_no_memory_and_no_time(carried, monkeypatch):
    monkeypatch.setattr(courier_module, "MOST_QUEUED", 100)
    for number in range(250):
        carried.step(number)
    assert len(carried.courier._queue) == 100
    assert carried.courier.lost_rows == 150
    carried.flush()
    assert len(carried.log.rows(Table.STEPS)) == 100


def test_a_record_that_cannot_be_digested_costs_no_other(carried, monkeypatch):
    monkeypatch.setattr(carried.courier._guard, "_strict", False)
    for number in range(3):
        carried.step(number)
    carried.courier._queue[1].scale_at = 99  # there is no such value
    with pytest.warns(AmpwatchWarning, match="IndexError"):
        carried.flush()
    carried.step(3)
    carried.flush()
    assert [row["step"] for row in carried.log.rows(Table.STEPS)] == [0, 2, 3]
    gap = next(row for row in carried.log.rows(Table.EVENTS) if row["kind"] == "gap")
    assert json.loads(gap["detail"]) == {
        "lost_rows": 1,
        "why": "they could not be made from what was seen",
    }


def test_devices_are_sampled_with_the_rows(carried):
    carried.step(0)
    carried.flush()
    assert [row["device"] for row in carried.log.rows(Table.DEVICES)] == ["cpu"]
