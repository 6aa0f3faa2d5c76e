"""The figure: nothing that happened is lost from it."""

from __future__ import annotations

import numpy as np
import pytest
from charts import MAX_POINTS, Course, Span, merged_ticks, overview, thinned


def course(count=5000, skips=()):
    step = np.arange(count)
    skipped = np.isin(step, skips)
    scale = np.where(skipped, 2.0**15, 2.0**16)
    return Course(step, scale, np.ones(count), np.ones(count), np.full(count, 0.1), skipped)


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
    step, kept = thinned(np.arange(count), values)
    assert len(kept) <= MAX_POINTS
    assert len(step) == len(kept)
    assert not count or kept.max() == values.max()


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
