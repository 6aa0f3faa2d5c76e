"""Norms as torch takes them, and finiteness as the values have it."""

from __future__ import annotations

import math

import pytest
import torch

from ampwatch.probe.norms import (
    GradientMeter,
    fingerprint,
    total_norm,
    versions_of,
)
from ampwatch.probe.tensor_values import Pack


def with_gradients(*gradients):
    held = []
    for gradient in gradients:
        shape = (2, 2) if gradient is None else gradient.shape
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float32))
        parameter.grad = gradient
        held.append(parameter)
    return held


def measured(held, *, look=True):
    meter = GradientMeter(held)
    if look:
        meter.look_again()
    pack = Pack()
    capture = meter.measure(pack)
    return capture, pack.values


@pytest.mark.parametrize("look", [True, False])
def test_the_total_is_clip_grad_norms_to_the_last_digit(look):
    torch.manual_seed(0)
    held = with_gradients(*(torch.randn(n, 3 * n) for n in range(1, 30)))
    expected = torch.nn.utils.clip_grad_norm_(held, math.inf).item()
    capture, values = measured(held, look=look)
    parts = values[capture.at : capture.at + capture.count]
    if look:
        assert total_norm(parts, capture.dtype) == expected
    assert math.hypot(*parts) == pytest.approx(expected, rel=1e-6)


def test_parameters_without_gradients_are_left_out_and_named():
    capture, values = measured(with_gradients(torch.ones(3), None, torch.ones(4)))
    assert capture.present == (0, 2)
    assert values[capture.at : capture.at + 2] == pytest.approx([math.sqrt(3), 2.0])


def test_nothing_is_measured_where_there_are_no_gradients():
    assert measured(with_gradients(None, None))[0] is None


def test_sparse_gradients_with_duplicates_count_each_row_once():
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([1, 1, 1, 7])).sum().backward()
    expected = embedding.weight.grad.to_dense().norm().item()
    capture, values = measured([embedding.weight])
    assert values[capture.at] == pytest.approx(expected)
    assert not embedding.weight.grad.is_coalesced()  # the user's own is as it was


def test_half_precision_norms_do_not_overflow_where_the_gradients_are_finite():
    parameter = torch.nn.Parameter(torch.zeros(400, dtype=torch.float16))
    parameter.grad = torch.full((400,), 60000.0, dtype=torch.float16)
    capture, values = measured([parameter])
    assert values[capture.at] == pytest.approx(1.2e6, rel=1e-3)
    assert capture.amax_at is None


def test_finiteness_is_judged_on_the_values_when_a_norm_overflows():
    held = with_gradients(torch.full((4,), 3e38), torch.tensor([1.0, math.nan]), torch.ones(2))
    capture, values = measured(held)
    assert values[capture.at] == math.inf
    amax = values[capture.amax_at : capture.amax_at + 3]
    assert [math.isfinite(value) for value in amax] == [True, False, True]


def test_fingerprints_and_versions_tell_of_writes_but_not_of_unscaling():
    held = with_gradients(torch.ones(3), torch.ones(2))
    gradients = [p.grad for p in held]
    left, versions = fingerprint(held), versions_of(gradients)
    found_inf, inverse = torch.zeros(()), torch.tensor(0.5)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse)
    assert fingerprint(held) == left
    assert versions_of(gradients) == versions
    torch.nn.utils.clip_grad_norm_(held, 0.1)
    assert fingerprint(held) != left
    assert versions_of(gradients) != versions
