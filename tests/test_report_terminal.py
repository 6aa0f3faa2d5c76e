"""The report for the terminal: its words and curves."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from written_runs import event_columns, more, write_run

from ampwatch import codec, diagnose, open_run, store
from ampwatch.diagnosis import Action, Advice
from ampwatch.report import print_report
from ampwatch.report.facts import course_text, facts_of, sparkline
from ampwatch.report.terminal_report import advised
from ampwatch.rows import Table


def report_of(path, *, terminal: bool) -> str:
    """The report as a terminal, or a file, gets it."""
    run = open_run(path)
    file = io.StringIO()
    colours = "truecolor" if terminal else None
    console = Console(file=file, force_terminal=terminal, width=100, color_system=colours)
    print_report(console, run.info.name, run, diagnose(run))
    return file.getvalue()


def test_colours_are_for_terminals_only_and_no_line_ends_in_blanks(tmp_path):
    path = write_run(tmp_path, skipped=30)
    plain = report_of(path, terminal=False)
    assert "\x1b" not in plain
    assert not any(line != line.rstrip() for line in plain.splitlines())
    assert "65,536 (its highest) to 6.1e-5" in plain
    assert "\x1b[" in report_of(path, terminal=True)


def test_of_several_optimizers_and_groups_the_report_says_whose_numbers_it_shows(tmp_path):
    run = open_run(write_run(tmp_path, skipped=0))
    plain = {fact.label: fact.text for fact in facts_of(run, diagnose(run))}
    assert "optimizer" not in plain["loss"]

    class Pair:
        info, ranks, notes = run.info, run.ranks, run.notes

        def read(self, table, columns=None, rank=None):
            if table is not Table.EVENTS:
                return run.read(table, columns, rank)
            groups = [{"lr": 0.1}, {"lr": 0.2}]
            details = [{"optimizer": n, "class": "Adam", "groups": groups} for n in range(2)]
            texts = [json.dumps(detail) for detail in details]
            return pa.table({"kind": ["optimizer"] * 2, "detail": texts})

    told = {fact.label: fact.text for fact in facts_of(Pair(), diagnose(run))}
    assert told["loss"] == plain["loss"] + " (optimizer 0 of 2, Adam)"
    if "learning rate" in plain:
        assert told["learning rate"].endswith("(optimizer 0 of 2, Adam; group 0 of 2)")


def test_the_report_fits_one_screen(tmp_path):
    assert len(report_of(write_run(tmp_path, skipped=30), terminal=False).splitlines()) <= 30


def test_a_record_without_steps_is_called_incomplete(tmp_path):
    text = report_of(write_run(tmp_path, accepted=0), terminal=False)
    assert "INCOMPLETE" in text
    assert "no steps" in text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([2.0, 1.0], "2 → 1"),
        ([2.0, math.nan, math.inf], "2 → 2, then not finite for 2 steps"),
        ([math.nan], "nan, never finite"),
    ],
)
def test_the_course_of_a_number_says_when_it_was_lost(values, text):
    assert course_text(np.array(values), "→") == text


def test_a_sparkline_shows_every_dip():
    values = np.ones(1000)
    values[517] = 0.0
    assert sparkline(values, 40).count("▁") == 1
    assert sparkline([], 40) == ""


def forward_overflow(tmp_path):
    """A run whose every forward pass breaks in one layer."""
    path = write_run(tmp_path, accepted=0, skipped=30, ended=False)
    told = {"direction": "forward", "layer": "blocks.1.down", "exact": True}
    writer = store.RankWriter(path, 0)
    overflows = [(step, "overflow", told) for step in range(30)]
    writer.append(codec.encode(Table.EVENTS, event_columns(overflows, 0)))
    writer.close()
    return path


def test_a_consequence_stands_apart_with_its_code_at_the_end(tmp_path):
    text = " ".join(report_of(forward_overflow(tmp_path), terminal=False).split())
    assert text.index("(AMP203)") < text.index("Consequences: scale collapse AMP103.")


def test_the_report_says_what_it_is_not(tmp_path):
    text = report_of(forward_overflow(tmp_path), terminal=False)
    assert "Learning rate: nothing recorded points to it." in text
    assert "Ruled out" in text


def test_with_all_the_report_has_every_finding_in_full(tmp_path):
    run, file = open_run(forward_overflow(tmp_path)), io.StringIO()
    diagnosis = diagnose(run)
    print_report(Console(file=file, width=100), "x", run, diagnosis, everything=True)
    text = " ".join(file.getvalue().split())
    for finding in diagnosis.findings:
        assert " ".join(finding.summary.split()) in text
        assert " ".join(finding.cause.split()) in text
    assert "not the cause. AMP203 explains what happened." in text
    assert "explained_by" not in diagnosis.to_json()["learning_rate"]


def test_a_rate_that_stays_is_said_once(tmp_path):
    assert "no change suggested (now 0.1)" in report_of(
        write_run(tmp_path, accepted=200), terminal=False
    )


def test_a_rate_that_no_advice_repeats_is_still_the_one_in_use(tmp_path):
    run = open_run(write_run(tmp_path, accepted=200))
    diagnosis = diagnose(run)
    kept = replace(diagnosis.learning_rate, recommended=None, current=0.30000000000000016)
    file = io.StringIO()
    print_report(Console(file=file, width=100), "x", run, replace(diagnosis, learning_rate=kept))
    assert "Learning rate: no change suggested (its peak: 0.3)." in file.getvalue()


def test_the_range_of_the_learning_rate_is_called_an_estimate_and_no_confidence():
    advice = Advice(Action.LOWER, "", current=1.0, recommended=0.07, low=0.092, high=0.64)
    assert advised(advice) == (
        "lower to 0.07 (now 1; highest stable learning rate: 0.092 to 0.64, estimated, not tested)"
    )


def test_a_number_that_is_no_longer_logged_says_of_when_it_is(tmp_path):
    path = write_run(tmp_path, accepted=50)
    more(path, accepted=30, first=50, loss=[None] * 30)
    facts = {fact.label: fact.text for fact in facts_of(open_run(path), diagnose(open_run(path)))}
    assert facts["loss"] == "2 → 1.342 at step 49"
    assert facts["learning rate"] == "0.1"


def test_the_terminals_colours_are_the_pages_and_show_on_dark_and_on_pale():
    from ampwatch.report import STYLES
    from ampwatch.report.painter import LIGHT, SEVERITY_COLOR, VERDICT_COLOR

    tones = {**VERDICT_COLOR, **SEVERITY_COLOR}
    assert set(STYLES) == set(tones)
    for word, style in STYLES.items():
        color = style.removeprefix("bold ")
        assert color == LIGHT[tones[word]]
        light = _luminance(color)
        assert min((light + 0.05) / 0.05, 1.05 / (light + 0.05)) >= 3.0  # as for large text


def _luminance(color):
    """As WCAG 2 defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
