"""The trailing windows of the loss, all at once, against one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from ampwatch.diagnosis.learning_rate.noise import robust_deviation
from ampwatch.diagnosis.learning_rate.trouble import _levels, _trailing_windows


@pytest.mark.parametrize("cell_rows", [16, 64, 1024])
def test_every_window_has_its_own_median_and_deviation(cell_rows: int) -> None:
    rng = np.random.default_rng(cell_rows)
    start = np.concatenate([np.arange(70) * cell_rows, 70 * cell_rows + np.arange(102) * 10])
    value = rng.choice([1.0, 2.0, 2.5, -3.0], len(start)) + rng.normal(0, 0.1, len(start))
    at, begin = _trailing_windows(start)
    level, spread = _levels(value, begin, at)
    assert at.tolist() == list(range(5, len(value) - 1))
    reach = max(100, (start[-1] + 10) // 50)  # a hundred steps, or 2 % of the run
    for here, median, width in zip(at, level, spread, strict=True):
        past = value[:here][(start[:here] >= start[here] - reach) | (np.arange(here) >= here - 5)]
        assert median == np.median(past)
        assert width == pytest.approx(robust_deviation(past), rel=1e-12)


def test_a_record_without_windows_has_no_levels() -> None:
    level, spread = _levels(np.ones(6), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert len(level) == len(spread) == 0
