"""A run read on in portions: the same rows in the same order, and few of them held."""

from __future__ import annotations

import numpy as np
import pytest
from written_runs import event_columns, fresh_id

from ampwatch import codec, store
from ampwatch.rows import Table
from ampwatch.store import Reading

COLUMNS = {
    Table.STEPS: ("step", "rank", "loss"),
    Table.LAYERS: ("step", "rank", "layer", "act_amax"),
    Table.EVENTS: ("step", "rank", "kind"),
}


def write(writer, steps, layer_every=10):
    """Steps, two layers' samples and an event, as a courier files them."""
    steps = np.asarray(steps)
    sampled = np.repeat(steps[steps % layer_every == 0], 2)
    writer.append(codec.encode(Table.STEPS, {
        "step": steps, "time_ns": steps * 1000, "loss": np.sin(steps),
    }))  # fmt: skip
    if len(sampled):
        layers = np.tile([0, 1], len(sampled) // 2)
        rows = {"step": sampled, "layer": layers, "act_amax": sampled + 0.5 * layers}
        writer.append(codec.encode(Table.LAYERS, rows))
    events = event_columns([(int(steps[0]), "lr-changed", {})], 0)
    writer.append(codec.encode(Table.EVENTS, events))


def made(folder, ranks=1):
    path = store.create_run(folder, store.RunInfo(id=fresh_id("x"), name="x", world_size=ranks))
    writers = [store.RankWriter(path, rank) for rank in range(ranks)]
    for writer in writers:
        info = {"step": [0, 0], "layer": [0, 1], "name": ["body", "head"], "order": [0, 1]}
        writer.append(codec.encode(Table.LAYER_INFO, info))
        writer.append(codec.encode(Table.EVENTS, event_columns([(0, "started", {})], 0)))
    return path, writers


class Taker:
    """Takes rows as they are shown, all but the last few, and notes how many it was given."""

    def __init__(self, reading, keep=50):
        self.reading, self.keep = reading, keep
        self.taken = dict.fromkeys(COLUMNS, 0)
        self.rows = {table: [] for table in COLUMNS}
        self.most_held = 0

    def take(self):
        for _ in self.reading.portions():
            held = 0
            for table, columns in COLUMNS.items():
                rows = self.reading.read(table, columns, start=self.taken[table])
                count = max(0, rows.num_rows - self.keep)
                held += rows.num_rows
                self.rows[table] += rows.slice(0, count).to_pylist()
                self.taken[table] += count
            self.most_held = max(self.most_held, held)

    def all_rows(self, table):
        rest = self.reading.read(table, COLUMNS[table], start=self.taken[table])
        return self.rows[table] + rest.to_pylist()


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("compacted", [False, True])
def test_portions_hold_each_row_once_in_canonical_order(tmp_path, ranks, compacted):
    path, writers = made(tmp_path, ranks)
    for first in range(0, 12_000, 300):
        for writer in writers:
            write(writer, range(first, first + 300))
    for writer in writers:
        writer.close()
    if compacted:
        store.compact(path)
    taker = Taker(Reading(store.open_run(path), portion_rows=2000))
    taker.take()
    assert not taker.reading.is_overtaken
    run = store.open_run(path)
    for table, columns in COLUMNS.items():
        assert taker.all_rows(table) == run.read(table, columns).to_pylist()
    assert taker.most_held < 3500 * ranks  # of 14,480 rows a rank


def test_a_run_that_grows_is_read_on_and_few_of_its_rows_are_held(tmp_path):
    path, (writer,) = made(tmp_path)
    run = store.open_run(path)
    taker = Taker(Reading(run))
    for first in range(0, 40_000, 400):
        write(writer, range(first, first + 400))
        run.refresh()
        taker.take()
    writer.close()
    assert taker.most_held < 1000
    held = sum(piece.rows.nbytes for v in taker.reading._views.values() for piece in v._pieces)
    assert held < 100_000
    for table, columns in COLUMNS.items():
        assert taker.all_rows(table) == store.open_run(path).read(table, columns).to_pylist()


def test_rows_of_a_resumed_attempt_follow_those_before(tmp_path):
    path, (writer,) = made(tmp_path)
    run = store.open_run(path)
    taker = Taker(Reading(run))
    write(writer, range(400))
    run.refresh()
    taker.take()
    writer.append(codec.encode(Table.EVENTS, event_columns([(200, "started", {})], 0)))
    write(writer, range(200, 500))
    writer.close()
    run.refresh()
    taker.take()
    assert not taker.reading.is_overtaken
    for table, columns in COLUMNS.items():
        assert taker.all_rows(table) == store.open_run(path).read(table, columns).to_pylist()


def test_a_row_among_those_that_were_taken_is_noticed(tmp_path):
    path, (writer,) = made(tmp_path)
    run = store.open_run(path)
    taker = Taker(Reading(run))
    write(writer, range(400))
    run.refresh()
    taker.take()
    write(writer, range(380, 390))  # not taken yet: it finds its place
    run.refresh()
    taker.take()
    assert not taker.reading.is_overtaken
    write(writer, range(100, 110))
    writer.close()
    run.refresh()
    taker.take()
    assert taker.reading.is_overtaken
    anew = Taker(Reading(run, portion_rows=None))
    anew.take()
    for table, columns in COLUMNS.items():
        assert anew.all_rows(table) == store.open_run(path).read(table, columns).to_pylist()


def test_damage_found_on_the_way_ends_a_reading(tmp_path):
    path, (writer,) = made(tmp_path)
    for first in range(0, 3000, 300):
        write(writer, range(first, first + 300))
    writer.close()
    file = next(path.rglob("steps.arrows"))
    data = bytearray(file.read_bytes())
    data[-500] ^= 0xFF
    file.write_bytes(data)
    taker = Taker(Reading(store.open_run(path), portion_rows=1000))
    taker.take()
    assert taker.reading.is_overtaken


def test_a_rank_that_ended_early_makes_no_portion_smaller(tmp_path):
    path, (long, short) = made(tmp_path, ranks=2)
    write(short, range(20))
    for first in range(0, 9000, 300):
        write(long, range(first, first + 300))
    long.close()
    short.close()
    run = store.open_run(path)
    assert sum(1 for _ in Reading(run, portion_rows=3000).portions()) < 6
    whole = Reading(run, portion_rows=None)
    next(whole.portions())
    for table, columns in COLUMNS.items():
        assert whole.read(table, columns).num_rows == run.read(table, columns).num_rows
