"""Numbers as findings, reports and pages write them."""

from __future__ import annotations

import math

import pytest

from ampwatch.diagnosis.value_text import (
    bytes_text,
    bytes_unit,
    percent_text,
    powers,
    scale_text,
    share_text,
)


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 250, "0.0 %"), (1, 250, "0.4 %"), (120, 250, "48 %"), (248, 250, "99 %"),
     (249, 250, "99.6 %"), (250, 250, "100 %"), (9_999_999, 10_000_000, "over 99.9 %"),
     (1, 10_000_000, "under 0.1 %"), (0, 0, "0.0 %")],
)  # fmt: skip
def test_a_share_is_all_or_nothing_only_where_it_is(part, whole, text):
    assert share_text(part, whole) == text


def test_no_share_is_rounded_to_a_false_whole():
    for whole in (2, 3, 7, 250, 1999, 100_003):
        for part in {1, 2, whole // 2, whole - 2, whole - 1} & set(range(1, whole)):
            assert percent_text(part / whole) not in {"100 %", "100.0 %", "0.0 %", "0 %"}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (640, "640 bytes"), (1_000, "1.0 kB"), (204_800, "205 kB"),
     (376_000_000, "376 MB"), (2.1e9, "2.1 GB"), (80e9, "80.0 GB"), (-3e6, "-3.0 MB")],
)  # fmt: skip
def test_memory_and_files_are_decimal(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize("count", [12.0, 9e3, 376e6, 80e9])
def test_an_axis_has_the_unit_that_its_largest_number_is_written_in(count):
    unit, size = bytes_unit(count)
    value, same = bytes_text(count).split() if count >= 1e3 else ("0.012", "kB")
    assert unit == same
    assert count / size == pytest.approx(float(value), rel=0.01)


@pytest.mark.parametrize(
    ("scale", "text"),
    [(65536.0, "65,536"), (2.0**-149, "1.4e-45"), (0.0, "0"), (None, "unknown"),
     (1000.0, "1,000"), (math.nan, "unknown"), (math.inf, "inf")],
)  # fmt: skip
def test_a_loss_scale_is_written_as_a_program_prints_it(scale, text):
    assert scale_text(scale) == text


@pytest.mark.parametrize(
    ("plain", "pretty"), [("2^16 to 2^-3", "2¹⁶ to 2⁻³"), ("x12^3", "x12^3"), ("none", "none")]
)
def test_powers_of_two_are_raised_and_nothing_else(plain, pretty):
    assert powers(plain) == pretty
