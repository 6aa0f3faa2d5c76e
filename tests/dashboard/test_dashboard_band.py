"""The band says of a run what its report says first."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import time
import types

import numpy as np
import pytest
from written_runs import event_columns, write_run

from ampwatch import codec, diagnose, open_run, store
from ampwatch.cli import run as ampwatch
from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, Severity, Verdict
from ampwatch.diagnosis.findings import RunFacts
from ampwatch.follow import State
from ampwatch.report.letter import Letter, letter_of
from ampwatch.report.letter_facts import Sentence
from ampwatch.rows import Table


@pytest.mark.parametrize(
    ("accepted", "verdict", "first"),
    [(100, "HEALTHY", "No problems found in 100 steps."),
     (18, "INCOMPLETE", "No problems found in 18 steps, too few to judge the learning rate."),
     (0, "INCOMPLETE", "The log ends before anything could be judged.")],
)  # fmt: skip
def test_report_page_and_band_begin_with_the_same_sentence(
    accepted, verdict, first, tmp_path, capsys
):
    from verdict_band import verdict_band

    path = write_run(tmp_path, accepted=accepted)
    assert ampwatch(["report", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(verdict)
    assert lines[2] == first
    assert ampwatch(["report", str(path), "-o", str(tmp_path / "page.html")]) == 0
    assert first in (tmp_path / "page.html").read_text(encoding="utf-8")
    run = open_run(path)
    look = types.SimpleNamespace(
        diagnosis=diagnose(run), is_live=False, state=State.ENDED, info=run.info,
        last_time_ns=run.last_time_ns, ending=lambda: "",
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
            letter=lambda: letter_of("one", run, diagnosis), ending=lambda: "",
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
     (Action.UNKNOWN, "Learning rate: it may be the cause; this log cannot tell."),
     (Action.LOWER, "Start from scratch with a peak learning rate of 0.01 instead of 0.05.")],
)  # fmt: skip
def test_the_band_says_what_the_report_says_of_the_learning_rate(action, words, shown_of):
    rate = {"current": 0.05, "recommended": 0.01, "factor": 0.2}
    advice = Advice(action, "", **(rate if action is Action.LOWER else {}))
    assert words in re.sub("<[^>]+>", "", shown_of(diagnosis_of(advice)))


def test_a_killed_run_with_a_warning_says_dead_and_where_to_resume(shown_of):
    warned = diagnosis_of(Advice(Action.KEEP, ""), finding("AMP303", Severity.WARNING))
    cut_off = dataclasses.replace(
        warned, verdict=Verdict.WARNING, run=dataclasses.replace(warned.run, state="cut off")
    )
    text = " ".join(re.sub("<[^>]+>", " ", shown_of(cut_off)).split())
    assert "Stopped at step 99 without closing the run." in text
    assert text.index("Stopped at") < text.index("cause") < text.index("Resume from your last")
    assert text.index("Resume from") < text.index("Mend it.")


@pytest.mark.parametrize(
    ("probability", "word", "sure"),
    [(0.61, "Possibly", "possible"), (0.78, "Probably", "likely"),
     (0.97, "Learning rate", "very likely")],
)  # fmt: skip
def test_a_title_is_as_sure_of_the_cause_as_the_sentence_below_it(
    probability, word, sure, shown_of
):
    advice = Advice(
        Action.LOWER, "", current=0.05, recommended=0.01, factor=0.2, probability=probability,
        signals=3,
    )  # fmt: skip
    band = shown_of(diagnosis_of(advice, finding("AMP301")))
    heading = re.search(r'role="heading"[^>]*>(.*?)</div>', band)[1]
    assert heading.startswith(word)
    assert f"the learning rate, {sure} (" in band
    assert heading.lower().endswith("learning rate too high")


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
             ["report", str(path), "-o", str(tmp_path / "page.html")])  # fmt: skip
    letter, told, _ = (ampwatch(one) == 0 and capsys.readouterr().out for one in asked)
    rate = json.loads(told)["learning_rate"]
    assert (rate["recommended"], rate["low"], rate["high"]) == (0.0432, 0.0432, 0.0765)
    look = OpenRuns().snapshot_of(str(path))
    page = (tmp_path / "page.html").read_text("utf-8")
    band = verdict_band(look)
    shown = [letter, band, band + findings_html(look, look.diagnosis), page]
    for text in map(html.unescape, shown):
        assert "0.0432" in text
        assert f"{estimate.recommended:.3g}" not in text
        assert "the limit lies between 0.0432 and 0.0765" in " ".join(text.split())
        times = " ".join(text.split()).count("head in float32")
        assert times == 0 if kept is None else times >= 2  # what to do, and what was proved
    assert "band: 90 %" not in shown[2]


def test_code_in_what_to_do_is_shown_as_code():
    from verdict_band import _sentence

    step = Sentence.of('Run it in float32: `run_in_float32(model, "<b>")`, once.')
    assert "<code>run_in_float32(model, &quot;&lt;b&gt;&quot;)</code>, once." in _sentence(step)


@pytest.mark.parametrize(
    ("sure", "label"),
    [("Cause: not known; the above is what the log shows.", "seen"),
     ("Cause: certain. It was seen directly, not inferred.", "cause")],
)  # fmt: skip
def test_what_was_seen_is_not_called_the_cause_where_that_is_not_known(sure, label):
    from verdict_band import _label

    about, how_sure = Sentence.of(""), (Sentence.of(sure),)
    letter = Letter("failing", "run", about, "title", (), (), (), (), how_sure, (), (), (), ())
    assert _label(letter) == label


@pytest.mark.parametrize(
    ("fatal", "says"), [(False, "stopped by Ctrl-C <"), (True, "ended <")]
)  # fmt: skip
def test_the_band_says_that_a_run_was_stopped_by_hand(tmp_path, fatal, says):
    import open_runs
    from verdict_band import verdict_band

    path = write_run(tmp_path, accepted=100, ended=False)
    raised = {"exception": "KeyboardInterrupt", "message": "", "fatal": fatal}
    writer = store.RankWriter(path, 0)
    events = event_columns([(100, "exception", raised), (100, "ended", {})], time.time_ns())
    writer.append(codec.encode(Table.EVENTS, events))
    writer.close()
    runs = open_runs.OpenRuns()
    deadline = time.monotonic() + 60
    while not runs.snapshot_of(str(path)).is_judged and time.monotonic() < deadline:
        time.sleep(0.05)
    assert says in verdict_band(runs.snapshot_of(str(path)))


def test_the_band_of_a_live_run_names_the_headlines_that_were_replaced(tmp_path):
    from verdict_band import verdict_band

    run = open_run(write_run(tmp_path, accepted=100))
    look = types.SimpleNamespace(
        diagnosis=diagnose(run), is_live=True, state=State.LIVE, info=run.info, ranks=(0,),
        last_time_ns=time.time_ns(), curves=types.SimpleNamespace(last_step_ns=0, columns={
            "step_time_ms": np.array([1.0])}),
        verdict=types.SimpleNamespace(earlier=(finding("AMP206", Severity.WARNING),)),
    )  # fmt: skip
    told = re.sub("<[^>]+>", "", verdict_band(look))
    assert "Said earlier, and withdrawn since: " in told
    assert "(AMP206)." in told
    assert "Said earlier" not in verdict_band(
        types.SimpleNamespace(**vars(look) | {"is_live": False})
    )


def test_a_headline_that_stands_beside_another_is_not_called_earlier(tmp_path):
    from verdict_band import _earlier

    both = (finding("AMP103"), finding("AMP206", Severity.WARNING))
    look = types.SimpleNamespace(
        is_live=True, ranks=(0,), diagnosis=diagnosis_of(Advice(Action.UNKNOWN, ""), *both),
        verdict=types.SimpleNamespace(earlier=(both[1], finding("AMP301"))),
    )  # fmt: skip
    assert _earlier(look).count("AMP") == 1
    assert "AMP301" in _earlier(look)


def test_a_headline_that_is_a_remark_by_now_is_not_said_to_be_gone():
    from verdict_band import _earlier

    both = (finding("AMP103"), finding("AMP202", Severity.INFO))
    look = types.SimpleNamespace(
        is_live=True, ranks=(0,), diagnosis=diagnosis_of(Advice(Action.UNKNOWN, ""), *both),
        verdict=types.SimpleNamespace(earlier=(both[1], finding("AMP301"))),
    )  # fmt: skip
    gone, paled = _earlier(look).split(". ")
    assert gone.startswith("Said earlier, replaced by the above: ")
    assert "AMP301" in gone
    assert paled.startswith("Said earlier, now a remark: ")
    assert "AMP202" in paled


def test_what_follows_at_two_removes_is_not_said_to_be_found_besides():
    from verdict_band import _others

    told = diagnosis_of(
        Advice(Action.UNKNOWN, ""), finding("AMP306"), finding("AMP301", because_of="AMP306"),
        finding("AMP103", because_of="AMP301"), finding("AMP602"),
    )  # fmt: skip
    assert told.effects == {"AMP301", "AMP103"}
    assert _others(told) == "Also found: AMP602 a-name."


@pytest.mark.parametrize(
    ("told", "words"),
    [({}, "from step 80 on"),
     ({"steps": (80,)}, "at step 80"),
     ({"steps": (80, 120)}, "at steps 80, 120"),
     ({"steps": tuple(range(1500, 1508))},
      "at steps 80, …, 1,502, 1,503, 1,504, 1,505, 1,506, 1,507")],
)  # fmt: skip
def test_the_band_says_at_which_steps_a_headline_was_seen(told, words, shown_of):
    shown = shown_of(diagnosis_of(Advice(Action.UNKNOWN, ""), finding("AMP206", **told)))
    assert f"<dt>when</dt><dd>{words}</dd>" in re.sub("</?b>", "", shown)


def test_the_band_names_the_step_once_where_its_opening_does():
    from verdict_band import _when

    assert _when(finding("AMP301"), [Sentence.of("Training broke down at step 70.")]) == ""


def test_of_a_run_that_was_cut_off_the_band_still_says_when_its_finding_was_seen(shown_of):
    told = diagnosis_of(Advice(Action.UNKNOWN, ""), finding("AMP206", Severity.WARNING))
    facts = dataclasses.replace(told.run, state="cut off")
    shown = re.sub("</?b>", "", shown_of(dataclasses.replace(told, run=facts)))
    assert "Stopped at step " in shown
    assert "<dd>from step 80 on</dd>" in shown
