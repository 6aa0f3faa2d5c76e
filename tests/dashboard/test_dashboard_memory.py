"""The page of memory: a sentence and figures first."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from memory_page import SampledDevice, figures_html
from step_curves import StepCurves


def device(total=None, count=64, **columns):
    step, none = np.arange(count), np.full(count, np.nan, np.float32)
    names = ("allocated_bytes", "peak_bytes", "used_bytes", "host_rss_bytes", "utilisation")
    values = {name: np.asarray(columns.get(name, none), np.float32) for name in names}
    present = frozenset(name for name in names if name in columns)
    curves = StepCurves(0, step, values, np.zeros(0, np.int64), present, ())
    return SampledDevice(0, "cuda:0", curves, total, "GB", 1e9)


RUN = SimpleNamespace(ranks=(0,), curves=SimpleNamespace(ends=(0, 3999)), is_live=True)


def test_the_sentence_says_peak_and_share_and_that_memory_grows_by_how_much():
    grows = np.linspace(4.0, 8.0, 64)  # GB over 4,000 steps
    page = figures_html(RUN, device(24_000_000_000, allocated_bytes=grows, peak_bytes=grows,
                                    utilisation=np.full(64, 83.0)))  # fmt: skip
    assert "tensors held at most 8.0 GB of 24.0 GB, 33 %, and it still grows." in page
    assert "about 1.0 GB" in page
    assert "17 %" in page  # waits


def test_of_a_run_that_is_over_memory_is_told_as_it_was():
    over = SimpleNamespace(**{**vars(RUN), "is_live": False})
    grows = np.linspace(4.0, 8.0, 64)
    page = figures_html(over, device(allocated_bytes=grows, peak_bytes=grows))
    assert "and it still grew at the end." in page
    page = figures_html(over, device(host_rss_bytes=np.full(64, 0.4)))
    assert "and it did not grow at the end." in page


@pytest.mark.parametrize("held", [np.full(64, 0.4), np.r_[np.full(16, 0.1), np.full(48, 0.4)]])
def test_memory_that_only_filled_at_the_start_does_not_grow(held):
    page = figures_html(RUN, device(host_rss_bytes=held))
    assert "the process held at most 400 MB, and it does not grow." in page


def test_too_few_samples_say_nothing_of_growth():
    page = figures_html(RUN, device(host_rss_bytes=np.full(5, 0.4), count=5))
    assert "the process held at most 400 MB." in page
    assert "grow" not in page
