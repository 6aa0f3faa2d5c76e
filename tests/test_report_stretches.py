"""Stretches of values that are not finite, however the rows come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.report import stretches
from ampwatch.report.stretches import NotFinite, not_finite


def as_pairs(found):
    return list(zip(found.first.tolist(), found.last.tolist(), strict=True))


def test_each_stretch_is_from_its_first_to_its_last_step():
    step = np.arange(0, 80, 10)
    values = np.array([1, np.nan, np.inf, 2, 3, np.nan, 4, np.nan])
    assert as_pairs(not_finite(step, values)) == [(10, 20), (50, 50), (70, 70)]


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
        grown.add(step[begin:end], finite[begin:end])
        begin = end
    whole = not_finite(step, np.where(finite, 0.0, np.nan))
    assert as_pairs(grown.stretches) == as_pairs(whole)
    covered = {n for first, last in as_pairs(whole) for n in range(first, last + 1)}
    assert set(step[~finite].tolist()) <= covered


def test_more_than_can_be_shown_are_bounded_and_none_is_left_out(monkeypatch):
    monkeypatch.setattr(stretches, "_MOST", 64)
    step = np.arange(10_000)
    odd = np.random.default_rng(0).random(10_000) < 0.05
    grown = NotFinite()
    for part in np.array_split(step, 100):
        grown.add(part, ~odd[part])
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
