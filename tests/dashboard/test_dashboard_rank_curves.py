"""Several ranks' numbers as one curves: joined by step, grown by what is new, live or not."""

from __future__ import annotations

import time

import numpy as np
from layer_chart_data import exponent_histogram
from open_runs import OpenRuns
from step_curves import StepCurvesReader
from written_runs import event_columns

from ampwatch import codec, store
from ampwatch.report.overview_chart import SCALE, TIME, rank_column
from ampwatch.rows import EXPONENT_BINS, Table

NOW = time.time_ns()
SECOND = 10**9


def two_ranks(folder):
    return store.create_run(folder, store.RunInfo(id="ab" * 16, name="two", world_size=2))


def append(path, rank, steps, *, began_ns=NOW, loss=1.0, scale=4.0, skipped=()):
    """Steps of one rank, a hundredth of a second each."""
    writer = store.RankWriter(path, rank)
    writer.append(codec.encode(Table.STEPS, {
        "step": list(steps), "time_ns": [began_ns + n * SECOND // 100 for n in range(len(steps))],
        "loss": [loss + step + 0.5 * rank for step in steps], "scale": [scale] * len(steps),
        "lr": [0.1] * len(steps), "skipped": [step in skipped for step in steps],
    }))  # fmt: skip
    writer.close()


def start(path, rank, step):
    """An attempt begins."""
    writer = store.RankWriter(path, rank)
    writer.append(codec.encode(Table.EVENTS, event_columns([(step, "started", {})], NOW)))
    writer.close()


def same(one, other):
    return one.columns.keys() == other.columns.keys() and all(
        np.array_equal(values, other.columns[name], equal_nan=True)
        for name, values in one.columns.items()
    )


def test_what_differs_is_there_by_rank_and_what_does_not_is_there_once(tmp_path):
    path = two_ranks(tmp_path)
    append(path, 0, range(50), skipped={3})
    append(path, 1, range(50), skipped={3, 9})
    curves = StepCurvesReader((0, 1)).read(store.open_run(path))
    assert curves.present == {"loss", "lr", SCALE, TIME, rank_column("loss", 1)}
    assert np.array_equal(
        curves.columns[rank_column("loss", 1)] - curves.columns["loss"], [0.5] * 50
    )
    assert curves.skips.tolist() == [3, 9]


def test_ranks_that_arrive_in_turn_are_joined_as_if_read_at_once(tmp_path):
    path = two_ranks(tmp_path)
    append(path, 0, range(20))
    run, growing = store.open_run(path), StepCurvesReader((0, 1))
    for rank, steps in ((0, (20, 60)), (1, (0, 35)), (1, (35, 80)), (0, (60, 80))):
        append(path, rank, range(*steps), began_ns=NOW + steps[0] * SECOND // 100)
        run.refresh()
        growing.read(run)
    whole = StepCurvesReader((0, 1)).read(store.open_run(path))
    assert len(growing.curves) == 80
    assert same(growing.curves, whole)
    assert np.array_equal(whole.columns[rank_column("loss", 1)], np.arange(80) + 1.5)


def test_a_rank_that_lags_is_waited_for_and_one_that_died_is_not(tmp_path):
    path = two_ranks(tmp_path)
    append(path, 0, range(50))
    append(path, 1, range(40))  # it lives, or died: nobody can tell yet
    numbers = StepCurvesReader((0, 1), now_ns=lambda: NOW + SECOND)
    assert len(numbers.read(store.open_run(path))) == 40
    assert numbers.waits
    append(path, 0, range(50, 60), began_ns=NOW + 30 * SECOND)
    assert len(StepCurvesReader((0, 1)).read(store.open_run(path))) == 60
    curves = StepCurvesReader((0, 1), now_ns=lambda: NOW + 31 * SECOND).read(store.open_run(path))
    assert len(curves) == 60
    assert np.isnan(curves.columns[rank_column("loss", 1)][40:]).all()


def test_a_rank_that_comes_back_after_all_fills_what_was_left_open(tmp_path):
    path = two_ranks(tmp_path)
    append(path, 0, range(50), began_ns=NOW + 30 * SECOND)
    append(path, 1, range(10))
    run, numbers = store.open_run(path), StepCurvesReader((0, 1))
    before = numbers.read(run)
    append(path, 1, range(10, 50), began_ns=NOW + 31 * SECOND)
    run.refresh()
    after = numbers.read(run)
    assert (len(before), len(after)) == (50, 50)
    assert after.epoch > before.epoch
    assert not np.isnan(after.columns[rank_column("loss", 1)]).any()


def test_steps_that_a_restart_has_taken_back_meet_their_own(tmp_path):
    path = two_ranks(tmp_path)
    for rank in (0, 1):
        start(path, rank, 0)
        append(path, rank, range(30))
        start(path, rank, 20)
        append(path, rank, range(20, 40), loss=100.0)
    curves = StepCurvesReader((0, 1)).read(store.open_run(path))
    assert curves.starts == (30,)
    assert np.array_equal(
        curves.columns[rank_column("loss", 1)] - curves.columns["loss"], [0.5] * 50
    )


def test_a_rank_that_joins_late_is_looked_at_too(tmp_path):
    path, now = two_ranks(tmp_path), iter(range(0, 1000, 10))
    append(path, 0, range(30))
    opened = OpenRuns(clock=lambda: next(now))
    alone = opened.snapshot_of(str(path))
    append(path, 1, range(30))
    both = opened.snapshot_of(str(path))
    assert (alone.shown, both.shown) == ((0,), (0, 1))
    assert both.curves.epoch > alone.curves.epoch
    assert rank_column("loss", 1) in both.curves.present


def test_a_rank_that_the_run_has_not_shows_all_of_them(tmp_path):
    path = two_ranks(tmp_path)
    for rank in (0, 1):
        append(path, rank, range(30))
    opened = OpenRuns()
    assert opened.snapshot_of(str(path), 1).shown == (1,)
    assert opened.snapshot_of(str(path), 7).shown == (0, 1)
    assert opened.snapshot_of(str(path), 7).rank is None


def test_of_many_ranks_the_lowest_and_those_that_a_finding_names_are_drawn(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="many", world_size=12))
    for rank in range(12):
        append(path, rank, range(30), scale=2.0 if rank == 11 else 4.0)
    now = iter(range(0, 1000, 10))
    opened = OpenRuns(clock=lambda: next(now))
    opened.snapshot_of(str(path))
    look = opened.snapshot_of(str(path))
    assert [finding.ranks for finding in look.diagnosis.findings if finding.code == "AMP601"] == [
        (11,)
    ]
    assert look.shown == (0, 1, 2, 3, 4, 5, 6, 11)


def test_a_histogram_of_all_ranks_is_their_sum_within_the_window_that_suits_all(tmp_path):
    path, bins = two_ranks(tmp_path), EXPONENT_BINS
    for rank, (low, high) in enumerate([(4.0, 64.0), (2.0, 8.0)]):
        writer = store.RankWriter(path, rank)
        info = {"step": [0], "layer": [0], "name": ["head"], "order": [0]}
        writer.append(codec.encode(Table.LAYER_INFO, info))
        counts = [[7] * bins, [rank + 1] * bins]
        rows = {"step": [0, 5], "layer": [0, 0], "exponents": counts, "scale_low": [low] * 2}
        writer.append(codec.encode(Table.LAYERS, rows | {"scale_high": [high] * 2}))
        writer.close()
    found = exponent_histogram(store.open_run(path), "head", None)
    assert (found.step, found.scale_low, found.scale_high) == (5, 4.0, 8.0)
    assert found.counts.tolist() == [3] * bins
