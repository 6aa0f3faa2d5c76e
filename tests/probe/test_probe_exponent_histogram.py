"""Histograms, underflow and the window of scales, against gradients whose true values are known."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layers_harness import Watched, half_step
from torch import nn

from ampwatch.probe.exponent_histogram import (
    COARSE_SHARE_ALLOWED,
    FLOAT16_MAX,
    FLOAT16_SMALLEST,
    FLOAT16_SMALLEST_NORMAL,
    LOST_SHARE_ALLOWED,
    copied_bits,
    counted,
    highest_scale,
    histogram,
    histogram_of_counts,
    lowest_scales,
    underflow_shares,
)
from ampwatch.probe.tensor_values import SAMPLE_LIMIT, strided
from ampwatch.rows import EXPONENT_BINS, EXPONENT_LOWEST

BIN_OF_SMALLEST = -24 - EXPONENT_LOWEST + 1


def seeded() -> np.random.Generator:
    """The same numbers in every test, whichever ran before."""
    return np.random.default_rng(0)


def bins_of(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return histogram(torch.from_numpy(half.view(np.int16)), torch.float16)


def underflow_share(bins: np.ndarray) -> float | None:
    return underflow_shares(bins[None])[0]


def lowest_scale(bins: np.ndarray, scale: float) -> float | None:
    return lowest_scales(bins[None], scale)[0]


def gradients(kind: str, count: int = 60_000) -> np.ndarray:
    """True gradients around one, of shapes that trainings show."""
    random = seeded()
    if kind == "normal":
        return random.standard_normal(count)
    if kind == "heavy":
        return random.standard_t(2, count)
    if kind == "log-normal":
        return np.exp2(random.normal(0.0, 3.0, count)) * random.choice([-1.0, 1.0], count)
    return random.standard_normal(count) * random.standard_normal(count)  # a product


KINDS = ("normal", "heavy", "log-normal", "product")


def true_share(values: np.ndarray) -> float:
    seen = values[values != 0]
    return float((np.abs(seen) < FLOAT16_SMALLEST_NORMAL).mean())


# -- the histogram ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_bit_pattern_falls_into_the_bin_of_its_exponent(dtype: torch.dtype) -> None:
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = patterns.view(dtype).double()
    expected = [0] * EXPONENT_BINS
    for value in values.tolist():
        expected[bin_of(value)] += 1
    assert histogram(patterns, dtype).tolist() == expected
    on_device = counted(patterns.view(dtype))
    assert histogram_of_counts(on_device.double().numpy()).tolist() == expected


def bin_of(value: float) -> int:
    if value == 0:
        return 0
    if not math.isfinite(value):
        return EXPONENT_BINS - 1
    exponent = math.floor(math.log2(abs(value)))
    return min(max(exponent - EXPONENT_LOWEST + 1, 1), EXPONENT_BINS - 2)


@pytest.mark.parametrize("shape", [(7,), (300, 1000), (512, 768), (64, 128, 32), (4, 3, 224, 224)])
def test_a_sample_is_small_and_spread_over_every_column(shape: tuple[int, ...]) -> None:
    columns = torch.arange(shape[-1], dtype=torch.float32).expand(shape).contiguous()
    sample = strided(columns)
    assert sample.numel() <= SAMPLE_LIMIT
    assert sample.numel() >= min(columns.numel(), SAMPLE_LIMIT // 4)
    assert len(set(sample.flatten().tolist())) == shape[-1]


def test_a_sample_of_a_permuted_or_expanded_tensor_is_a_view() -> None:
    image = torch.randn(8, 16, 64, 64).to(memory_format=torch.channels_last)
    for tensor in (image, torch.ones(()).expand(1000, 1000), torch.randn(3000, 100).t()):
        sample = strided(tensor)
        assert 0 < sample.numel() <= SAMPLE_LIMIT
        assert sample.data_ptr() == tensor.data_ptr()


def test_sampling_obeys_deterministic_algorithms() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        value = torch.randn(100, 100).half()
        assert counted(value)[0] == copied_bits(value).numel() == 10_000
    finally:
        torch.use_deterministic_algorithms(False)


# -- underflow -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("octave", [-8, -12, -16, -20, -22])
def test_the_share_lost_is_close_to_that_of_the_true_values(kind: str, octave: int) -> None:
    true = gradients(kind) * 2.0**octave
    estimated = underflow_share(bins_of(true))
    assert estimated == pytest.approx(true_share(true), abs=0.06)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_of_dead_units_are_not_lost_values(kind: str) -> None:
    true = gradients(kind) * 2.0**-18
    dead = np.concatenate([true, np.zeros(2 * len(true))])
    assert underflow_share(bins_of(dead)) == pytest.approx(true_share(true), abs=0.06)


def test_nothing_is_lost_where_nothing_is_small() -> None:
    assert underflow_share(bins_of(np.full(1000, 0.5))) == 0.0


def test_a_single_stray_value_does_not_turn_zeros_into_lost_values() -> None:
    values = np.concatenate([np.zeros(1000), [2.0**-24], seeded().uniform(0.5, 1.0, 1000)])
    assert underflow_share(bins_of(values)) < 0.01


def test_all_zeros_say_nothing() -> None:
    assert underflow_share(bins_of(np.zeros(1000))) is None
    assert lowest_scale(bins_of(np.zeros(1000)), 1.0) is None


@given(
    st.lists(st.integers(0, 1000), min_size=EXPONENT_BINS, max_size=EXPONENT_BINS),
    st.floats(1e-6, 1e9),
)
def test_any_histogram_gives_a_share_and_a_scale_or_nothing(
    counts: list[int], scale: float
) -> None:
    bins = np.array(counts, np.int64)
    share = underflow_share(bins)
    assert share is None or 0.0 <= share <= 1.0
    low = lowest_scale(bins, scale)
    assert low is None or (math.isfinite(low) and low > 0)


def test_many_histograms_at_once_give_what_each_gives_alone() -> None:
    bins = seeded().poisson(3.0, (300, EXPONENT_BINS)) * seeded().integers(
        0, 2, (300, EXPONENT_BINS)
    )
    bins[:100, : BIN_OF_SMALLEST + 2] = 0
    bins[100] = 0
    assert underflow_shares(bins) == [underflow_share(row) for row in bins]
    assert lowest_scales(bins, 8.0) == [lowest_scale(row, 8.0) for row in bins]


# -- the window of scales --------------------------------------------------------------------------


def lost_and_coarse(true: np.ndarray) -> tuple[float, float]:
    """The shares that are flushed to zero, and that are flushed or subnormal."""
    small = np.abs(true[true != 0])
    return float((small < FLOAT16_SMALLEST).mean()), float((small < FLOAT16_SMALLEST_NORMAL).mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**-18, 2.0**-10, 1.0])
def test_at_the_lowest_scale_half_keep_their_digits_and_hardly_any_is_lost(
    kind: str, scale: float
) -> None:
    true = gradients(kind)
    low = lowest_scale(bins_of(true * scale), scale)
    assert low is not None
    lost, coarse = lost_and_coarse(true * low)
    assert coarse == pytest.approx(COARSE_SHARE_ALLOWED, abs=0.035)
    assert lost < LOST_SHARE_ALLOWED


def test_values_spread_over_many_octaves_are_judged_by_the_smallest_twentieth() -> None:
    true = np.exp2(seeded().normal(0.0, 8.0, 60_000))
    low = lowest_scale(bins_of(true * 2.0**-10), 2.0**-10)
    lost, coarse = lost_and_coarse(true * low)
    assert lost == pytest.approx(LOST_SHARE_ALLOWED, abs=0.035)
    assert coarse < COARSE_SHARE_ALLOWED


def saturated_softmax() -> np.ndarray:
    """Gradients at the inputs of softmaxes that are sure: most are e to the minus dozens."""
    logits = 20 * seeded().standard_normal((4000, 8))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    gradient = powers / powers.sum(axis=1, keepdims=True)
    gradient[np.arange(4000), seeded().integers(0, 8, 4000)] -= 1
    return gradient.ravel()


@pytest.mark.parametrize("scale", [2.0**-10, 2.0**-4, 1.0, 2.0**8])
def test_no_scale_is_made_up_for_values_that_lie_far_beyond_the_format(scale: float) -> None:
    assert lowest_scale(bins_of(saturated_softmax() * scale), scale) is None


@given(st.lists(st.integers(0, 1000), min_size=40, max_size=40), st.integers(0, 100_000))
def test_a_named_scale_is_never_far_above_the_one_it_was_seen_at(
    counts: list[int], zeros: int
) -> None:
    bins = np.zeros(EXPONENT_BINS, np.int64)
    bins[0], bins[BIN_OF_SMALLEST : BIN_OF_SMALLEST + 40] = zeros, counts
    low = lowest_scale(bins, 1.0)
    assert low is None or low <= FLOAT16_SMALLEST_NORMAL / FLOAT16_SMALLEST * 2.0**5


def test_the_lowest_scale_does_not_depend_on_the_scale_it_was_seen_at() -> None:
    true = gradients("heavy")
    seen = [lowest_scale(bins_of(true * scale), scale) for scale in (2.0**-17, 2.0**-9, 2.0**-2)]
    assert max(seen) / min(seen) < 1.3


@given(st.floats(1e-7, 6e4), st.floats(2.0**-20, 2.0**20))
def test_at_the_highest_scale_the_maximum_just_fits(amax: float, scale: float) -> None:
    highest = highest_scale(amax, scale)
    true = amax / scale
    assert true * highest == pytest.approx(FLOAT16_MAX)
    with np.errstate(over="ignore"):
        assert np.isfinite(np.float16(true * highest * 0.999))
        assert np.isinf(np.float16(true * highest * 1.01))


@pytest.mark.parametrize("amax", [None, 0.0, math.inf, math.nan])
def test_without_a_finite_maximum_no_highest_scale_is_known(amax: float | None) -> None:
    assert highest_scale(amax, 1024.0) is None


# -- in a real float16 training --------------------------------------------------------------------


def true_output_gradient(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """The gradient at the first layer's output in float64, unscaled."""
    wide = copy.deepcopy(model).double()
    hidden = wide[0](rows.double())
    hidden.retain_grad()
    wide[1:](hidden).pow(2).mean().backward()
    return hidden.grad


@pytest.mark.parametrize("scale", [2.0**-2, 2.0**4, 2.0**10])
def test_a_layers_window_and_loss_match_a_float64_run(scale: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
    rows = torch.randn(256, 64)
    true = true_output_gradient(model, rows).abs().flatten()
    run = half_step(model, lambda m: m(rows).float().pow(2).mean(), scale)
    cells = Watched(model, scale=scale).step(run).cells("0")
    assert sum(cells.exponents) == true.numel()
    expected_share = (true * scale < FLOAT16_SMALLEST_NORMAL).double().mean().item()
    assert cells.underflow_share == pytest.approx(expected_share, abs=0.05)
    assert cells.scale_high == pytest.approx(FLOAT16_MAX / true.max().item(), rel=0.02)
    lost, coarse = lost_and_coarse(true.numpy() * cells.scale_low)
    assert coarse == pytest.approx(COARSE_SHARE_ALLOWED, abs=0.035)
    assert lost < LOST_SHARE_ALLOWED


def test_bfloat16_has_a_histogram_but_needs_no_scale() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(8, 16)).float().pow(2).mean()
        loss.backward()

    cells = Watched(model).step(run).cells("0")
    assert sum(cells.exponents) == 8 * 16
    assert (cells.scale_low, cells.scale_high, cells.underflow_share) == (None, None, None)
    assert cells.log2_headroom > 100
