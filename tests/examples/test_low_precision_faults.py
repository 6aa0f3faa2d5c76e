"""The generated trainings below sixteen bits: drawn from a number, true to what they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch):
    for folder in (ROOT, ROOT / "benchmarks", ROOT / "tests"):
        monkeypatch.syspath_prepend(str(folder))
    yield
    for name in [one for one in sys.modules if one.startswith("low_precision_")]:
        del sys.modules[name]


def first(seed, **wanted):
    """The first case of a number with these values."""
    from low_precision_cases import drawn

    cases = (drawn(seed, number) for number in range(500))
    return next(
        case for case in cases if all(getattr(case, n) == value for n, value in wanted.items())
    )


def performed(case, *, until=None):
    """The truth of a case, trained without a watch."""
    from low_precision_made_faults import training
    from low_precision_truth import Truth

    made = training(case)
    if until is not None:
        made.before_step[:] = until(made.before_step)
    truth = Truth(made)
    for _ in made.steps():
        pass
    return truth


def test_a_number_draws_the_same_cases_again_and_another_draws_others():
    from low_precision_cases import FAULTS, drawn

    cases = [drawn(3, number) for number in range(80)]
    assert cases == [drawn(3, number) for number in range(80)]
    assert cases != [drawn(4, number) for number in range(80)]
    assert {case.fault for case in cases} == {None, *FAULTS}


@pytest.mark.slow_trainings
def test_a_fault_that_was_not_made_takes_no_hold():
    case = first(3, fault="saturating outlier channel")
    assert performed(case).holds()
    assert not performed(case, until=lambda _changes: []).holds()


@pytest.mark.slow_trainings
@pytest.mark.parametrize("fault", ["quantised head", None])
def test_a_case_is_told_as_it_is_and_trains_the_same_to_the_bit(fault):
    pytest.importorskip("torchao.float8")
    from low_precision_faults import perform

    told = perform(first(3, fault=fault, recipe="rowwise"))
    assert told.hit
    assert told.is_same
    assert not told.false
