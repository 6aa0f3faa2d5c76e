"""A plan says what a launcher can do, and stops where only a person can."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path

import children
import pytest
from written_runs import write_run

import ampwatch
from ampwatch import cli
from ampwatch.codec import encode
from ampwatch.diagnosis import Action, Advice, Diagnosis, Evidence, Finding, RunFacts, Severity
from ampwatch.diagnosis.findings import CUT_OFF, ENDED, LIVE, Verdict
from ampwatch.recovery.change import WORDS, switch_text
from ampwatch.recovery.proof import Proof, Try
from ampwatch.recovery.restart_plan import (
    MOST_RESTARTS,
    SAID_BY_PLAN,
    Next,
    plan_of,
    sentences_of,
)
from ampwatch.rows import Table
from ampwatch.store import RankWriter, open_run, read_info

DOCS = (Path(ampwatch.__file__).parents[1] / "docs" / "restart.md").read_text("utf-8")
LOWER = Advice(
    Action.LOWER, "too high", current=0.1, recommended=0.01, low=0.005, high=0.05, factor=0.1,
    group=0, restart_from_step=62, warmup_steps=40, clip=1.0,
)  # fmt: skip


def run_with(folder, saves=(), events=()):
    """A run of 80 steps and with these saves: pairs of a step and a path."""
    path = write_run(folder, "train", accepted=80)
    rows = [(step, "state-saved", {"of": "checkpoint", "path": saved}) for step, saved in saves]
    rows += [(step, kind, {}) for step, kind in events]
    if rows:
        writer = RankWriter(path, 0, read_info(path))
        columns = {
            "step": [step for step, _, _ in rows],
            "time_ns": [1] * len(rows),
            "kind": [kind for _, kind, _ in rows],
            "detail": [json.dumps(detail) for _, _, detail in rows],
        }
        writer.append(encode(Table.EVENTS, columns))
        last = {"step": [80], "time_ns": [2], "loss": [1.0], "lr_bases": [[0.1, 0.05]]}
        writer.append(encode(Table.STEPS, last))
        writer.close()
    return open_run(path)


def finding(code, severity=Severity.ERROR, first=70, **others):
    given = {"name": "trouble", "last_step": 79, "ranks": (0,), "layer": None,
             "summary": "It broke.", "cause": "", "action": "Mend it."}  # fmt: skip
    return Finding(code=code, severity=severity, first_step=first, **given | others)


def diagnosis(*findings, advice=None, state=ENDED, exception=None, verdict=None):
    failing = any(one.severity is Severity.ERROR for one in findings)
    facts = RunFacts("id", "ampwatch", (0,), 80, None, None, state != CUT_OFF, 1.0, 1.0, 0, 0,
                     state=state, exception=exception)  # fmt: skip
    usual = Verdict.FAILING if failing else Verdict.HEALTHY
    return Diagnosis(facts, verdict or usual, findings, advice or Advice(Action.KEEP, "fine"))


@pytest.mark.parametrize("state", [LIVE, ENDED])
def test_a_run_without_an_error_goes_on(tmp_path, state):
    made = plan_of(run_with(tmp_path), diagnosis(finding("AMP105", Severity.WARNING), state=state))
    assert (made.action, made.exit_code) == (Next.CONTINUE, 0)


def test_a_run_that_was_killed_goes_on_from_its_last_clean_save_with_nothing_changed(tmp_path):
    run = run_with(tmp_path, [(20, "a.pt"), (40, "b.pt")])
    made = plan_of(run, diagnosis(state=CUT_OFF, verdict=Verdict.CUT_OFF))
    assert (made.action, made.exit_code) == (Next.RESTART, 10)
    assert (made.checkpoint.step, made.checkpoint.path) == (40, "b.pt")
    assert made.factor is None
    assert made.restores_scaler


def test_a_program_that_ended_by_an_exception_of_its_own_needs_a_person(tmp_path):
    made = plan_of(run_with(tmp_path), diagnosis(exception="KeyError: 'x'"))
    assert (made.action, made.exit_code) == (Next.STOP, 11)
    assert "KeyError" in made.because


def test_too_high_a_rate_is_lowered_from_the_last_save_before_the_drift(tmp_path):
    run = run_with(tmp_path, [(20, "a.pt"), (60, "b.pt"), (65, "late.pt"), (75, "bad.pt")])
    head = finding("AMP301", evidence=(Evidence("loss", 71, 9.0, 1.0, "before"),))
    made = plan_of(run, diagnosis(head, advice=LOWER)).to_json()
    assert made["checkpoint"] == {"step": 60, "path": "b.pt", "state": "clean"}
    assert made["learning_rate"] == {
        "factor": 0.1, "groups": pytest.approx([0.01, 0.005]), "warmup_steps": 40, "clip": 1.0,
    }  # fmt: skip
    assert len(made["watch_for"]) == 1
    assert made["scaler"]["restore"]


def test_what_was_proved_goes_before_the_estimate(tmp_path):
    tried = Try("lr", 0.02, 300, "healthy", True, "", {}, "x")
    proof = Proof("train", 0.1, 300, (tried,))
    made = plan_of(run_with(tmp_path), diagnosis(finding("AMP301"), advice=LOWER), proof)
    assert made.factor == pytest.approx(0.2)
    assert "proved by reruns of 300 steps" in made.because
    nothing = Proof("train", 0.1, 300, ())
    made = plan_of(run_with(tmp_path), diagnosis(finding("AMP301"), advice=LOWER), nothing)
    assert made.factor == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("kept", "where"),
    [(("float32", "block.3"), {"keep_in_float32": ["block.3"]}),
     (("bfloat16", True), {"settings": {"autocast": "bfloat16"}})],
)  # fmt: skip
def test_what_was_kept_with_a_proved_rate_is_planned_with_it(tmp_path, kept, where):
    came_back = Try("nothing", None, 60, "failing", False, "AMP203 forward-overflow", {}, "x")
    held = Try("lr", 0.02, 300, "healthy", True, "", {}, "x", kept=kept)
    proof = Proof("train", 0.1, 300, (came_back, held), kept=kept)
    unknown = Advice(Action.UNKNOWN, "Not recorded.", current=0.1)
    made = plan_of(run_with(tmp_path), diagnosis(finding("AMP203"), advice=unknown), proof)
    assert made.factor == pytest.approx(0.2)
    assert made.to_json().items() >= where.items()
    assert f"with {switch_text(*kept)}, as proved by reruns of 300 steps" in made.because


def test_a_cure_with_which_the_scripts_own_rate_holds_is_planned_without_another_rate(tmp_path):
    kept = ("autocast-off", True)
    lower, own = (
        Try("lr", rate, 300, "healthy", True, "", {}, "x", kept=kept) for rate in (0.02, 0.1)
    )
    proof = Proof("train", 0.1, 300, (lower, own), kept=kept)
    findings = finding("AMP301"), finding("AMP203", because_of="AMP301", layer="head")
    made = plan_of(run_with(tmp_path), diagnosis(*findings, advice=LOWER), proof)
    assert (made.action, made.factor) == (Next.RESTART, None)
    assert made.settings == {"autocast": "off"}
    assert "the trouble is gone with autocast off" in made.because


def test_a_rate_that_was_proved_of_a_warning_is_for_the_next_start(tmp_path):
    tried = Try("lr", 0.02, 300, "healthy", True, "", {}, "x")
    warned = finding("AMP301", Severity.WARNING)
    made = plan_of(
        run_with(tmp_path, [(20, "a.pt")]),
        diagnosis(warned, advice=LOWER),
        Proof("train", 0.1, 300, (tried,)),
    )
    assert made.action is Next.CONTINUE
    assert made.factor == pytest.approx(0.2)
    assert made.base_rates == pytest.approx((0.02, 0.01))
    assert "as proved by a rerun of 300 steps: learning rate 0.02." in made.because


def test_a_rate_is_not_planned_where_a_plan_cannot_say_what_was_kept_with_it(tmp_path):
    kept = ("of another version", 1.0)
    held = Try("lr", 0.02, 300, "healthy", True, "", {}, "x", kept=kept)
    proof = Proof("train", 0.1, 300, (held,), kept=kept)
    made = plan_of(run_with(tmp_path), diagnosis(finding("AMP301"), advice=LOWER), proof)
    assert (made.action, made.factor) == (Next.STOP, None)


def test_a_rate_that_was_proved_and_failed_all_the_same_is_not_planned_again(tmp_path):
    tried = Try("lr", 0.1, 300, "healthy", True, "", {}, "x")
    proof = Proof("train", 1.0, 300, (tried,))
    made = plan_of(run_with(tmp_path), diagnosis(finding("AMP301"), advice=LOWER), proof)
    assert made.factor == pytest.approx(0.1)
    assert "as estimated" in made.because


@pytest.mark.parametrize(
    ("change", "value", "where", "told"),
    [
        ("float32", "block.3", ("keep_in_float32",), ["block.3"]),
        ("init_scale", 1024.0, ("scaler", "init_scale"), 1024.0),
        ("growth_interval", 2000.0, ("scaler", "growth_interval"), 2000),
        ("clip", 0.5, ("learning_rate", "clip"), 0.5),
        ("autocast-off", True, ("settings",), {"autocast": "off"}),
        ("bfloat16", True, ("settings",), {"autocast": "bfloat16"}),
        ("scaler-off", True, ("settings",), {"scaler": "off"}),
        ("plain-optimizer", True, ("settings",), {"foreach": "off", "fused": "off"}),
    ],
)
def test_a_cure_that_reruns_have_proved_is_planned(tmp_path, change, value, where, told):
    proof = Proof("train", None, 300, (Try(change, value, 300, "healthy", True, "", {}, "x"),))
    run = run_with(tmp_path, [(60, "b.pt")])
    made = plan_of(run, diagnosis(finding("AMP105")), proof)
    assert made.action is Next.RESTART
    assert made.checkpoint.step == 60
    found = made.to_json()
    for key in where:
        found = found[key]
    assert found == told


def test_a_proved_cure_of_a_warning_is_said_for_the_next_start(tmp_path):
    proved = Try("bfloat16", True, 120, "healthy", is_stable=True, told="", loss_at={}, run="r")
    proof = Proof("r", None, 100, (proved,))
    warned = diagnosis(finding("AMP105", Severity.WARNING), verdict=Verdict.WARNING)
    made = plan_of(run_with(tmp_path), warned, proof)
    assert (made.action, dict(made.settings)) == (Next.CONTINUE, {"autocast": "bfloat16"})
    assert (
        "At the next start, as proved by a rerun of 120 steps: autocast to bfloat16."
        in made.because
    )
    assert dict(plan_of(run_with(tmp_path / "b"), warned).settings) == {}


def test_every_change_that_reruns_can_prove_has_a_place_in_a_plan():
    assert set(WORDS) == set(SAID_BY_PLAN)


def test_a_setting_to_switch_is_said_in_words(tmp_path):
    proof = Proof("train", None, 9, (Try("bfloat16", True, 9, "healthy", True, "", {}, "x"),))
    made = plan_of(run_with(tmp_path), diagnosis(finding("AMP105")), proof)
    assert "Set autocast: bfloat16." in sentences_of(made)
    assert "autocast to bfloat16" in made.because


def test_an_error_that_a_mere_warning_explains_is_planned_for(tmp_path):
    head = finding("AMP302", Severity.WARNING)
    broken = finding("AMP204", because_of="AMP302")
    made = plan_of(run_with(tmp_path), diagnosis(head, broken, advice=LOWER))
    assert made.action is Next.RESTART


def test_the_plan_has_the_keys_of_the_contract_and_the_clipping_besides(tmp_path):
    told = plan_of(run_with(tmp_path), diagnosis(finding("AMP301"), advice=LOWER)).to_json()
    assert set(told) == {
        "schema", "action", "checkpoint", "learning_rate", "skip_steps", "scaler",
        "keep_in_float32", "settings", "watch_for", "because",
    }  # fmt: skip
    assert told["settings"] == {}
    assert set(told["learning_rate"]) == {"factor", "groups", "warmup_steps", "clip"}
    assert set(told["scaler"]) == {"init_scale", "growth_interval", "restore"}


def test_a_layer_that_leaves_the_format_is_kept_in_float32(tmp_path):
    run = run_with(tmp_path, [(60, "b.pt"), (75, "bad.pt")])
    made = plan_of(run, diagnosis(finding("AMP203", layer="block.3")))
    assert made.action is Next.RESTART
    assert made.keep_in_float32 == ("block.3",)
    assert made.checkpoint.step == 60
    of_the_whole = plan_of(run, diagnosis(finding("AMP203", layer="(root)")))
    assert of_the_whole.action is Next.STOP


def test_rare_bad_batches_are_left_out(tmp_path):
    evidence = tuple(Evidence("input_amax", step, 1e9, 3.0, "before") for step in (30, 31, 70))
    bad = finding("AMP206", Severity.WARNING, first=30, evidence=evidence)
    broken = finding("AMP207", first=70, because_of="AMP206")
    made = plan_of(run_with(tmp_path, [(20, "a.pt")]), diagnosis(broken, bad))
    assert made.skip_steps == ((30, 31), (70, 70))
    assert made.checkpoint.path == "a.pt"


@pytest.mark.parametrize("code", ["AMP401", "AMP207", "AMP506", "AMP601", "AMP104"])
def test_what_no_launcher_can_mend_stops_with_the_findings_own_advice(tmp_path, code):
    made = plan_of(run_with(tmp_path, [(20, "a.pt")]), diagnosis(finding(code)))
    assert made.action is Next.STOP
    assert "Mend it." in made.because


def test_a_run_that_was_started_again_often_enough_stops(tmp_path):
    again = [(10 * n, "started") for n in range(MOST_RESTARTS + 1)]
    made = plan_of(run_with(tmp_path, events=again), diagnosis(finding("AMP301"), advice=LOWER))
    assert made.action is Next.STOP
    assert "a person must look" in made.because


def test_the_plan_is_said_in_words(tmp_path):
    run = run_with(tmp_path, [(60, "b.pt")])
    words = "\n".join(sentences_of(plan_of(run, diagnosis(finding("AMP301"), advice=LOWER))))
    assert "From the checkpoint of step 60, b.pt (clean)." in words
    assert "Set the peak learning rate to " in words
    assert "Warm up for 40 steps." in words
    assert "Clip the gradient norm at 1." in words


def test_the_command_prints_json_and_exits_with_the_plans_code(tmp_path, capsys):
    path = write_run(tmp_path, "well", accepted=60)
    assert cli.run(["plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["action"] == "continue"
    assert ampwatch.plan(path).action is Next.CONTINUE
    assert cli.run(["plan", str(tmp_path / "nothing")]) == 2


def programs(folder, python):
    """A folder with the programs that the page's loops call, as this checkout has them."""
    bin_ = folder / "bin"
    bin_.mkdir()
    names = {"ampwatch": "-m ampwatch", "python": "", "torchrun": "-m torch.distributed.run"}
    for name, words in names.items():
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{python}" {words} "$@"\n')
        (bin_ / name).chmod(stat.S_IRWXU)
    return bin_


def loop_done(folder, mark, arguments):
    """A loop of the page, run to its end with our script as train.py."""
    loop = re.search(rf"<!-- {mark} -->\n```bash\n(.*?)```", DOCS, re.DOTALL)
    assert loop is not None
    script = Path(__file__).with_name("restarted_training.py")
    root = str(Path(ampwatch.__file__).parents[1])
    told = children.forking({**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"})
    told["PATH"] = f"{programs(folder, children.python(told))}:{os.environ['PATH']}"
    told.pop("AMPWATCH_DIR", None)
    text = loop[1].replace("train.py", f"{script} {arguments}")
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=told, capture_output=True, text=True, timeout=350
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((folder / "plan.json").read_text())["action"] == "continue"
    return ampwatch.open_run(folder / "ampwatch-runs" / "train")


@pytest.mark.slow_trainings
@pytest.mark.timeout(400)
def test_the_shell_loop_of_the_page_brings_a_failing_training_to_a_healthy_end(tmp_path):
    run = loop_done(tmp_path, "loop", "5.0")
    assert run.steps.num_rows == 800  # failed, and once more
    assert ampwatch.diagnose(run).verdict.value in {"healthy", "warning"}


@pytest.mark.slow_ranks
@pytest.mark.timeout(400)
def test_the_torchrun_loop_of_the_page_brings_two_failing_ranks_to_a_healthy_end(tmp_path):
    run = loop_done(tmp_path, "torchrun", "5.0 200")
    assert run.ranks == (0, 1)
    assert run.read(Table.STEPS, ("step",), 1).num_rows >= 400
    assert ampwatch.diagnose(run).verdict.value in {"healthy", "warning"}
