"""Step times of hand-built runs: noisy, with pauses, and slower from one step on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hand_built import HandBuiltRun, step_table

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.engine import Engine

COUNT, CHANGE = 3000, 2000


def timed_run(level, *, seed=0):
    """A run whose steps take so many milliseconds, times some noise, and each 100th ten times."""
    noise = np.random.default_rng(seed).lognormal(0.0, 0.2, len(level))
    times = np.asarray(level) * noise
    times[::100] *= 10
    loss = np.linspace(2.0, 1.0, len(times))
    return HandBuiltRun(step_table(step_time_ms=times.tolist(), loss=loss.tolist()))


def slower(times, *, first=CHANGE, until=COUNT, normal=50.0):
    """So many times slower between two steps."""
    at = np.arange(COUNT)
    return np.where((at >= first) & (at < until), normal * times, normal)


def steps_slower(run):
    return [f for f in diagnose(run).findings if f.code == "AMP509"]


@pytest.mark.parametrize(("times", "severity"), [(5.0, "warning"), (2.4, "info")])
def test_steps_that_become_slower_are_told_with_their_step_and_cost(times, severity):
    (one,) = steps_slower(timed_run(slower(times)))
    assert one.severity.value == severity
    assert abs(one.first_step - CHANGE) <= 64  # a window
    (piece,) = one.evidence
    assert piece.value / piece.against == pytest.approx(times, rel=0.25)
    assert f"{piece.value / piece.against:.2g} times as long" in one.summary


def test_a_calm_run_names_slower_steps_besides():
    calm = diagnose(timed_run(slower(2.4))).calm
    assert calm.endswith("Noticed besides: steps slower (AMP509).")
    assert "Noticed" not in diagnose(timed_run(slower(1.0))).calm


BENIGN = {
    "as fast as ever": slower(1.0),
    "half as slow again": slower(1.5),
    "slower for a while": slower(5.0, until=2600),
    "slow at first": slower(5.0, first=0, until=1000),
    "steps of a millisecond": slower(5.0, normal=1.0),
    "slower for the last few steps": slower(5.0, first=2950),
    "every second step slower": np.where(np.arange(COUNT) % 2, 50.0, 250.0),
}


@pytest.mark.parametrize("name", BENIGN)
def test_steps_that_are_slow_now_and_then_are_no_finding(name):
    assert steps_slower(timed_run(BENIGN[name])) == []


def test_a_step_of_more_micro_batches_is_not_slower():
    parts = np.where(np.arange(COUNT) < CHANGE, 1, 5)
    run = timed_run(slower(5.0))
    at = run.steps.schema.get_field_index("micro_batches")
    run.steps = run.steps.set_column(at, "micro_batches", pa.array(parts, pa.int32()))
    assert steps_slower(run) == []


def test_a_run_without_step_times_has_no_finding():
    assert steps_slower(HandBuiltRun(step_table(loss=[1.0] * COUNT))) == []


def test_the_finding_is_the_same_in_blocks_of_any_size():
    run = timed_run(slower(5.0))
    looks = [Engine(block_rows=rows).feed(run).diagnosis() for rows in (7, 256, 8192)]
    (first, *others) = [[f for f in look.findings if f.code == "AMP509"] for look in looks]
    assert first
    assert all(other == first for other in others)
