"""Sets of numbers kept as ranges, against plain sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.ranges import Ranges

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)))


def numbers_of(ranges) -> set[int]:
    return {number for first, after in ranges for number in range(first, after)}


@given(PAIRS, st.integers(0, 50))
def test_it_holds_what_was_added_and_nothing_else(pairs, floor):
    ranges, truth = Ranges(), set()
    for first, length in pairs:
        ranges.add(first, first + length)
        truth |= set(range(first, first + length))
        ends = [end for pair in ranges for end in pair]
        assert ends == sorted(set(ends))  # in order, and no two of them touch
        assert numbers_of(ranges) == truth
        assert [number for number in range(60) if number in ranges] == sorted(truth)
    assert (ranges.start, ranges.end) == (min(truth, default=0), max(truth, default=-1) + 1)
    assert numbers_of(ranges.gaps) == set(range(ranges.end)) - truth
    assert ranges.next_missing(floor) == min(set(range(floor, 99)) - truth)
    assert list(Ranges.of_numbers(np.array(sorted(truth), np.int64))) == list(ranges)
    ranges.remove_below(floor)
    assert numbers_of(ranges) == {number for number in truth if number >= floor}


@given(PAIRS, PAIRS)
def test_what_other_ranges_cover_is_left_out(pairs, others):
    mine, taken = (
        [(first, first + length) for first, length in of if length] for of in (pairs, others)
    )
    left = Ranges(mine).without(taken)
    assert numbers_of(left) == numbers_of(mine) - numbers_of(taken)
    assert all(first < after for first, after in left)


def test_numbers_in_any_order_are_known_however_many_are_left_out():
    rng = np.random.default_rng(0)
    for numbers in (range(7, 407, 2), range(405, 5, -2), rng.permutation(300)[:200].tolist()):
        held = Ranges()
        for number in numbers:
            held.add(number)
            held.add(number)
        assert numbers_of(held) == set(numbers)
        assert list(Ranges.of_numbers(np.array(numbers))) == list(held)


def test_many_sparse_numbers_are_held_in_no_time():
    held = Ranges()
    for number in range(7, 60_007, 2):
        held.add(number)
    assert len(held.gaps) == 30_000
    assert (9 in held, 10 in held) == (True, False)
