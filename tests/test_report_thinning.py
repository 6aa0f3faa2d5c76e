"""Thinning: nothing that happened is lost from sight."""

from __future__ import annotations

import numpy as np
import pytest

from ampwatch.report.thinning import MAX_POINTS, RUG_CELLS, broken_line, merged, stepped_line


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
