"""Steps in vain are counted as docs/fleet.md says."""

from __future__ import annotations

import numpy as np
import pytest
from written_runs import more, write_run

from ampwatch.diagnosis import Severity
from ampwatch.fleet.verdicts import first_standing_error, lost_time
from ampwatch.follow import diagnose
from ampwatch.store import open_run


def of(path):
    run = open_run(path)
    diagnosis = diagnose(run)
    return lost_time(run, diagnosis), diagnosis


def test_a_healthy_run_lost_nothing_and_took_its_time(tmp_path):
    lost, _ = of(write_run(tmp_path, accepted=300))
    assert (lost.steps, lost.lost_hours) == (0, 0.0)
    assert lost.hours == pytest.approx(
        299 * 1e-3 / 3600
    )  # a step each millisecond, since the first


def test_what_follows_a_standing_error_is_lost_and_no_skip_counts_twice(tmp_path):
    path = write_run(tmp_path, accepted=200, skipped=40, ended=False)
    low = np.full(30, 2.0**-24)
    more(path, 30, first=240, ended=True, scale=low, scale_after=low)
    lost, diagnosis = of(path)
    since = first_standing_error(diagnosis)
    assert since is not None
    assert diagnosis.run.skipped == 40
    skipped_before = max(0, since - 200)
    assert lost.steps == skipped_before + (270 - since)
    assert lost.hours is not None
    assert lost.lost_hours is not None
    assert 0 < lost.lost_hours <= lost.hours


def test_a_run_that_recovered_lost_its_skipped_steps(tmp_path):
    path = write_run(tmp_path, accepted=200, skipped=3, ended=False)
    more(
        path,
        400,
        first=203,
        ended=True,
        scale=np.full(400, 8192.0),
        scale_after=np.full(400, 8192.0),
    )
    lost, diagnosis = of(path)
    assert all(one.severity is not Severity.ERROR for one in diagnosis.findings)
    assert lost.steps == diagnosis.run.skipped == 3


def test_a_pause_between_two_attempts_is_no_time_of_a_step(tmp_path):
    path = write_run(tmp_path, accepted=100, ended=False)
    told = {"step_time_ms": np.full(50, 2.0)}
    more(path, 50, first=100, ended=True, **told)  # an hour later by the clock
    lost, _ = of(path)
    assert lost.hours == pytest.approx((99 + 50 * 2) * 1e-3 / 3600)
