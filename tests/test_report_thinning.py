"""Thinned lines keep their extremes, ticks lose no event, values that are not finite are marked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.report import thinning
from ampwatch.report.thinning import (
    INF,
    MAX_POINTS,
    MINUS_INF,
    NAN,
    RUG_CELLS,
    NotFinite,
    broken_line,
    close_parts,
    held_line,
    merged,
    not_finite,
    stepped_line,
)


def singles(values):
    return np.asarray(values, np.float32)


def columns_of(steps, first, last, pixels):
    return {int((step - first) / (last - first) * pixels) for step in steps}


@pytest.mark.parametrize("pixels", [300, 977, 1800])
def test_no_column_of_pixels_that_holds_a_skip_is_empty_and_every_skip_is_counted(pixels):
    skips = np.unique(np.random.default_rng(0).integers(0, 1_000_000, 30_000))
    rug = merged(skips, 0, 999_999)
    assert rug.count.sum() == len(skips)
    drawn = columns_of(np.concatenate((rug.first, rug.last)), 0, 999_999, pixels)
    assert drawn == columns_of(skips, 0, 999_999, pixels)
    assert len(rug.first) <= RUG_CELLS


@pytest.mark.parametrize("count", [0, 1, 100, 200_000])
def test_a_line_has_a_bounded_number_of_points_and_keeps_its_extremes(count):
    values = singles(np.sin(np.arange(count) / 7.0))
    if count > 1000:
        values[count // 2] = 100.0
    line = broken_line(np.arange(count), values)
    assert len(line.y) == len(line.x) <= MAX_POINTS
    assert not count or line.y.max() == values.max()


def test_no_one_step_spike_is_missing_from_its_place_on_the_screen():
    values = np.zeros(1_000_000, np.float32)
    spikes = np.random.default_rng(1).choice(1_000_000, 500, replace=False)
    values[spikes] = 1.0
    line = broken_line(np.arange(1_000_000), values)
    drawn = np.sort(line.x[line.y == 1.0])
    pixel = 1_000_000 / 900
    nearest = np.abs(drawn[np.searchsorted(drawn, spikes).clip(1, len(drawn) - 1)] - spikes)
    before = np.abs(drawn[np.searchsorted(drawn, spikes).clip(1, len(drawn) - 1) - 1] - spikes)
    assert np.minimum(nearest, before).max() <= pixel


def test_a_span_of_few_steps_is_drawn_whole():
    values = np.random.default_rng(1).normal(size=MAX_POINTS).astype(np.float32)
    line = broken_line(np.arange(MAX_POINTS), values)
    assert np.isin(values, line.y).all()


def test_no_line_is_drawn_where_nothing_was_logged_or_nothing_was_finite():
    step = np.concatenate((np.arange(1000), np.arange(9000, 10_000)))
    values = singles(np.where((step > 400) & (step < 600), np.nan, 1.0))
    values[[100, 1500]] = np.inf  # one value missing is no hole
    line = broken_line(step, values)
    assert list(line.x[np.isnan(line.y)]) == [400, 999]
    assert np.isfinite(line.y).sum() == np.isfinite(values).sum()


def test_a_log_of_each_hundredth_step_is_no_row_of_holes():
    step = np.delete(np.arange(0, 8000, 100), [20, 50, 51])
    values = np.ones(len(step), np.float32)
    for line in (broken_line(step, values), stepped_line(step, values)):
        assert list(line.x[np.isnan(line.y)]) == [4900]  # one missed is no hole, two are


def test_a_restart_from_an_earlier_step_breaks_a_line():
    step = np.concatenate((np.arange(100), np.arange(50, 100)))
    line = broken_line(step, np.ones(150, np.float32))
    assert np.flatnonzero(np.isnan(line.y)).tolist() == [100]
    stairs = stepped_line(step, np.ones(150, np.float32))
    assert np.isnan(stairs.y).sum() == 1


def test_many_holes_leave_the_number_of_points_bounded():
    step = np.arange(1_000_000)
    values = singles(np.where(step % 25_000 < 12_000, np.nan, np.sin(step / 9.0)))
    line = broken_line(step, values)
    assert len(line.y) <= MAX_POINTS
    assert np.isnan(line.y).sum() == 39


def test_stairs_keep_each_change_and_reach_to_the_last_step():
    values = singles([16, 16, 15, 15, 14, 14, 14])
    line = stepped_line(np.arange(7), values)
    assert list(zip(line.x, line.y, strict=True))[:3] == [(0, 16), (2, 15), (4, 14)]
    assert (line.x[-1], line.y[-1]) == (6, 14)


def test_a_scale_told_at_skips_alone_is_held_between_them_but_not_where_nothing_was_logged():
    step = np.concatenate([np.arange(0, 400), np.arange(600, 1000)])
    values = np.full(len(step), np.nan, np.float32)
    for at, value in ((100, 16), (101, 15), (300, 14), (700, 13)):
        values[step == at] = value
    line = held_line(step, values, step)
    known = np.isfinite(line.y)
    assert list(zip(line.x[known], line.y[known], strict=True)) == [
        (101, 15), (300, 14), (700, 13), (999, 13),
    ]  # fmt: skip
    assert len(held_line(step, np.zeros(len(step), np.float32), step).x) == 0


# --- stretches that are not finite ----------------------------------------------------------------


def as_pairs(found):
    return list(zip(found.first.tolist(), found.last.tolist(), strict=True))


def test_each_stretch_is_from_its_first_to_its_last_step():
    step = np.arange(0, 80, 10)
    values = np.array([1, np.nan, np.nan, 2, 3, np.nan, 4, np.nan])
    assert as_pairs(not_finite(step, values)) == [(10, 20), (50, 50), (70, 70)]


def test_a_stretch_is_of_one_kind_and_of_nan_where_kinds_were_joined():
    values = np.array([np.nan, np.inf, np.inf, -np.inf, 1, np.inf])
    found = not_finite(np.arange(6), values)
    assert as_pairs(found) == [(0, 0), (1, 2), (3, 3), (5, 5)]
    assert found.kind.tolist() == [NAN, INF, MINUS_INF, INF]
    assert found.closed(1).kind.tolist() == [NAN, INF]


def test_a_restart_ends_a_stretch():
    step = np.array([8, 9, 4, 5, 6])
    values = np.array([1, np.nan, np.nan, np.nan, 1])
    assert as_pairs(not_finite(step, values)) == [(9, 9), (4, 5)]


@given(st.lists(st.tuples(st.booleans(), st.booleans())), st.integers(0, 40))
def test_batches_change_nothing(rows, restart):
    step = np.arange(len(rows))
    step[restart:] -= restart // 2
    finite = np.array([is_finite for is_finite, _ in rows], bool)
    grown, begin = NotFinite(), 0
    for end in [at + 1 for at, (_, cut) in enumerate(rows) if cut] + [len(rows)]:
        grown.add(step[begin:end], np.where(finite, 0.0, np.nan)[begin:end])
        begin = end
    whole = not_finite(step, np.where(finite, 0.0, np.nan))
    assert as_pairs(grown.stretches) == as_pairs(whole)
    covered = {n for first, last in as_pairs(whole) for n in range(first, last + 1)}
    assert set(step[~finite].tolist()) <= covered


def test_more_than_can_be_shown_are_bounded_and_none_is_left_out(monkeypatch):
    monkeypatch.setattr(thinning, "_MOST_STRETCHES", 64)
    step = np.arange(10_000)
    odd = np.random.default_rng(0).random(10_000) < 0.05
    grown = NotFinite()
    for part in np.array_split(step, 100):
        grown.add(part, np.where(odd[part], np.inf, 0.0))
    found = as_pairs(grown.stretches)
    assert len(found) <= 64
    covered = np.zeros(10_000, bool)
    for first, last in found:
        covered[first : last + 1] = True
    assert covered[odd].all()


def test_a_span_shows_those_that_reach_into_it():
    found = not_finite(np.arange(100), np.where(np.arange(100) % 10 < 2, np.nan, 1.0))
    assert as_pairs(found.within(31, 55)) == [(30, 31), (40, 41), (50, 51)]
    assert len(found.within(0, 10**6)) == 1  # closer than a pixel


# --- joining entries ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_joining_keeps_every_one_and_the_widest_gaps(seed):
    random = np.random.default_rng(seed)
    step = np.sort(random.choice(5000, random.integers(1, 900), replace=False))
    found = close_parts(step, step, 10)
    assert np.concatenate([step[part] for part in found]).tolist() == step.tolist()
    gaps = np.diff(step)
    between = [int(step[b.start] - step[a.stop - 1]) for a, b in pairwise(found)]
    assert len(found) == min(10, 1 + int((gaps > 1).sum()))
    assert sorted(between) == sorted(gaps[gaps > 1].tolist())[len(gaps[gaps > 1]) - len(between) :]


def test_where_all_gaps_are_alike_the_lines_are_too():
    step = np.arange(0, 100_000, 80)
    sizes = [len(step[part]) for part in close_parts(step, step, 40)]
    assert len(sizes) == 40
    assert max(sizes) < 2 * len(step) / 40
