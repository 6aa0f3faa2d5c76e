"""Verdicts are counted by finding, week and setting; what was lost is counted once."""

from __future__ import annotations

import dataclasses
import datetime as dt

from ampwatch.fleet import summary
from ampwatch.fleet.verdicts import UNKNOWN_TIME, RunVerdict

MONDAY = dt.datetime(2026, 11, 23, 9, tzinfo=dt.timezone.utc)


def verdict(name, word="healthy", codes=(), *, days=0, lost=0, hours=None, tags=(), **config):
    started = MONDAY + dt.timedelta(days=days)
    return RunVerdict(
        run_id=name, stamp="s", rules="r", name=name, started=started, last_time=started,
        steps=1000, ranks=1, verdict=word, codes=codes, headline="", layer=None, learning_rate={},
        lost_steps=lost, lost_hours=hours, hours=1.0, config=config, tags=tags, note="",
        signature=None, findings_json=None, judged=started,
    )  # fmt: skip


RUNS = [
    verdict("a", "failing", ("AMP103", "AMP301"), lost=500, hours=0.5, model="vit", user="ada"),
    verdict("b", "failing", ("AMP301",), days=-1, lost=900, hours=0.9, model="vit"),
    verdict("c", "warning", ("AMP105",), lost=30, tags=("sweep", "night"), arch="gpt"),
    verdict("d", "healthy", days=-9, optimizer={"name": "adam", "lr": 0.1}),
    verdict("e", "cut off", days=6),
]


def test_all_runs_in_one_line():
    found = summary.total(RUNS)
    assert (found.runs, found.failing, found.warning, found.healthy, found.incomplete) == (
        5,
        2,
        1,
        1,
        1,
    )
    assert (found.lost_steps, found.lost_hours, found.steps, found.hours) == (1430, 1.4, 5000, 5.0)


def test_a_finding_counts_every_run_that_has_it_and_loses_what_it_heads():
    found = {tally.key: tally for tally in summary.by_code(RUNS)}
    assert next(tally.key for tally in summary.by_code(RUNS)) == "AMP301"
    assert (found["AMP301"].runs, found["AMP301"].lost_steps) == (2, 900)
    assert (found["AMP103"].runs, found["AMP103"].lost_steps) == (1, 500)
    assert sum(tally.lost_steps for tally in found.values()) == summary.total(RUNS).lost_steps


def test_weeks_begin_on_monday_and_come_in_order():
    found = [(tally.key, tally.runs) for tally in summary.by_week(RUNS)]
    assert found == [("2026-11-09", 1), ("2026-11-16", 1), ("2026-11-23", 3)]


def test_a_log_without_times_belongs_to_no_week():
    timeless = dataclasses.replace(RUNS[0], started=UNKNOWN_TIME)
    found = [(tally.key, tally.runs) for tally in summary.by_week([timeless, RUNS[3]])]
    assert found == [("", 1), ("2026-11-09", 1)]


def test_runs_are_grouped_by_what_their_configuration_says():
    assert [(t.key, t.runs) for t in summary.by_setting(RUNS, "optimizer.name")] == [
        ("", 4),
        ("adam", 1),
    ]
    assert [(t.key, t.runs) for t in summary.by_setting(RUNS, "model")] == [
        ("", 2),
        ("vit", 2),
        ("gpt", 1),
    ]
    assert {t.key: t.runs for t in summary.by_setting(RUNS, "person")} == {"ada": 1, "": 4}
    assert {t.key: t.runs for t in summary.by_setting(RUNS, "tag")} == {
        "sweep": 1,
        "night": 1,
        "": 4,
    }


def test_settings_that_differ_are_named():
    assert summary.setting_names(RUNS) == [
        "model",
        "arch",
        "optimizer.lr",
        "optimizer.name",
        "user",
    ]


def test_the_worst_runs_are_the_failing_ones_that_lost_most():
    assert [one.name for one in summary.worst(RUNS, 3)] == ["b", "a", "c"]
