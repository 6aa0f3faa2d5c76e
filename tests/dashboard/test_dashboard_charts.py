"""The figure: nothing that happened is lost from it."""

from __future__ import annotations

import numpy as np
import pytest
from charts import MAX_POINTS, Course, Span, broken_line, merged_ticks, overview


def course(count=5000, skips=()):
    step = np.arange(count)
    skipped = np.isin(step, skips)
    scale = np.where(skipped, 2.0**15, 2.0**16)
    return Course(step, scale, np.ones(count), np.ones(count), np.full(count, 0.1), skipped)


def course_of_steps(step):
    ones = np.ones(len(step))
    return Course(step, ones * 65536, ones, ones, ones, ones < 0)


def test_no_column_that_holds_a_skip_is_empty_and_every_skip_is_counted():
    skips = np.unique(np.random.default_rng(0).integers(0, 1_000_000, 30_000))
    at, counts = merged_ticks(skips, np.arange(1_000_000), 1200)
    assert counts.sum() == len(skips)
    columns = set((skips / (1_000_000 / 1200)).astype(int))
    assert set((at / (1_000_000 / 1200)).astype(int)) == columns


@pytest.mark.parametrize("count", [0, 1, 100, 200_000])
def test_a_line_has_a_bounded_number_of_points_and_keeps_its_extremes(count):
    values = np.sin(np.arange(count) / 7.0)
    if count > 1000:
        values[count // 2] = 100.0
    step, kept, alone = broken_line(np.arange(count), values)
    assert len(kept) <= MAX_POINTS
    assert len(step) == len(kept) == len(alone)
    assert not count or kept.max() == values.max()
    assert list(alone) == ([True] if count == 1 else [False] * len(kept))


def test_no_line_is_drawn_where_nothing_was_logged_or_nothing_was_finite():
    step = np.concatenate((np.arange(1000), np.arange(9000, 10_000)))
    values = np.where((step > 400) & (step < 600), np.nan, 1.0)
    values[[100, 1500]] = np.inf  # one value missing is no hole
    x, y, alone = broken_line(step, values)
    assert list(x[np.isnan(y)]) == [400, 999]
    assert np.isfinite(y).sum() == np.isfinite(values).sum()
    assert not alone.any()


def test_a_value_between_two_holes_and_a_restart_from_an_earlier_step_are_seen():
    step = np.concatenate((np.arange(100), np.arange(50, 100)))
    values = np.where(np.isin(step, [20, 21]) & (np.arange(150) < 100), 1.0, np.nan)
    values[[60, 120]] = 2.0
    x, y, alone = broken_line(step, values)
    assert list(x[alone]) == [60, 70]
    assert list(y[~np.isnan(y)]) == [1, 1, 2, 2]
    again = overview(course_of_steps(step))
    scale = next(trace for trace in again.data if trace.name == "loss scale")
    assert np.isnan(scale.y).sum() == 1


def test_many_holes_leave_the_number_of_points_bounded():
    step = np.arange(1_000_000)
    values = np.where(step % 25_000 < 12_000, np.nan, np.sin(step / 9.0))
    _, y, _ = broken_line(step, values)
    assert len(y) <= MAX_POINTS
    assert np.isnan(y).sum() == 39


def test_the_figure_draws_the_scale_as_powers_and_each_skip():
    figure = overview(course(skips=[10, 4000]), [Span(4000, 4999, "AMP103")])
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name["skipped"].x) == [10, 4000]
    assert set(by_name["loss scale"].y) == {15.0, 16.0}
    assert by_name["loss scale"].line.shape == "hv"
    assert {(shape.x0, shape.x1) for shape in figure.layout.shapes} == {(3999.5, 4999.5)}


def test_a_run_without_a_scale_or_without_steps_still_draws():
    empty = np.zeros(0)
    none = Course(empty.astype(int), empty, empty, empty, empty, empty.astype(bool))
    assert len(overview(none).data) == 5
    unscaled = course(50)
    overview(Course(unscaled.step, np.full(50, np.nan), *[unscaled.loss] * 3, unscaled.skipped))


def test_a_scale_that_fell_to_zero_still_draws():
    made = course(50)
    overview(Course(made.step, np.zeros(50), *[made.loss] * 3, made.skipped))
