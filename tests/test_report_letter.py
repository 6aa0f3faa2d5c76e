"""The letter: its parts, its order, and what it does under bad circumstances."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import types

import pyarrow as pa
import pytest
from rich.console import Console
from structured_runs import write_structured
from written_runs import event_columns, more, write_run

from ampwatch import codec, diagnose, open_run, store
from ampwatch.diagnosis import RULES, Action, Advice, Severity
from ampwatch.diagnosis.rule import title_of, titles_of
from ampwatch.recovery.restart_plan import plan_of, sentences_of
from ampwatch.report.letter import letter_of
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
    at_most = " ".join(shown(run, with_advice(diagnosis, **advice | {"recommended": 0.02})).split())
    assert "not tested. Estimated limit of the learning rate: 0.01 to 0.05." in at_most
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
