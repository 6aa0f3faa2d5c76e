"""A run whose process was really killed is cut off, wherever it is told of; and nowhere green."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from subprocess import PIPE

import children
import pytest
from alert_parts import wait_for

import ampwatch
from ampwatch import store
from ampwatch.cli import run as ampwatch_command

pytestmark = pytest.mark.skipif(os.name == "nt", reason="nothing is killed by -9 there")

STEPS = 120
# Healthy steps, or such as have no finite loss; then it waits to be killed.
TRAINING = """
import sys, torch, ampwatch
torch.manual_seed(0)
name, factor = sys.argv[1], float(sys.argv[2])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
with ampwatch.attach(scaler, model, run=name, endpoint="off") as watch:
    for step in range(120):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(16, 8)).square().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Two runs, a healthy and a failing one, what was said of them, and then they were killed."""
    folder = tmp_path_factory.mktemp("runs")
    environment = {
        **os.environ, "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
        "AMPWATCH_DIR": str(folder), "XDG_STATE_HOME": str(folder / ".state"),
    }  # fmt: skip
    live = {}
    for name, factor in (("well", "1.0"), ("ill", "nan")):
        child = children.start(
            "-c", TRAINING, name, factor, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        assert child.stdout.readline() == "ready\n", child.communicate()[1]
        wait_for(lambda path=folder / name: steps_in(path) == STEPS)
        live[name] = ampwatch.diagnose(ampwatch.open_run(folder / name))
        child.send_signal(signal.SIGKILL)
        child.communicate()
    return folder, live


def steps_in(path: Path) -> int:
    return store.summarize(path).steps


def said(capsys, *words: object) -> str:
    assert ampwatch_command([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_while_it_is_written_it_is_healthy(killed):
    live = killed[1]["well"]
    assert (live.verdict.value, live.run.state) == ("healthy", "live")
    assert "AMP902" not in {finding.code for finding in live.findings}
    assert killed[1]["ill"].verdict.value == "failing"


def test_once_killed_report_json_and_html_say_so(killed, capsys, tmp_path):
    path = killed[0] / "well"
    lines = said(capsys, "report", path).splitlines()
    assert lines[0].startswith("CUT OFF")
    assert lines[2].startswith("Stopped at step 119 without closing the run")
    body = json.loads(said(capsys, "report", path, "--json"))
    assert (body["verdict"], body["run"]["state"]) == ("cut off", "cut off")
    told = {finding["code"]: finding["summary"] for finding in body["findings"]}
    assert told["AMP902"] == "Stopped at step 119 without closing the run."
    said(capsys, "report", path, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "Stopped at step 119 without closing the run" in page
    assert "--tone:var(--aw-advice)" in page


def test_a_failing_run_stays_failing_and_is_cut_off_too(killed, capsys):
    path = killed[0] / "ill"
    title = said(capsys, "report", path).splitlines()[0]
    assert title.startswith("FAILING")
    assert title.endswith("cut off")
    body = json.loads(said(capsys, "report", path, "--json"))
    assert (body["verdict"], body["run"]["state"]) == ("failing", "cut off")


def test_the_lists_say_so(killed, capsys, monkeypatch):
    import run_list
    import streamlit as st
    from run_list import RunEntries

    listed = said(capsys, "list", killed[0])
    assert "healthy" not in listed
    assert "failing, cut off" in " ".join(listed.split())
    monkeypatch.setenv("AMPWATCH_DASHBOARD_DIRS", str(killed[0]))
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.0)
    st.cache_resource.clear()
    shown = run_list.current_list()
    assert [(choice.live, choice.cut_off) for choice in shown.choices] == [(False, True)] * 2
    entries, (well,) = RunEntries(), [one for one in shown.choices if one.name == "well"]
    entries.request([well])
    wait_for(lambda: entries.entry_of(well))
    assert entries.entry_of(well).entry.verdict == "cut off"


def test_the_band_says_so_and_is_not_green(killed, monkeypatch):
    from open_runs import OpenRuns
    from verdict_band import verdict_band

    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.0)
    shown = verdict_band(OpenRuns().snapshot_of(str(killed[0] / "well")))
    assert "CUT OFF" in shown
    assert "Stopped at step 119 without closing the run. No problems found until then." in shown
    assert "--aw-healthy" not in shown
    assert "Resume from your last checkpoint" in shown


def test_the_band_of_a_failing_run_that_was_killed_says_dead_first(killed, monkeypatch, capsys):
    from open_runs import OpenRuns
    from verdict_band import verdict_band

    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.0)
    shown = verdict_band(OpenRuns().snapshot_of(str(killed[0] / "ill")))
    heading = re.search(r'role="heading"[^>]*>(.*?)</div>', shown)[1]
    assert re.sub("<[^>]+>", "", heading).startswith("Stopped at step ")
    assert heading.endswith(" without closing the run.")
    lines = said(capsys, "report", killed[0] / "ill").splitlines()
    assert any(line.startswith("Stopped at step ") for line in lines[2:5])
    title = lines[2].partition("  (")[0]
    assert f"<dt>seen</dt><dd>{title}. " in shown  # the log does not show why
    assert 'class="aw-age"' in shown  # its browser counts on


def test_what_an_exception_ended_is_not_cut_off():
    from diagnosis.hand_built import event_table, scaled_run

    from ampwatch.follow import State
    from ampwatch.follow.liveness import with_state

    raised = event_table([(29, "exception", {"type": "KeyError", "message": "x", "fatal": True})])
    told = ampwatch.diagnose(scaled_run([False] * 30, events=raised, clean_end=False))
    assert (told.run.state, told.run.exception) == (None, "KeyError")
    assert with_state(State.LOST, told).run.state == "ended"
    empty = ampwatch.diagnose(scaled_run([False] * 30, clean_end=False))
    assert with_state(State.LOST, empty).verdict.value == "cut off"
