"""What the courier does when the log cannot keep up, or cannot be written at all."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import weakref
from pathlib import Path

import children
import pytest
from loop_harness import Trainer, events

from ampwatch import open_run
from ampwatch.codec import decode
from ampwatch.errors import AmpwatchWarning, RunError
from ampwatch.probe import courier as courier_module
from ampwatch.probe.courier import Courier, MemoryLog
from ampwatch.probe.hooks import FailureShield
from ampwatch.probe.models import survey
from ampwatch.probe.records import EventRecord, StepRecord
from ampwatch.probe.row_maker import RowMaker
from ampwatch.probe.tensor_values import Pack
from ampwatch.rows import EventKind, Table
from ampwatch.store import RankWriter, RunInfo, compact, create_run, read_info


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
    """A courier over a kept log, with the row maker that a watch would hold."""

    def __init__(self):
        self.log = KeptLog()
        self.row_maker = RowMaker(survey(None))
        devices = lambda time_ns: {"time_ns": [time_ns], "device": ["cpu"]}  # noqa: E731
        self.courier = Courier(
            weakref.ref(self.row_maker), self.log, lambda: None, devices, None, FailureShield()
        )

    def step(self, number):
        record = StepRecord(number, Pack())
        record.time_ns = number + 1
        self.courier.deliver(record)

    def flush(self):
        self.courier._flush()

    def close(self):
        last = EventRecord(0, 0, EventKind.ENDED, {})
        self.courier.close(last, self.row_maker, wait=True)


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


def test_a_record_whose_rows_cannot_be_made_costs_no_other(carried, monkeypatch):
    monkeypatch.setattr(carried.courier._shield, "_strict", False)
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
        "reason": "they could not be made from what was seen",
    }


def test_devices_are_sampled_with_the_rows(carried):
    carried.step(0)
    carried.flush()
    assert [row["device"] for row in carried.log.rows(Table.DEVICES)] == ["cpu"]


# --- a log that is taken away -----------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Looks at a log that has been tampered with, and at nothing before, until this is so."""
    monkeypatch.setattr(courier_module, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(courier_module, "LOOK_SECONDS", 3600.0)

    def look_until(condition):
        monkeypatch.setattr(courier_module, "LOOK_SECONDS", 0.05)
        wait_for(condition)

    return look_until


def wait_for(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.01)


def trained(folder, steps=5):
    """A training under way, of which that many steps are in the log."""
    trainer = Trainer(folder, endpoint="off", layer_every=2)
    for _ in range(steps):
        trainer.step()
    wait_for(lambda: open_run(trainer.watch.run_folder).steps.num_rows == steps)
    return trainer


DELETED = """
import shutil, sys, time
sys.path.insert(0, sys.argv[2])
from loop_harness import Trainer
from ampwatch import open_run
trainer = Trainer(sys.argv[1], endpoint="off", layer_every=2)
for number in range(40):
    trainer.step()
    time.sleep(0.01)
while open_run(trainer.watch.run_folder).steps.num_rows < 40:
    time.sleep(0.05)
shutil.rmtree(trainer.watch.run_folder)
while not trainer.watch.lost_rows:
    time.sleep(0.05)
for number in range(10):
    trainer.step()
trainer.watch.close()
print(trainer.watch.lost_rows, trainer.watch.loop.current.number)
"""


def test_a_training_whose_log_is_deleted_says_so_once_and_writes_a_new_one(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(DELETED)
    words = (script, tmp_path / "runs", Path(__file__).parent)
    done = children.run(*words, env={**os.environ, "AMPWATCH_STRICT": "1"})
    assert done.returncode == 0, done.stderr
    lost, steps = map(int, done.stdout.split())
    assert done.stderr.count("the run's log was deleted: a new one is begun in its place") == 1
    run = open_run(tmp_path / "runs" / "r")
    assert run.clean_end
    numbers = run.steps["step"].to_pylist()
    assert numbers == list(range(numbers[0], steps))
    assert numbers[0] >= 40
    assert lost >= numbers[0] + 1  # the steps before, and their start
    [gap] = events(run, "gap")
    assert gap == {"lost_rows": lost, "reason": "the log was deleted"}
    assert len(events(run, "started")) == 1
    assert {"0", "2"} <= set(run.layers["layer"].to_pylist())
    assert any("not in this copy" in note for note in run.notes)


def test_numbers_go_on_in_a_log_that_was_begun_anew_and_when_it_is_opened_again(tmp_path, quick):
    trainer = trained(tmp_path)
    log = trainer.watch._courier._log
    before = log.next_sequence
    shutil.rmtree(trainer.watch.run_folder)
    with pytest.warns(AmpwatchWarning, match="was deleted"):
        quick(lambda: trainer.watch.lost_rows)
    trainer.step()
    trainer.read()
    reopened = RankWriter(trainer.watch.run_folder, 0)
    [first, *_] = reopened.read_from(0, 1)
    reopened.close()
    assert first[0] >= before
    for _ in range(2):  # opened again, and once more when it is compacted
        again = RankWriter(trainer.watch.run_folder, 0, read_info(trainer.watch.run_folder))
        assert again.next_sequence > first[0]
        again.close()
        compact(trainer.watch.run_folder)


def test_a_log_that_is_moved_keeps_its_rows_and_a_new_one_begins(tmp_path, quick):
    trainer = trained(tmp_path)
    moved = trainer.watch.run_folder.rename(tmp_path / "elsewhere")
    with pytest.warns(AmpwatchWarning, match="was moved away") as said:
        quick(lambda: trainer.watch.run_folder.exists() and len(said))
    trainer.step()
    run = trainer.read()
    assert open_run(moved).steps["step"].to_pylist() == list(range(5))
    assert run.steps["step"].to_pylist() == [5]
    assert trainer.watch.lost_rows == 0
    assert events(run, "gap") == [{"lost_rows": 0, "reason": "the log was moved away"}]


def test_rows_of_a_kind_that_begins_after_the_log_was_moved_are_not_lost(tmp_path, quick):
    trainer = Trainer(tmp_path, endpoint="off", layer_every=2)
    wait_for(lambda: open_run(trainer.watch.run_folder).read(Table.EVENTS).num_rows)
    trainer.watch.run_folder.rename(tmp_path / "elsewhere")

    def train():
        trainer.step()
        wait_for(lambda: trainer.watch.run_folder.is_dir() and len(said))

    with pytest.warns(AmpwatchWarning, match="was moved away") as said:
        train()
    run = trainer.read()
    assert run.steps["step"].to_pylist() == [0]
    assert trainer.watch.lost_rows == 0
    assert events(run, "gap") == [{"lost_rows": 0, "reason": "the log was moved away"}]


def test_a_file_in_the_logs_place_costs_rows_until_it_is_gone(tmp_path, quick):
    trainer = trained(tmp_path)
    trainer.watch.run_folder.rename(tmp_path / "away")
    trainer.watch.run_folder.write_text("in the way")
    with pytest.warns(AmpwatchWarning, match="cannot be started again"):
        quick(lambda: trainer.watch.lost_rows >= 5)
    trainer.step()
    trainer.watch.run_folder.unlink()
    wait_for(trainer.watch.run_folder.is_dir)
    trainer.step()
    run = trainer.read()
    assert run.steps["step"].to_pylist()[-1] == 6
    [gap] = events(run, "gap")
    assert gap["lost_rows"] == trainer.watch.lost_rows >= 7


def test_another_run_in_the_logs_place_is_not_written_to(tmp_path, quick):
    trainer = trained(tmp_path)
    other = create_run(tmp_path / "others", RunInfo(id="0" * 32, name="r"))
    trainer.watch.run_folder.rename(tmp_path / "away")
    other = other.rename(trainer.watch.run_folder)
    with pytest.warns(AmpwatchWarning, match="is another run by now"):
        quick(lambda: trainer.watch.lost_rows)
    trainer.step()
    trainer.watch.close()
    assert [path.name for path in other.iterdir()] == ["run.json"]
    assert trainer.watch.lost_rows > 5
