"""The letter: its parts, its order, and what it does under bad circumstances."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import types

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from structured_runs import write_structured
from written_runs import event_columns, more, write_run

from ampwatch import codec, diagnose, open_run, store
from ampwatch.diagnosis import RULES, Action, Advice, Finding, Severity, Verdict
from ampwatch.diagnosis.rule import title_of, titles_of
from ampwatch.importers import import_log
from ampwatch.recovery.restart_plan import plan_of, sentences_of
from ampwatch.report.letter import begun_as_told, letter_of
from ampwatch.report.letter_facts import Sentence
from ampwatch.report.letter_to_do import command_with_rate
from ampwatch.report.terminal_report import LetterView
from ampwatch.rows import Table


def shown(run, diagnosis=None, width=80, name=None, *, terminal=False):
    """The letter as a console of this width prints it."""
    diagnosis = diagnosis or diagnose(run)
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal)
    letter = letter_of(name or run.info.name, run, diagnosis)
    console.print(LetterView(letter), highlight=False, crop=False)
    return console.file.getvalue()


def with_advice(diagnosis, **advice):
    values = {"action": Action.LOWER, "because": "", "current": 0.1, "recommended": 0.013}
    return dataclasses.replace(diagnosis, learning_rate=Advice(**(values | advice)))


def test_every_rule_has_a_title_without_a_number():
    for title in (titles_of(rule.code)["Title"] for rule in RULES):
        words = title.replace("fp16", "").replace("bf16", "").replace("fp8", "")
        assert not any(letter.isdigit() for letter in words.replace("float32", ""))


def test_a_title_names_the_layer_and_the_rank_only_where_the_finding_does(tmp_path):
    one = diagnose(open_run(write_run(tmp_path, skipped=30))).findings[0]
    of_layer = dataclasses.replace(one, code="AMP203", layer="blocks.0.up")
    assert title_of(of_layer) == "The output of layer blocks.0.up is inf or NaN in the forward pass"
    assert "layer" not in title_of(dataclasses.replace(of_layer, layer=None))
    of_rank = dataclasses.replace(one, code="AMP602", ranks=(3,))
    assert title_of(of_rank, (0, 1, 2, 3)) == "Rank 3 alone overflows"
    assert title_of(of_rank, (3,)) == "One rank alone overflows"


def test_the_letter_says_what_to_do_before_what_happened(tmp_path):
    run = open_run(write_structured(tmp_path, "one", rate=0.1, fails=True))
    lines = shown(run).splitlines()
    assert lines[2] == "Learning rate too high  (AMP301)"
    assert lines.index("What to do") < lines.index("What happened") < lines.index("How sure")
    assert lines[lines.index("What to do") + 1].startswith(
        "  1. Start from scratch with a peak learning"
    )


def test_training_breaks_down_where_the_learning_rate_leapt(tmp_path):
    run = open_run(write_structured(tmp_path, "one", rate=0.1, fails=True))
    steady = with_advice(diagnose(run), leapt_at_step=20)
    # Its rows show no leap there: a learning rate that climbed did so over many steps.
    assert "had gone from" not in " ".join(shown(run, steady).split())
    log = tmp_path / "leap.csv"
    rows = [f"{at},{1 + 9 * (at >= 20)},{0.1 + 0.3 * (at >= 20):.1f}" for at in range(60)]
    log.write_text("\n".join(["step,loss,lr", *rows]))
    run = open_run(import_log(log, tmp_path / "out"))
    told = " ".join(shown(run, with_advice(diagnose(run), leapt_at_step=20)).split())
    assert "broke down after the learning rate had gone from 0.1 to 0.4 at step 20." in told
    assert "Then restart from your last checkpoint before step 20." in told


@pytest.mark.parametrize(
    ("action", "is_said"), [("Clip.", True), ("Lower it. Use a lower learning rate.", False)]
)
def test_nobody_is_told_to_lower_a_learning_rate_that_nothing_points_to(tmp_path, action, is_said):
    run = open_run(write_run(tmp_path, skipped=30))
    told = with_advice(diagnose(run), action=Action.NOT_THE_CAUSE)
    head = dataclasses.replace(told.findings[0], action=action)
    told = dataclasses.replace(told, findings=(head, *told.findings[1:]))
    assert ("nothing recorded points to it" in shown(run, told)) == is_said


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_however_wide_the_terminal_no_line_is_wider_and_none_ends_in_blanks(tmp_path, width):
    run = open_run(write_structured(tmp_path, "one", rate=0.1, fails=True))
    for line in shown(run, width=width).splitlines():
        assert line == line.rstrip()
        assert len(line) <= width or " " not in line.strip()


def test_a_letter_with_ten_findings_lists_the_gravest_and_counts_the_rest(tmp_path):
    run = open_run(write_run(tmp_path, skipped=30))
    diagnosis = diagnose(run)
    head = diagnosis.findings[0]
    more_findings = [
        dataclasses.replace(head, code=f"AMP5{n:02}", name=f"fault-{n}", severity=Severity.WARNING)
        for n in range(10)
    ]
    text = shown(run, dataclasses.replace(diagnosis, findings=(head, *more_findings)))
    assert "And 5 more." in " ".join(text.split())
    assert len(text.splitlines()) <= 40


def test_a_letter_on_64_ranks_says_so(tmp_path):
    path = write_run(tmp_path)
    for rank in range(1, 64):
        more(path, accepted=5, first=0, rank=rank, ended=True)
    text = shown(open_run(path))
    assert "64 ranks" in text.splitlines()[0]
    assert len(text.splitlines()) <= 40


def test_names_of_300_characters_leave_the_letter_readable(tmp_path):
    long = "layer" + "x" * 295
    run = open_run(write_run(tmp_path, skipped=30))
    diagnosis = diagnose(run)
    head = dataclasses.replace(diagnosis.findings[0], code="AMP203", layer=long)
    text = shown(run, dataclasses.replace(diagnosis, findings=(head,)), name="run" + "y" * 297)
    assert long in text
    assert len(text.splitlines()[0]) < 120
    assert len(text.splitlines()) <= 40


def test_a_run_of_nothing_but_nan_has_a_letter(tmp_path):
    path = write_run(tmp_path, accepted=0)
    nan = [math.nan] * 40
    more(path, accepted=40, first=0, ended=True, loss=nan, grad_norm=nan, scale=nan)
    text = shown(open_run(path))
    assert text.splitlines()[0].startswith("FAILING")
    assert "What to do" in text


def test_the_exception_that_ended_the_program_is_named_wherever_it_was_raised(tmp_path):
    path = write_run(tmp_path)
    writer = store.RankWriter(path, 0)
    raised = {"exception": "ValueError", "message": "nan", "kind": "Linear", "layer": "head"}
    writer.append(codec.encode(Table.EVENTS, event_columns([(99, "exception", raised)], 0)))
    writer.close()
    assert "the program ends by ValueError" in shown(open_run(path))


def test_names_are_shown_and_never_obeyed(tmp_path):
    run = open_run(write_run(tmp_path, skipped=30))
    text = shown(run, name="[red]x[/]\x1b[31mred", terminal=True)
    assert "[red]x[/]" in text
    assert "\x1b[31mred" not in text


# --- where to restart -----------------------------------------------------------------------------


def saved_at(tmp_path, step):
    path = write_structured(tmp_path, "one", rate=0.1, fails=True)
    writer = store.RankWriter(path, 0)
    detail = {"of": "scaler", "path": "ckpt/a.pt"}
    writer.append(codec.encode(Table.EVENTS, event_columns([(step, "state-saved", detail)], 0)))
    writer.close()
    return open_run(path)


@pytest.mark.parametrize("step", [20, None])
def test_letter_and_plan_name_the_same_place_to_restart_from(tmp_path, step):
    run = (
        open_run(write_structured(tmp_path, "one", rate=0.1, fails=True))
        if step is None
        else saved_at(tmp_path, step)
    )
    diagnosis = diagnose(run)
    letter, plan = letter_of("one", run, diagnosis), plan_of(run, diagnosis)
    first, told = str(letter.to_do[0]), " ".join(sentences_of(plan))
    if step is None:
        assert first.startswith("Start from scratch with a peak learning rate of ")
        assert plan.checkpoint is None
        assert "Start from scratch" in told
    else:
        where = f"checkpoint of step {step} (ckpt/a.pt)"
        assert first.startswith(f"Restart from the {where} with a peak learning rate of ")
        assert plan.checkpoint.step == step
        assert f"checkpoint of step {step}, ckpt/a.pt" in told
        assert "ampwatch.set_learning_rate(optimizer, " in str(letter.to_do[1])


# --- the command with the new learning rate -------------------------------------------------------


def begun_by(*argv, config=None, world_size=1):
    info = types.SimpleNamespace(command=argv, config=config or {}, world_size=world_size)
    return types.SimpleNamespace(info=info)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (("train.py", "--lr", "0.1"), "python train.py --lr 0.07"),
        (("train.py", "--lr=0.1", "--epochs", "3"), "python train.py --lr=0.07 --epochs 3"),
        (("train.py", "--learning-rate", "1e-1"), "python train.py --learning-rate 0.07"),
        (("train.py", "optimizer.lr=0.1"), "python train.py optimizer.lr=0.07"),
        (("train.py", "--lr", "0.2"), None),  # another value: not what was in use
        (("train.py", "--dropout", "0.1"), None),
    ],
)
def test_where_the_command_shows_the_learning_rate_it_is_printed_with_the_new_one(argv, command):
    assert command_with_rate(begun_by(*argv), 0.1, "0.07") == command


def test_a_secret_is_never_printed_with_a_command():
    run = begun_by("train.py", "--api-key", "***", "--lr", "0.1")
    assert command_with_rate(run, 0.1, "0.07") == "--lr 0.07"
    several = begun_by("train.py", "--lr", "0.1", world_size=8)
    assert command_with_rate(several, 0.1, "0.07") == "--lr 0.07"


def test_where_only_the_configuration_shows_it_the_setting_is_printed():
    run = begun_by("train.py", config={"optim": {"lr": 0.1}, "seed": 1})
    assert command_with_rate(run, 0.1, "0.07") == "optim.lr=0.07 (in the run's configuration)"


def test_the_command_is_a_step_to_do(tmp_path):
    path = write_structured(tmp_path, "one", rate=0.1, fails=True)
    told = json.loads((path / "run.json").read_text("utf-8"))
    told["command"] = ["train.py", "--lr", "0.1", "--password", "hunter2"]
    (path / "run.json").write_text(json.dumps(told), "utf-8")
    run = open_run(path)
    text = shown(run)
    assert "--lr 0.0" in text


# --- facts ----------------------------------------------------------------------------------------


def test_a_sentence_shows_its_facts_and_knows_them(tmp_path):
    run = open_run(write_run(tmp_path, skipped=30))
    letter = letter_of("one", run, diagnose(run))
    facts = [fact for sentence in letter.sentences for fact in sentence.facts]
    assert {fact.text for fact in facts} >= {"130", "65,536"}
    assert str(Sentence.of("a ", facts[0])) == f"a {facts[0].text}"


def test_what_is_estimated_is_called_so_and_what_was_tested_too(tmp_path):
    run = open_run(write_structured(tmp_path, "one", rate=0.1, fails=True))
    diagnosis = diagnose(run)
    advice = {"recommended": 0.009, "low": 0.01, "high": 0.05}
    estimated = " ".join(shown(run, with_advice(diagnosis, **advice)).split())
    assert "not tested. The learning rate of 0.009 is estimated." in estimated
    assert "0.05" not in estimated  # of an interval that holds too seldom
    tested = shown(run, with_advice(diagnosis, low=0.01, high=0.05, proved_steps=200))
    assert "The learning rate held in a rerun of 200 steps" in " ".join(tested.split())
    assert "not tested" not in tested


def test_evidence_that_the_rows_do_not_show_is_not_printed(tmp_path):
    run = open_run(write_run(tmp_path, skipped=30))
    diagnosis = diagnose(run)
    evidence = dataclasses.replace(
        diagnosis.findings[0].evidence[0], signal="grad_norm", step=50, value=123456.0
    )
    head = dataclasses.replace(diagnosis.findings[0], evidence=(evidence,))
    assert "120,000" not in shown(run, dataclasses.replace(diagnosis, findings=(head,)))
    rows = run.read(Table.STEPS, ("step", "grad_norm"), 0)
    at = rows.column("step").to_pylist().index(50)
    assert isinstance(rows.column("grad_norm")[at], pa.Scalar)


def test_a_live_run_that_takes_no_step_any_more_is_to_be_stopped(tmp_path):
    run = open_run(write_run(tmp_path, skipped=60))
    over = diagnose(run)
    live = dataclasses.replace(over, run=dataclasses.replace(over.run, state="live"))
    first = run.steps.to_pydict()["skipped"].index(True)
    assert f"1. Stop this run: every step since step {first} was skipped." in shown(run, live)
    assert "Stop this run" not in shown(run, over)
    log = tmp_path / "lost.csv"
    log.write_text(
        "\n".join(["step,loss", *(f"{at},{1.0 if at < 100 else math.nan}" for at in range(200))])
    )
    run = open_run(import_log(log, tmp_path / "out"))
    live = diagnose(run)
    live = dataclasses.replace(live, run=dataclasses.replace(live.run, state="live"))
    assert "1. Stop this run: no loss since step 100 is finite." in shown(run, live)


def test_a_letter_without_trouble_says_why_steps_were_skipped(tmp_path):
    lines = shown(open_run(write_run(tmp_path, skipped=0))).splitlines()
    assert not any("skipped:" in line for line in lines)


def test_a_loss_at_the_end_is_said_to_be_a_median_beside_the_last_value(tmp_path):
    text = " ".join(shown(open_run(write_structured(tmp_path, "one", rate=0.01))).split())
    assert re.search(
        r"The loss was \S+ at first and \S+ at the end \(median of its last values\)", text
    )


def test_what_is_drawn_of_the_headline_begins_at_the_step_that_the_letter_names(tmp_path):
    run = open_run(write_structured(tmp_path, "one", rate=0.1, fails=True))
    diagnosis = diagnose(run)
    letter = letter_of("one", run, diagnosis)
    head = begun_as_told(diagnosis, letter).headline
    assert f"broke down at step {head.first_step:,}" in str(letter.opening[0])
    assert head == dataclasses.replace(diagnosis.headline, first_step=letter.begin)
    calm = diagnose(open_run(write_run(tmp_path, "calm")))
    assert begun_as_told(calm, letter_of("calm", open_run(tmp_path / "calm"), calm)) is calm


@pytest.mark.parametrize(("scale_fell", "begins"), [(96, 96), (20, 100), (120, 100)])
def test_what_follows_from_an_overflow_may_be_seen_before_the_layer_is(
    tmp_path, scale_fell, begins
):
    run = open_run(write_run(tmp_path, skipped=30))
    diagnosis = diagnose(run)
    head = dataclasses.replace(diagnosis.findings[0], code="AMP203", first_step=100)
    follows = dataclasses.replace(head, code="AMP103", because_of="AMP203", first_step=scale_fell)
    diagnosis = dataclasses.replace(
        diagnosis, findings=(head, follows), learning_rate=Advice(Action.UNKNOWN, "")
    )
    told = begun_as_told(diagnosis, letter_of("one", run, diagnosis))
    assert told.headline.first_step == begins
    assert told.findings[1].first_step == max(scale_fell, begins)  # no lane begins before its cause


@pytest.mark.parametrize("rises", [True, False])
def test_a_log_without_step_numbers_is_said_to_have_none_where_a_step_is_named(tmp_path, rises):
    losses = [2 - n / 50 + 9 * (rises and n > 30) for n in range(1, 41)]
    lines = [f"{{'loss': {loss:.2f}, 'learning_rate': 1e-05, 'epoch': {n / 100}}}"
             for n, loss in enumerate(losses)]  # fmt: skip
    (tmp_path / "log.txt").write_text("\n".join([*lines, "  8%|8  | 402/4851 [44:12<8:07, 6s/it]"]))
    run = open_run(import_log(tmp_path / "log.txt", tmp_path / "runs"))
    assert run.steps["step"].to_pylist() == list(range(40))
    text = " ".join(shown(run).split())
    assert "40 entries" in text
    assert ("step 30 the loss" in text) == rises
    assert ("This log has no step numbers" in text) == rises
    assert "no step numbers" not in shown(open_run(write_run(tmp_path, "own")))


@pytest.mark.parametrize(("growth", "ending", "told"), [
    (1.1, [2.0] * 8, "Training broke down at step 30"),
    (1.0, [0.3] * 3, "step 30 the loss rises from 0.21 (its lowest before) to 0.3 at the end"),
])  # fmt: skip
def test_a_loss_that_rose_is_told_with_its_step_and_one_word_on_its_cause(
    tmp_path, growth, ending, told
):
    losses = [0.5 - n / 100 for n in range(30)] + ending
    rows = [f"{n},{loss:.4f},{1e-3 * growth**n}" for n, loss in enumerate(losses)]
    (tmp_path / "log.csv").write_text("\n".join(["step,loss,lr", *rows]))
    run = open_run(import_log(tmp_path / "log.csv", tmp_path / "runs"))
    text = " ".join(shown(run).split())
    assert told in text
    by_rate = growth > 1
    assert ("Cause: likely the learning rate." in text) == by_rate
    assert ("This log does not show why." in text) != by_rate


def test_a_validation_loss_that_is_nan_has_a_letter(tmp_path):
    lines = []
    for epoch in range(1, 6):
        lines += [f"\titers: {n}, epoch: {epoch} | loss: {0.8 / (epoch + n / 1000):.7f}"
                  for n in range(100, 1200, 200)]  # fmt: skip
        lines += [
            f"Epoch: {epoch}, Steps: 1143 | Train Loss: {0.4 / epoch:.7f} Vali Loss: nan",
            "Validation loss decreased (nan --> nan).  Saving model ...",
        ]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    run = open_run(import_log(tmp_path / "log.txt", tmp_path / "runs"))
    assert any(piece.signal == "metric" for one in diagnose(run).findings for piece in one.evidence)
    assert "nan" in shown(run).lower()


@pytest.mark.parametrize("is_recorded", [True, False])
def test_nobody_is_asked_to_record_what_the_run_records(tmp_path, is_recorded):
    path = write_run(tmp_path, accepted=100)
    if not is_recorded:
        path = write_run(tmp_path, "two", accepted=0)
        more(path, 100, first=0, grad_norm=[None] * 100)
    run = open_run(path)
    head = Finding(
        "AMP307", "a-name", Severity.ERROR, 80, None, (0,), None, "It rose.", "",
        "Look at the batches. Record the gradient norm: it tells more.",
    )  # fmt: skip
    told = dataclasses.replace(diagnose(run), findings=(head,), verdict=Verdict.FAILING)
    asked = any("Record the gradient norm" in str(one) for one in letter_of("x", run, told).to_do)
    assert asked != is_recorded


def test_a_loss_that_drifted_up_before_anything_else_showed_broke_down_where_it_left_its_level(
    tmp_path,
):
    """From step 650 on it grows by 2 % a step; the finding begins where steps are skipped."""
    path = write_run(tmp_path, accepted=0)
    step = np.arange(800)
    noise = np.random.default_rng(0).normal(1, 0.1, 800)
    loss = 0.3 * noise * 1.02 ** np.maximum(step - 650, 0)
    more(path, 800, 60, first=0, loss=np.concatenate([loss, np.full(60, np.nan)]))
    run = open_run(path)
    head = Finding("AMP301", "a-name", Severity.ERROR, 800, None, (0,), None, "It rose.", "", "")
    told = with_advice(diagnose(run), action=Action.LOWER, current=0.1, recommended=0.05)
    told = dataclasses.replace(told, findings=(head,), verdict=Verdict.FAILING)
    assert 640 <= letter_of("x", run, told).begin < 680
