"""Values of a step: at once on the CPU, late and in their places from a device."""

from __future__ import annotations

import math

import pytest
import torch

from ampwatch.probe.tensor_values import Pack


class Far(torch.Tensor):
    """A tensor that says it is on a device, and so takes the way through `seal` and the copy."""

    is_cpu = property(lambda _self: False)


def far(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).as_subclass(Far)


def test_numbers_on_the_cpu_are_read_at_once():
    pack = Pack()
    tensor = torch.tensor(2.5)
    at = pack.put(tensor)
    tensor.fill_(7.0)
    assert pack.values[at] == 2.5
    assert pack.ready()


def test_a_vector_takes_as_many_places_as_it_has_values():
    pack = Pack()
    first = pack.put(torch.tensor([1.0, 2.0, 3.0]))
    second = pack.put_number(4.0)
    third = pack.put_numbers([5.0, 6.0])
    assert (first, second, third) == (0, 3, 4)
    assert pack.values.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_device_values_come_to_their_places_with_the_copy():
    pack = Pack()
    loss = pack.put(far(0.5))
    known = pack.put_number(9.0)
    tracker = pack.put(far(17, torch.int32))
    norms = pack.put(far([1.0, math.inf, 3.0]))
    assert math.isnan(pack.values[loss])
    pack.seal()
    assert pack.ready()
    assert pack.values.tolist() == [0.5, 9.0, 17.0, 1.0, math.inf, 3.0]
    assert (loss, known, tracker, norms) == (0, 1, 2, 3)


def test_what_changes_after_a_seal_is_read_as_it_was():
    pack = Pack()
    scale = far(1024.0)
    before = pack.put(scale)
    pack.seal()
    scale.fill_(512.0)
    after = pack.put(scale)
    pack.seal()
    assert pack.ready()
    assert (pack.values[before], pack.values[after]) == (1024.0, 512.0)


@pytest.mark.parametrize("make", [torch.tensor, far])
@pytest.mark.parametrize(
    ("low", "high", "expected"), [(-3.0, 2.0, 3.0), (1.0, 2.0, 2.0), (-math.inf, 0.0, math.inf)]
)
def test_the_magnitude_between_two_extremes(make, low, high, expected):
    pack = Pack()
    at = pack.put_magnitude(make(low), make(high))
    pack.seal()
    assert pack.ready()
    assert pack.values[at] == expected


@pytest.mark.parametrize("make", [torch.tensor, far])
def test_the_magnitude_of_nan_is_nan(make):
    pack = Pack()
    at = pack.put_magnitude(make(math.nan), make(math.nan))
    pack.seal()
    assert pack.ready()
    assert math.isnan(pack.values[at])
