"""What the page keeps of a long run: bounded, and nothing that the eye would see is lost."""

from __future__ import annotations

import copy
import threading
import tracemalloc

import bounded_history
import numpy as np
import pytest
import step_curves
from bounded_history import BoundedHistory, Extremes, RowPlaces, SkipTicks
from open_runs import OpenRuns
from run_chart import thinned_base
from step_curves import NumberAge, StepCurvesReader
from written_runs import event_columns, fresh_id

from ampwatch import codec, store
from ampwatch.follow import follow
from ampwatch.follow import follower as follower_module
from ampwatch.report import thinning
from ampwatch.report.overview_chart import SCALE, TIME, rank_column
from ampwatch.rows import Table

CHANCE = np.random.default_rng(0)


def parts(*arrays, sizes=(1, 7, 1000, 13, 4096)):
    """The same rows as they come: in pieces of several sizes."""
    at, turn = 0, 0
    while at < len(arrays[0]):
        size = sizes[turn % len(sizes)]
        yield tuple(array[at : at + size] for array in arrays)
        at, turn = at + size, turn + 1


def kept(step, values, most=2000):
    extremes = Extremes(most)
    for part in parts(step, values):
        extremes.add(*part)
    return extremes


def noisy(count=50_000):
    values = CHANCE.standard_normal(count).astype(np.float32)
    values[CHANCE.choice(count, 200, replace=False)] = np.nan
    return np.arange(count), values


def test_extremes_of_every_stretch_are_those_of_the_whole_column_at_their_steps():
    step, values = noisy()
    extremes = kept(step, values)
    points = extremes.points
    assert len(points.step) <= 2000
    assert np.array_equal(points.values, values[points.step])  # each is a point of the column
    for first in range(0, len(step), points.width):
        stretch = values[first : first + points.width]
        mine = points.values[(points.step >= first) & (points.step < first + points.width)]
        assert (mine.min(), mine.max()) == (np.nanmin(stretch), np.nanmax(stretch))


def test_few_points_are_all_kept():
    step, values = noisy(1500)
    points = kept(step, values).points
    known = np.isfinite(values)
    assert np.array_equal(points.step, step[known])
    assert np.array_equal(points.values, values[known])


def test_a_one_step_spike_and_both_edges_of_a_gap_stay_where_they_are():
    step = np.concatenate([np.arange(20_000), np.arange(30_000, 60_000)])
    values = np.ones(len(step), np.float32)
    values[[12_345, 41_234]] = [50.0, -50.0]
    values[5000:8000] = np.nan
    points = kept(step, values).points
    assert {20_000 - 1, 30_000, 4999, 8000, 12_345, step[41_234]} <= set(points.step.tolist())
    line = thinning.broken_line(points.step, points.values)
    whole = thinning.broken_line(step, values)
    breaks = [one.x[np.flatnonzero(np.isnan(one.y))].tolist() for one in (line, whole)]
    assert breaks[0] == breaks[1] == [4999, 19_999]
    assert (line.y[~np.isnan(line.y)].max(), whole.y[~np.isnan(whole.y)].max()) == (50.0, 50.0)


def test_steps_that_a_restart_took_back_are_a_stretch_of_their_own():
    step = np.concatenate([np.arange(20_000), np.arange(15_000, 30_000)])
    values = np.repeat(np.float32([1, 2]), [20_000, 15_000])
    points = kept(step, values).points
    back = np.flatnonzero(np.diff(points.step) < 0)
    assert points.step[[back[0], back[0] + 1]].tolist() == [19_999, 15_000]
    assert len(back) == 1


def test_points_that_were_shown_do_not_change_when_rows_are_added():
    step, values = noisy()
    extremes = Extremes(2000)
    extremes.add(step[:3000], values[:3000])
    shown = extremes.points
    before = shown.step.copy(), shown.values.copy()
    fork = copy.deepcopy(extremes)
    extremes.add(step[3000:], values[3000:])
    assert np.array_equal(shown.step, before[0])
    assert np.array_equal(shown.values, before[1])
    assert np.array_equal(fork.points.step, before[0])


def test_no_skipped_step_is_lost_and_each_is_counted_once():
    steps = np.flatnonzero(CHANCE.random(200_000) < 0.2)
    ticks = SkipTicks(1000)
    for (part,) in parts(steps):
        ticks.add(part)
    found = ticks.ticks
    assert len(found.first) <= 1000
    assert ticks.count == found.count.sum() == len(steps)
    inside = np.searchsorted(found.first, steps, side="right") - 1
    assert np.all(steps <= found.last[inside])
    assert np.isin(found.first, steps).all()
    assert np.isin(found.last, steps).all()
    rug = thinning.merged_ticks(found, 0, 199_999)
    assert rug.count.sum() == len(steps)
    assert (rug.first[0], rug.last[-1]) == (steps[0], steps[-1])


def test_the_rows_of_a_span_are_found_in_every_pass_over_its_steps():
    step = np.concatenate([np.arange(50_000), np.arange(30_000, 90_000)])
    places = RowPlaces()
    for (part,) in parts(step, sizes=(1, 5000, 77)):
        places.add(part)
    wanted = set(np.flatnonzero((step >= 31_000) & (step <= 31_500)).tolist())
    ranges = places.ranges_of(31_000, 31_500)
    found = {row for start, stop in ranges for row in range(start, stop)}
    assert wanted <= found
    assert len(found) < 40_000
    assert places.ranges_of(95_000, 99_000) == []


# --- a run that is longer than what is held of it -------------------------------------------------


@pytest.fixture
def little(monkeypatch):
    """Few rows and points are held, so that a run of 30,000 steps is a long one."""
    monkeypatch.setattr(bounded_history, "HELD_ROWS", 2048)
    monkeypatch.setattr(step_curves, "_MOST_WAITING_ROWS", 1024)
    monkeypatch.setattr(step_curves, "_PORTION_ROWS", 1500)
    monkeypatch.setattr(Extremes.__init__, "__defaults__", (4000,))
    monkeypatch.setattr(SkipTicks.__init__, "__defaults__", (500,))


def rows_of(first, count, rank=0):
    step = np.arange(first, first + count)
    chance = np.random.default_rng(first)
    norm = 1 + 0.1 * chance.random(count)
    norm[step % 4001 == 17] = 40.0
    skipped = step % 97 == 96
    return {
        "step": step, "time_ns": 10**18 + step * 1000, "scale": 2.0 ** (16 - step // 9000),
        "skipped": skipped, "loss": 2 / (1 + step / 1e4) + rank, "lr": np.full(count, 0.1),
        "grad_norm": np.where(skipped, np.inf, norm), "step_time_ms": 5 + chance.random(count),
    }  # fmt: skip


def begin(folder, ranks=1):
    path = store.create_run(folder, store.RunInfo(id=fresh_id("x"), name="x", world_size=ranks))
    return path, [store.RankWriter(path, rank) for rank in range(ranks)]


def write(writer, first, count, rank=0):
    writer.append(codec.encode(Table.STEPS, rows_of(first, count, rank)))


def grown(folder, total=30_000, batch=700):
    """A live run and the numbers that followed it."""
    path, (writer,) = begin(folder)
    run, numbers = store.open_run(path), StepCurvesReader()
    for first in range(0, total, batch):
        write(writer, first, min(batch, total - first))
        run.refresh()
        numbers.read(run)
    writer.close()
    return run, numbers


def bytes_held(numbers):
    history = numbers._history
    growing = [history.step, history.skips, *history.columns.values()]
    growing += [g for e in history._points.values() for g in (e._step, e._values)]
    growing += history._ticks._ticks
    return sum(one._room.nbytes for one in growing)


def test_a_live_run_holds_no_more_at_its_end_than_halfway(tmp_path, little):
    path, (writer,) = begin(tmp_path)
    run, numbers, held = store.open_run(path), StepCurvesReader(), []
    for first in range(0, 60_000, 1000):
        write(writer, first, 1000)
        run.refresh()
        numbers.read(run)
        held.append(bytes_held(numbers))
        assert len(numbers.curves.step) <= 2 * 2048
    writer.close()
    assert len(numbers.curves) == 60_000
    assert max(held[40:]) <= 1.05 * max(held[20:40]) < 800_000


def test_what_is_said_of_a_long_live_run_is_what_its_rows_say(tmp_path, little):
    _, numbers = grown(tmp_path)
    curves, rows = numbers.curves, rows_of(0, 30_000)
    assert curves.past is not None
    assert (len(curves), curves.ends) == (30_000, (0, 29_999))
    assert curves.skip_count == rows["skipped"].sum()
    assert curves.latest("loss") == (np.float32(rows["loss"][-1]), 0)
    last = np.flatnonzero(np.isfinite(rows["grad_norm"]))[-1]
    age = curves.age("grad_norm")
    assert age == (
        NumberAge(None, is_broken=False) if last == 29_999 else NumberAge(last, is_broken=True)
    )
    assert curves.present == {"loss", "grad_norm", "lr", "step_time_ms", SCALE, TIME}
    rug = curves.rug(0, 29_999)
    assert rug.count.sum() == curves.skip_count


def test_a_live_run_is_drawn_as_the_finished_run_opened_anew(tmp_path, little):
    run, numbers = grown(tmp_path)
    anew = StepCurvesReader().read(store.open_run(run.path))
    live, opened = (thinned_base("x", one, None) for one in (numbers.curves, anew))
    assert live.arrays.keys() == opened.arrays.keys()
    for name, values in live.arrays.items():
        assert np.array_equal(values, opened.arrays[name], equal_nan=True)


def test_the_line_of_a_long_run_goes_through_every_spike(tmp_path, little):
    _, numbers = grown(tmp_path)
    arrays = thinned_base("x", numbers.curves, None).arrays
    x, y = arrays["base.grad_norm.x"], arrays["base.grad_norm.y"]
    assert x[y == 40].tolist() == list(range(17, 30_000, 4001))
    assert len(x) <= thinning.MAX_POINTS + 20


@pytest.mark.parametrize("span", [(4000, 4300), (10_000, 14_000), (29_000, 29_500)])
def test_a_zoomed_span_is_drawn_from_the_rows_of_the_log(tmp_path, little, span):
    run, numbers = grown(tmp_path)
    curves = step_curves.replace(numbers.curves, zoom=lambda s: numbers.zoomed(run, s))
    base = thinned_base("x", curves, span)
    rows = rows_of(0, 0)
    rows = {name: [] for name in rows}
    for first in range(0, 30_000, 700):
        for name, values in rows_of(first, min(700, 30_000 - first)).items():
            rows[name] = np.append(rows[name], values)
    inside = (rows["step"] >= span[0] - 1) & (rows["step"] <= span[1] + 1)
    known = inside & np.isfinite(rows["grad_norm"])
    if known.sum() < thinning.MAX_POINTS:
        y = base.arrays["base.grad_norm.y"]
        assert np.array_equal(base.arrays["base.grad_norm.x"][~np.isnan(y)], rows["step"][known])
        assert np.array_equal(y[~np.isnan(y)], np.float32(rows["grad_norm"][known]))
    skips = rows["step"][(rows["skipped"] == 1) & inside]
    skips = skips[(skips >= span[0]) & (skips <= span[1])]
    assert base.arrays["base.skips.count"].sum() == len(skips)
    assert base.arrays["base.skips.first"][0] == skips[0]


def test_a_run_resumed_further_back_is_bounded_too_and_zooms_into_both_passes(tmp_path, little):
    path, (writer,) = begin(tmp_path)
    writer.append(codec.encode(Table.EVENTS, event_columns([(0, "started", {})], 0)))
    run, numbers = store.open_run(path), StepCurvesReader()
    for first in range(0, 12_000, 1000):
        write(writer, first, 1000)
        run.refresh()
        numbers.read(run)
    writer.append(codec.encode(Table.EVENTS, event_columns([(9000, "started", {})], 0)))
    for first in range(9000, 24_000, 1000):
        write(writer, first, 1000)
        run.refresh()
        numbers.read(run)
    writer.close()
    curves = numbers.curves
    assert curves.starts == (12_000,)
    assert (len(curves), curves.ends) == (27_000, (0, 23_999))
    assert len(curves.step) <= 2 * 2048
    near = numbers.zoomed(run, (9400, 9500))
    step, _ = near.points("loss", (9400, 9500))
    assert (step == 9450).sum() == 2


def test_a_span_of_a_log_that_is_not_in_order_is_found_all_the_same(tmp_path, little):
    path, (writer,) = begin(tmp_path)
    for first in (0, 2000, 1000, *range(3000, 20_000, 1000)):
        write(writer, first, 1000)
    writer.close()
    run, numbers = store.open_run(path), StepCurvesReader()
    curves = numbers.read(run)
    assert (len(curves), curves.starts) == (20_000, ())
    step, _ = numbers.zoomed(run, (1900, 2100)).points("lr", (1900, 2100))
    assert step.tolist() == list(range(1899, 2102))


def test_ranks_of_a_long_run_are_joined_as_if_all_were_held(tmp_path, little):
    path, writers = begin(tmp_path, ranks=2)
    run, numbers = store.open_run(path), StepCurvesReader((0, 1), now_ns=lambda: 10**18)
    for first in range(0, 20_000, 1000):
        for rank, writer in enumerate(writers):
            write(writer, first, 1000, rank)
        run.refresh()
        numbers.read(run)
    for writer in writers:
        writer.close()
    curves, other = numbers.curves, rank_column("loss", 1)
    assert (len(curves), curves.ends) == (20_000, (0, 19_999))
    assert curves.present == {"loss", other, "lr", "grad_norm", "step_time_ms", SCALE, TIME}
    assert len(curves.step) <= 2 * 2048
    mine, theirs = curves.points("loss"), curves.points(other)
    at = np.searchsorted(theirs[0], mine[0])
    there = theirs[0][np.minimum(at, len(theirs[0]) - 1)] == mine[0]
    assert there.sum() > 1000
    assert np.allclose(theirs[1][at[there]] - mine[1][there], 1, atol=1e-4)
    near = numbers.zoomed(run, (5000, 5200))
    step, values = near.points(other, (5000, 5200))
    assert step.tolist() == list(range(4999, 5202))
    assert np.allclose(values, rows_of(4999, 203, 1)["loss"])
    assert curves.skip_count == sum(s % 97 == 96 for s in range(20_000))


def test_a_span_where_ranks_are_the_same_is_drawn_though_they_differ_later(tmp_path, little):
    path, writers = begin(tmp_path, ranks=2)
    for first in range(0, 20_000, 1000):
        for rank, writer in enumerate(writers):
            write(writer, first, 1000, rank if first >= 15_000 else 0)
    for writer in writers:
        writer.close()
    run, numbers = store.open_run(path), StepCurvesReader((0, 1))
    curves, other = numbers.read(run), rank_column("loss", 1)
    assert other in curves.present
    near = numbers.zoomed(run, (5000, 5200))
    step, values = near.points(other, (5000, 5200))
    assert step.tolist() == list(range(4999, 5202))
    assert np.array_equal(values, near.points("loss", (5000, 5200))[1])


def test_the_page_follows_a_run_with_one_run_and_one_engine(tmp_path, monkeypatch):
    opened = []
    real = store.open_run
    monkeypatch.setattr("ampwatch.follow.follower.open_run", lambda p: opened.append(p) or real(p))
    path, writers = begin(tmp_path, ranks=2)
    for rank, writer in enumerate(writers):
        write(writer, 0, 500, rank)
    now, runs = iter(range(0, 1000, 10)), OpenRuns(clock=lambda: next(now))
    both, one = runs.snapshot_of(str(path)), runs.snapshot_of(str(path), 1)
    assert (both.shown, one.shown) == ((0, 1), (1,))
    assert both.diagnosis == one.diagnosis
    assert len(opened) == 1
    assert follow(path).last.judged is both.verdict.judged
    for writer in writers:
        writer.close()


def test_rows_are_read_while_a_diagnosis_is_made(tmp_path, monkeypatch):
    path, (writer,) = begin(tmp_path)
    write(writer, 0, 500)
    follower, is_judging, may_end = follow(path), threading.Event(), threading.Event()

    def conclude(case):
        is_judging.set()
        assert may_end.wait(30)
        return real(case)

    real = follower_module.conclude
    monkeypatch.setattr(follower_module, "conclude", conclude)
    judge = threading.Thread(target=follower.update)
    judge.start()
    assert is_judging.wait(30)
    with follower.reading() as run:
        assert run.read(Table.STEPS, ("step",)).num_rows == 500
    assert follower.refresh()[1] == 500
    may_end.set()
    judge.join(30)
    writer.close()
    assert follower.last is not None


def test_a_history_takes_no_more_memory_than_its_last_rows_and_few_points_of_all():
    rows, names = 400_000, ("loss", "norm", "rate")
    tracemalloc.start()
    try:
        history = BoundedHistory(names)
        for first in range(0, rows, 1000):
            values = np.ones(1000, np.float32)
            steps = np.arange(first, first + 1000)
            history.add(steps, dict.fromkeys(names, values), np.zeros(0, np.int64))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    last_rows = 2 * bounded_history.HELD_ROWS * (8 + 4 * len(names))
    points = bounded_history.MOST_POINTS * 12 * len(names)
    assert used < 1.5 * (last_rows + points) + 100_000
