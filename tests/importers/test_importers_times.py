"""Times that lines begin with: read where a line counts, exact, and never a guess."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from importers.make_literal_samples import APEX, megatron_line

from ampwatch import diagnose, open_run
from ampwatch.importers import import_log
from ampwatch.importers.timestamps import time_ns, times_ns
from ampwatch.report.facts import facts_of
from ampwatch.rows import Table

NOON = datetime(2024, 2, 29, 12, 0, 0, tzinfo=timezone.utc)


def ns(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9


def imported(text, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(text)
    return open_run(import_log(path, tmp_path / "runs"))


def times(run):
    return run.read(Table.STEPS, columns=("time_ns",)).column(0).to_pylist()


@pytest.mark.parametrize(
    ("text", "more_ns"),
    [("2024-02-29 12:00:00", 0), ("[2024-02-29 12:00:00,123]", 123 * 10**6),
     ("2024/02/29 12:00:00", 0), ("2024-02-29T12:00:00.000001Z", 1000)],
)  # fmt: skip
def test_a_stamp_is_the_moment_that_it_names(text, more_ns):
    assert time_ns(f"INFO {text} | x") == ns(NOON) + more_ns


@pytest.mark.parametrize("text", ["no time", "2024-13-01 12:00:00", "0000-01-01 00:00:00", "12:00"])
def test_what_is_no_date_is_no_time(text):
    assert time_ns(text) is None


def test_stamps_of_several_widths_are_read_together():
    read = times_ns([b"2024-02-29 12:00:00", b"2024-02-29 12:00:00,5"])
    assert read.tolist() == [ns(NOON), ns(NOON) + 5 * 10**8]


@pytest.mark.parametrize("lines", [3, 3000])
def test_each_row_bears_its_lines_time_and_the_run_begins_with_the_first(lines, tmp_path):
    """A few lines are read one by one, many of one shape at once."""
    moments = [NOON + timedelta(seconds=n) for n in range(lines)]
    text = "".join(
        megatron_line(n + 1, 65536.0, 2.0, 0.8, head=f" [{moment:%Y-%m-%d %H:%M:%S}] ")
        for n, moment in enumerate(moments)
    )
    run = imported(text, tmp_path)
    assert times(run) == [ns(moment) for moment in moments]
    assert run.info.started_ns == ns(moments[0])
    assert run.last_time_ns == ns(moments[-1])
    found = diagnose(run)
    assert "read as UTC" in {f.code: f.cause for f in found.findings}["AMP901"]
    shown = {fact.label: fact.text for fact in facts_of(run, found)}
    assert ("duration" in shown) == (lines > 1)


def test_a_log_without_times_has_none(tmp_path):
    run = imported(APEX.format(32768.0) * 2, tmp_path)
    assert times(run) == [None]
    assert run.last_time_ns == 0
    assert "duration" not in {fact.label for fact in facts_of(run, diagnose(run))}


def test_the_step_time_is_what_the_stamps_leave_where_no_line_tells_it(tmp_path):
    line = '2024-02-29 12:{:02d}:00 | INFO | train_inner | {{"num_updates": "{}", "loss": "2.5"}}\n'
    run = imported("".join(line.format(n, 100 * n) for n in range(1, 21)), tmp_path)
    shown = {fact.label: fact.text for fact in facts_of(run, diagnose(run))}
    assert shown["duration"] == "19 min"
    assert shown["step time"] == "600 ms (mean, by the log's times)"


def test_equal_lines_a_second_apart_are_no_ranks_of_one_event(tmp_path):
    """Values at a floor do not tell events apart; times do."""
    line = "2022-01-01 10:00:{:02d} | INFO | NOTE: gradient overflow detected, ignoring gradient, "
    line += "setting loss scale to: 0.03125\n"
    apart = imported("".join(line.format(n) for n in range(8)), tmp_path)
    assert diagnose(apart).run.overflows == 8
    together = imported(line.format(1) * 8, tmp_path)
    assert diagnose(together).run.overflows == 1


def test_skips_are_facts_though_no_line_tells_the_scale(tmp_path):
    line = (
        "2021-04-23 19:22:{:02d},420 WARNING: The grad norm is nan. Skipping updating the model.\n"
    )
    run = imported("".join(line.format(n) for n in range(30)), tmp_path)
    shown = {fact.label: fact.text for fact in facts_of(run, diagnose(run))}
    assert shown["skipped"] == "30 of 30 steps, 100 %"
    assert "loss scale" not in shown
