"""A log that is held is read once, says the same, and is let go of when it grows."""

from __future__ import annotations

import pytest
from written_runs import more, write_run

from ampwatch import store
from ampwatch.rows import SCHEMAS, TABLES, Table
from ampwatch.store import live_log
from ampwatch.store.rank_log import RankLog


@pytest.fixture
def path(tmp_path):
    return write_run(tmp_path, "held", accepted=100)


def test_a_held_log_gives_the_same_rows_and_reads_no_file(path, monkeypatch):
    log, plain = RankLog(path / "rank-0", 0), RankLog(path / "rank-0", 0)
    log.hold()
    monkeypatch.setattr(live_log, "good_payloads", None)
    held = {table: log.read(table, SCHEMAS[table].names) for table in TABLES}
    part = log.read(Table.STEPS, ["loss", "step"], 20, 35)
    last_ns = log.last_time_ns
    monkeypatch.undo()
    for table in TABLES:
        assert held[table].equals(plain.read(table, SCHEMAS[table].names))
    assert part.equals(plain.read(Table.STEPS, ["loss", "step"], 20, 35))
    assert last_ns == plain.last_time_ns
    assert log.read(Table.STEPS, ["step"], 90, 500).num_rows == 10
    assert log.read(Table.STEPS, ["step"], 90, 80).num_rows == 0


def test_what_is_held_is_let_go_of_when_the_log_grows_or_is_compacted(path):
    log = RankLog(path / "rank-0", 0)
    log.hold()
    more(path, 50)
    assert log.refresh()
    assert log.read(Table.STEPS, ["step"]).num_rows == 150
    log.hold()
    store.compact(path)
    assert log.read(Table.STEPS, ["step"]).num_rows == 150
    more(path, 5, first=150)
    log.refresh()
    assert log.read(Table.STEPS, ["step"]).num_rows == 155


def test_a_damaged_log_is_held_as_far_as_it_is_good(path):
    more(path, 50)
    steps = path / "rank-0" / "steps.arrows"
    data = bytearray(steps.read_bytes())
    data[-50] ^= 0xFF
    steps.write_bytes(data)
    log = RankLog(path / "rank-0", 0)
    log.hold()
    assert log.read(Table.STEPS, ["step"]).num_rows == 100
    assert any("damaged" in note for note in log.notes)
