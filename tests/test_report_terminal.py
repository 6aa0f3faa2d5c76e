"""The report for the terminal: its words and curves."""

from __future__ import annotations

import dataclasses
import io
import json
import math

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


def test_colours_and_superscripts_are_for_terminals_only(tmp_path):
    path = write_run(tmp_path, skipped=30)
    plain = report_of(path, terminal=False)
    assert "\x1b" not in plain
    assert "2^16 to 2^-14" in plain
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
    assert len(report_of(write_run(tmp_path, skipped=30), terminal=False).splitlines()) <= 24


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


def test_the_action_is_a_call_in_words_and_no_code_to_paste(tmp_path):
    text = report_of(forward_overflow(tmp_path), terminal=False)
    call = '`ampwatch.run_in_float32(model, "blocks.1.down")`, once, after the model is created.'
    assert call in " ".join(text.split())
    assert "def " not in text


def test_a_consequence_stands_below_its_cause_and_says_so(tmp_path):
    text = report_of(forward_overflow(tmp_path), terminal=False)
    assert text.index("AMP203 forward-overflow") < text.index("AMP103 scale-collapse")
    assert "(because of AMP203)" in " ".join(text.split())


def test_the_report_says_what_it_is_not(tmp_path):
    text = report_of(forward_overflow(tmp_path), terminal=False)
    assert "not the cause. AMP203 explains what happened." in text
    assert "ruled out" in text
    assert text.count("is the first whose output overflows") == 1


def test_which_finding_explains_the_trouble_is_a_flag_that_the_json_need_not_repeat(tmp_path):
    path = forward_overflow(tmp_path)
    diagnosis = diagnose(open_run(path))
    advice = diagnosis.learning_rate
    assert advice.explained_by == "AMP203"
    assert "explained_by" not in diagnosis.to_json()["learning_rate"]
    assert diagnosis.to_json()["learning_rate"]["because"] == advice.because
    reason = dataclasses.replace(advice, because="Other words.")
    console = Console(file=io.StringIO(), width=100)
    other = dataclasses.replace(diagnosis, learning_rate=reason)
    print_report(console, "x", open_run(path), other)
    assert "not the cause. AMP203 explains what happened." in console.file.getvalue()


def test_a_rate_that_stays_is_said_once(tmp_path):
    assert "keep to" not in report_of(write_run(tmp_path, accepted=200), terminal=False)


def test_an_advice_below_its_interval_says_whose_interval_it_is():
    advice = Advice(Action.LOWER, "", current=1.0, recommended=0.07, low=0.092, high=0.64)
    assert advised(advice) == (
        "lower to 0.07 (now 1; the highest stable rate lies between 0.092 and 0.64, with 90 % "
        "confidence; the advised rate keeps a margin below it)"
    )
    assert "margin" not in advised(dataclasses.replace(advice, recommended=0.1))


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
