"""What a run began with: a search whose first step nobody told, and scales that leap back to it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hand_built import HandBuiltRun, Info, event_table, step_table

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.engine import Engine

SCALER = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}


def alarms(run) -> dict[str, str]:
    return {f.code: f.severity.value for f in diagnose(run).findings if f.code != "AMP901"}


def scaled(octaves, skipped=None, *, untold_after_leaps=True) -> HandBuiltRun:
    """A table that tells the scale after each step; a fall is a skip, as the importers read it."""
    after = [2.0**octave for octave in octaves]
    fell = [None, *(now < before for before, now in pairwise(after))]
    told = skipped or [True if one else None for one in fell]
    before = [after[n - 1] if fell[n] else None for n in range(len(after))]
    rows = step_table(
        loss=[2.0 - n / len(after) for n in range(len(after))],
        scale=[None] * len(after) if skipped else before, scale_after=after, skipped=told,
    )  # fmt: skip
    info = Info(source="csv", scaler=SCALER, marks={"skipped": ["implied"]})
    return HandBuiltRun(rows, info=info)


def test_a_search_whose_first_skip_no_row_can_tell_is_no_collapse():
    """The first row's scale may have fallen before it was written down."""
    falling = [15 - n for n in range(14)]
    run = scaled([*falling, *[1] * 500])
    assert alarms(run) == {"AMP101": "info"}
    assert diagnose(run).verdict.value == "healthy"


def test_a_fall_after_accepted_steps_is_a_collapse_though_the_first_row_is_untold():
    run = scaled([*[15] * 60, *[15 - n for n in range(1, 14)], *[2] * 100])
    # The loss goes on falling and the steps are taken: it costs, and does not fail.
    assert alarms(run)["AMP103"] == "warning"


def test_a_record_that_begins_late_does_not_begin_with_a_search():
    run = scaled([15 - n for n in range(14)])
    later = pa.array(range(5000, 5014), pa.int64())
    run.steps = run.steps.set_column(run.steps.schema.get_field_index("step"), "step", later)
    assert alarms(run)["AMP103"] == "error"


def test_a_leap_back_to_where_the_table_began_and_a_burst_is_a_lost_scaler():
    course = [16, 15, 14, 13, 12, *[12] * 400]
    run = scaled([*course, 16, 15, 14, 13, 12, *[12] * 200])
    assert alarms(run) == {"AMP108": "warning", "AMP101": "info"}
    [told] = [f for f in diagnose(run).findings if f.code == "AMP108"]
    assert told.first_step == len(course) + 1  # the first skip that a row tells
    assert "65,536" in told.summary
    assert "4,096" in told.cause


def test_a_leap_in_a_line_that_is_itself_told_as_a_skip_is_a_lost_scaler():
    octaves = [15, 14, 13, 12, *[12] * 400, 15, 14, 13, 12, *[12] * 200]
    skipped = [True] * 4 + [False] * 400 + [True] * 4 + [False] * 200
    assert alarms(scaled(octaves, skipped)) == {"AMP108": "warning", "AMP101": "info"}


@pytest.mark.parametrize(
    "leap",
    [[16, 16], [13, 12], [20, 19]],
    ids=["that fits", "of one octave", "to where it never was"],
)
def test_another_leap_is_no_lost_scaler(leap):
    run = scaled([16, 15, 14, 13, 12, *[12] * 400, *leap, *[leap[-1]] * 200])
    assert "AMP108" not in alarms(run)


def test_a_run_that_is_begun_once_more_in_the_same_table_has_lost_no_scaler():
    course = [16, 15, 14, 13, 12, *[12] * 200]
    twice = scaled(course * 2)
    again = pa.array([*range(len(course))] * 2, pa.int64())
    at = twice.steps.schema.get_field_index("step")
    twice.steps = twice.steps.set_column(at, "step", again)
    assert set(alarms(twice).values()) == {"info"}


def test_resets_again_and_again_are_a_scaler_that_is_made_anew():
    search = [16, 15, 14, 13, 12, *[12] * 200]
    assert alarms(scaled(search * 5))["AMP416"] == "error"


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_a_leap_is_the_same_however_the_rows_come(size):
    lines = [15, 14, 13, 12, *[12] * 50]
    skipped = [True] * 4 + [False] * 50
    for run in (scaled([16, *lines] * 2), scaled(lines * 2, skipped * 2)):
        assert Engine(block_rows=size, settled_rows=1).feed(run).diagnosis() == diagnose(run)


def rated(rate, *, steps=400, first=0, groups=(), **rest) -> HandBuiltRun:
    """A run without a scaler, of a base rate of 1e-3, whose rate is this."""
    rows = step_table(
        step=range(first, first + steps), loss=[2.0] * steps, lr_base=[1e-3] * steps,
        lr=np.broadcast_to(rate, steps).tolist(),
    )  # fmt: skip
    events = event_table([(first, "optimizer", {"optimizer": 0, "groups": groups})])
    return HandBuiltRun(rows, events=events, info=Info(scaler={}), **rest)


def test_a_rate_that_stands_where_its_warm_up_began_says_so():
    assert alarms(rated(1e-6))["AMP308"] == "warning"
    [told] = [f for f in diagnose(rated(1e-6)).findings if f.code == "AMP308"]
    assert "400 steps" in told.summary
    assert "0.1 %" in told.summary


@pytest.mark.parametrize(
    "run",
    [
        rated(1e-3),
        rated(1e-4),
        rated(1e-3 * np.minimum(1.0, (np.arange(400) + 1) / 5000)),
        rated(np.where(np.arange(400) < 350, 1e-6, 1e-3)),
        rated(1e-6, steps=200),
        rated(1e-6, first=5000),
        rated(1e-6, clean_end=False),
        rated(1e-6, groups=[{"lr": 1e-6, "initial_lr": 1e-3}, {"lr": 1e-3, "initial_lr": 1e-3}]),
    ],
    ids=[
        "its own base", "a tenth of it", "it rises, slowly", "it rises late", "a short run",
        "a record that begins late", "the run goes on", "another group does not",
    ],
)  # fmt: skip
def test_another_rate_has_not_been_left_at_the_start_of_a_warm_up(run):
    assert "AMP308" not in alarms(run)


def test_groups_that_all_stand_at_the_start_of_their_warm_up_are_told():
    groups = [{"lr": 1e-6, "initial_lr": 1e-3}, {"lr": 2e-6, "initial_lr": 2e-3}]
    assert alarms(rated(1e-6, groups=groups))["AMP308"] == "warning"
    assert alarms(rated(1e-6, steps=11_000, clean_end=False))["AMP308"] == "warning"
