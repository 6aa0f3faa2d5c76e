"""A log on disk is judged portion by portion: the same verdict as from all rows, few rows held."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from written_runs import SCALER, event_columns, fresh_id

from ampwatch import codec, store
from ampwatch.diagnosis import Engine, engine
from ampwatch.rows import Table

STEPS, BATCH, LAYERS = 12_000, 200, 4


@dataclass
class InMemory:
    """The same run, for an engine that knows nothing of portions."""

    run: Any

    def __getattr__(self, name):
        return getattr(self.run, name)


@pytest.fixture
def in_portions(monkeypatch):
    monkeypatch.setattr(engine, "Reading", partial(store.Reading, portion_rows=1500))


def start(folder, ranks):
    info = store.RunInfo(id=fresh_id("x"), name="x", world_size=ranks, scaler=SCALER)
    path = store.create_run(folder, info)
    return path, [store.RankWriter(path, rank) for rank in range(ranks)]


def write(writer, first, *, diverges_at=10_000):
    """A batch of a training whose gradients overflow at times, and for good from a step on."""
    step = np.arange(first, first + BATCH)
    skipped = (step % 700 == 699) | (step >= diverges_at)
    halvings = np.maximum(0, step - diverges_at)
    scale = 65536.0 * 2.0 ** -np.minimum(60.0, halvings)
    writer.append(codec.encode(Table.STEPS, {
        "step": step, "time_ns": step * 1_000_000, "scale": scale, "skipped": skipped,
        "scale_after": np.where(skipped, scale / 2, scale), "found_inf": skipped,
        "loss": np.where(skipped, np.nan, 2 + 0.1 * np.sin(step)), "lr": np.full(BATCH, 0.1),
        "grad_norm": np.where(skipped, np.inf, 1 + 0.1 * np.cos(step)),
    }))  # fmt: skip
    sampled = np.repeat(step[step % 50 == 0], LAYERS)
    rows = {"step": sampled, "layer": np.tile(np.arange(LAYERS), len(sampled) // LAYERS)}
    rows |= {"underflow_share": np.full(len(sampled), 0.4), "act_amax": np.full(len(sampled), 9.0)}
    writer.append(codec.encode(Table.LAYERS, rows))
    overflows = [(int(s), "overflow", {"direction": "backward", "layer": "l1"})
                 for s in step[skipped][:20]]  # fmt: skip
    if overflows:
        writer.append(codec.encode(Table.EVENTS, event_columns(overflows, 0)))


def name_layers(writer):
    info = {"step": [0] * LAYERS, "layer": list(range(LAYERS)), "order": list(range(LAYERS)),
            "name": [f"l{n}" for n in range(LAYERS)]}  # fmt: skip
    writer.append(codec.encode(Table.LAYER_INFO, info))
    writer.append(codec.encode(Table.EVENTS, event_columns([(0, "started", {})], 0)))


def rows_held(judge):
    return sum(len(piece.keys) for view in judge._rows._views.values() for piece in view._pieces)


def same(one, other):
    return (one.verdict, one.findings, one.learning_rate, one.run) == (
        other.verdict, other.findings, other.learning_rate, other.run,
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_log_read_in_portions_says_what_all_its_rows_say(tmp_path, ranks, in_portions):
    path, writers = start(tmp_path, ranks)
    for writer in writers:
        name_layers(writer)
        for first in range(0, STEPS, BATCH):
            write(writer, first)
        writer.close()
    run = store.open_run(path)
    judge = Engine(block_rows=256, settled_rows=64)
    said = judge.feed(run).diagnosis()
    assert said.headline is not None
    assert same(said, Engine(block_rows=256, settled_rows=64).feed(InMemory(run)).diagnosis())
    assert rows_held(judge) < 0.25 * ranks * STEPS


def test_a_run_that_grows_holds_no_more_rows_at_its_end_than_before(tmp_path):
    path, (writer,) = start(tmp_path, 1)
    name_layers(writer)
    run, judge = store.open_run(path), Engine(block_rows=256, settled_rows=64)
    held = []
    for first in range(0, STEPS, BATCH):
        write(writer, first)
        run.refresh()
        judge.feed(run)
        held.append(rows_held(judge))
    writer.close()
    assert max(held) < 1200  # of 13,000
    assert same(
        judge.diagnosis(), Engine(block_rows=256, settled_rows=64).feed(InMemory(run)).diagnosis()
    )


def test_tables_that_do_not_keep_step_are_read_at_once(tmp_path, in_portions):
    path, (writer,) = start(tmp_path, 1)
    for first in range(0, STEPS, BATCH):
        write(writer, first)
    name_layers(writer)  # the started event stands last, and belongs first
    writer.close()
    run = store.open_run(path)
    judge = Engine(block_rows=256, settled_rows=64)
    assert same(judge.feed(run).diagnosis(), Engine().feed(InMemory(run)).diagnosis())
