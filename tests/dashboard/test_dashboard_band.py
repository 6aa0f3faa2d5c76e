"""The band says of a run what its report says first."""

from __future__ import annotations

import html
import json
import re
import time
import types

import pytest
from written_runs import write_run

from ampwatch import diagnose, open_run
from ampwatch.cli import run as ampwatch
from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, Severity, Verdict
from ampwatch.diagnosis.findings import RunFacts
from ampwatch.follow import State
from ampwatch.report.letter import letter_of


@pytest.mark.parametrize(
    ("accepted", "verdict", "first"),
    [(100, "HEALTHY", "No problems found in 100 steps."),
     (18, "INCOMPLETE", "No problems found in 18 steps, too few to judge the learning rate."),
     (0, "INCOMPLETE", "The record ends before anything could be judged.")],
)  # fmt: skip
def test_report_page_and_band_begin_with_the_same_sentence(
    accepted, verdict, first, tmp_path, capsys
):
    from verdict_band import verdict_band

    path = write_run(tmp_path, accepted=accepted)
    assert ampwatch(["report", str(path), "--fail-on", "warning"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(verdict)
    assert lines[2] == first
    assert ampwatch(["report", str(path), "--html", str(tmp_path / "page.html")]) == 0
    assert first in (tmp_path / "page.html").read_text(encoding="utf-8")
    run = open_run(path)
    look = types.SimpleNamespace(
        diagnosis=diagnose(run), is_live=False, state=State.ENDED, info=run.info,
        last_time_ns=run.last_time_ns,
    )  # fmt: skip
    shown = verdict_band(look)
    assert verdict in shown
    assert first in shown


@pytest.fixture
def shown_of(tmp_path):
    """The band of a finished run with this diagnosis."""
    from verdict_band import verdict_band

    run = open_run(write_run(tmp_path, accepted=100))

    def shown(diagnosis):
        return verdict_band(types.SimpleNamespace(
            diagnosis=diagnosis, is_live=False, state=State.ENDED, proof=lambda: None,
            info=types.SimpleNamespace(source="ampwatch"), last_time_ns=time.time_ns(),
            letter=lambda: letter_of("one", run, diagnosis),
        ))  # fmt: skip

    return shown


def finding(code="AMP103", severity=Severity.ERROR, action="Mend it.", **rest):
    told = {"first_step": 80, "last_step": 159, "ranks": (0,), "layer": None, **rest}
    return Finding(code, "a-name", severity, summary="It broke.", cause="", action=action, **told)


def diagnosis_of(advice, *findings):
    facts = RunFacts("id", "ampwatch", (0,), 160, None, None, True, 2.0**16, 2.0**-62, 78, 78)
    return Diagnosis(facts, Verdict.FAILING, findings or (finding(),), advice)


def test_after_a_leap_the_band_says_which_rate_to_go_back_to(shown_of):
    advice = Advice(
        Action.LOWER, "", current=50.0, recommended=0.05, low=0.05, factor=0.001,
        restart_from_step=79, leapt_at_step=80,
    )  # fmt: skip
    told = " ".join(re.sub("<[^>]+>", "", shown_of(diagnosis_of(advice))).split())
    assert (
        "Find out what raised the learning rate at step 80: the schedule, a resume, or a change by "
        "hand.Set it back from 50 to 0.05. The run had trained with that before."
    ) in told
    assert "90 %" not in told


@pytest.mark.parametrize(
    ("action", "words"),
    [(Action.NOT_THE_CAUSE, "Learning rate: nothing recorded points to it."),
     (Action.KEEP, "Learning rate: nothing recorded points to it."),
     (Action.UNKNOWN, "Learning rate: it may be the cause; this record cannot tell."),
     (Action.LOWER, "Start from scratch with a peak learning rate of 0.01 (now 0.05).")],
)  # fmt: skip
def test_the_band_says_what_the_report_says_of_the_learning_rate(action, words, shown_of):
    rate = {"current": 0.05, "recommended": 0.01, "factor": 0.2}
    advice = Advice(action, "", **(rate if action is Action.LOWER else {}))
    assert words in re.sub("<[^>]+>", "", shown_of(diagnosis_of(advice)))


def test_the_band_says_what_reruns_have_proved(tmp_path):
    from open_runs import OpenRuns
    from verdict_band import verdict_band

    from ampwatch.recovery.proof import Proof, Try

    path = write_run(tmp_path, accepted=60, skipped=60)
    held = Try("lr", 0.05, 300, "healthy", True, "", {}, "again")
    Proof(str(path), 1.0, 300, (held,)).keep(path)
    shown = verdict_band(OpenRuns().snapshot_of(str(path)))
    assert "Proved: a learning rate of 0.05 held for 300 steps" in shown


@pytest.mark.parametrize("kept", [None, ("float32", "head")])
def test_letter_band_page_and_json_show_the_proved_rate_in_place_of_the_estimate(
    tmp_path, capsys, kept
):
    from findings_page import findings_html
    from open_runs import OpenRuns
    from structured_runs import write_structured
    from verdict_band import verdict_band

    from ampwatch.recovery.proof import Proof, Try

    path = write_structured(tmp_path, "one", rate=0.1, fails=True)
    estimate = diagnose(open_run(path)).learning_rate
    assert estimate.action is Action.LOWER
    tries = (Try("lr", 0.0432, 300, "healthy", True, "", {}, "again", kept=kept),
             Try("lr", 0.0765, 300, "failing", False, "", {}, "again", kept=kept))  # fmt: skip
    Proof(str(path), 0.1, 300, tries, kept=kept).keep(path)
    asked = (["report", str(path), "--all"], ["report", str(path), "--json"],
             ["report", str(path), "--html", str(tmp_path / "page.html")])  # fmt: skip
    letter, told, _ = (ampwatch(one) == 0 and capsys.readouterr().out for one in asked)
    rate = json.loads(told)["learning_rate"]
    assert (rate["recommended"], rate["low"], rate["high"]) == (0.0432, 0.0432, 0.0765)
    look = OpenRuns().snapshot_of(str(path))
    page = (tmp_path / "page.html").read_text("utf-8")
    shown = [letter, verdict_band(look), findings_html(look, look.diagnosis), page]
    for text in map(html.unescape, shown):
        assert "0.0432" in text
        assert f"{estimate.recommended:.3g}" not in text
        assert "the limit lies between 0.0432 and 0.0765" in " ".join(text.split())
        times = " ".join(text.split()).count("head in float32")
        assert times == 0 if kept is None else times >= 2  # what to do, and what was proved
    assert "band: 90 %" not in shown[2]
