"""Every exit code of the table, by a real command in a process of its own."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
import termios
import time
from pathlib import Path
from subprocess import PIPE

import children
import pytest
from structured_runs import write_structured
from written_runs import write_run

import ampwatch
from ampwatch.exit_codes import MEANINGS, ExitCode

DOCS = Path(__file__).parents[2] / "docs"
# Diverges with any learning rate.
HOPELESS = """
import torch
model, scaler = torch.nn.Linear(4, 1), torch.amp.GradScaler("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(8, 4)).square().mean() * (float("inf") if step > 20 else 1.0)
    optimizer.zero_grad(); scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
"""
DEFECT = "import ampwatch.cli as c; c.run = lambda words: 1 / 0; c.main([])"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run for each of the codes."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, "healthy")
    write_run(folder, "failing", skipped=30)
    write_run(folder, "short", accepted=1)
    write_structured(folder, "too-high", rate=0.1, fails=True)
    (folder / "hopeless.py").write_text(HOPELESS)
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    return folder


@pytest.fixture
def start(runs, tmp_path):
    """Starts a program of Python among the runs."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
        "AMPWATCH_DIR": str(runs),
        "AMPWATCH_ENDPOINT": "off",
        "AMPWATCH_CONFIG_DIR": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }

    def begin(*words, fresh=False):
        pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
        return children.start(*words, env=environment, cwd=runs, fresh=fresh, **pipes)

    return begin


CASES = {
    ExitCode.DONE: [("report", "failing"), ("plan", "healthy"), ("report", "healthy", "--fail-on",
                    "warning"), ()],
    ExitCode.FINDING: [("report", "failing", "--fail-on", "error"),
                       ("report", "healthy", "failing", "--fail-on", "warning")],
    ExitCode.REFUSED: [("report", "nothing"), ("report", "broken"), ("reprot",),
                       ("prove", "healthy"), ("fleet", "nowhere"), ("explain", "AMP999")],
    ExitCode.NOT_JUDGED: [("report", "short", "--fail-on", "error"),
                          ("report", "healthy", "short", "--fail-on", "error")],
    ExitCode.PARTLY_DONE: [("publish", ".", "place")],
    ExitCode.RESTART: [("plan", "too-high"), ("plan", "too-high", "--json")],
    ExitCode.PERSON: [("plan", "failing")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "words"),
    [(code, words) for code, each in CASES.items() for words in each],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else value.name,
)
def test_a_command_exits_with_the_code_of_what_happened(start, code, words):
    child = start("-m", "ampwatch", *words)
    _, err = child.communicate(timeout=120)
    assert child.returncode == code, err
    assert "Traceback" not in err


def test_what_reruns_have_shown_counts_though_the_last_had_no_time_to_begin(start, runs):
    is_later = "not any('try-1' in value for value in os.environ.values())"
    (runs / "slower.py").write_text(f"import os, time; time.sleep(99 * ({is_later})){HOPELESS}")
    command = ["--", children.python(), "slower.py"]
    words = ["--set", "lr=0.01", "--steps", "40", "--budget", "15s", *command]
    child = start("-m", "ampwatch", "prove", "failing", *words)
    out, err = child.communicate(timeout=150)
    assert re.findall("rerun .|before its first step", err) == [
        "rerun 1", "rerun 2", "before its first step"
    ]  # fmt: skip
    assert child.returncode == ExitCode.NOTHING_HELD, err
    assert "0.01" in out


def test_a_defect_has_a_code_that_no_answer_has(start):
    child = start("-c", DEFECT, fresh=True)  # what is uncaught ends a fork in the nursery's way
    _, err = child.communicate(timeout=60)
    assert child.returncode == ExitCode.DEFECT
    assert "ZeroDivisionError" in err


def unread_bytes(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)],
)
def test_a_signal_ends_a_command_with_the_code_that_shells_use(start, number, code):
    child = start("-c", "import sys, ampwatch.cli as c; print('begun', flush=True); "
                  "c.main(['report', '-'])")  # fmt: skip
    assert child.stdout.readline() == "begun\n"
    child.stdin.write("step 1 loss 2.0\n")  # and no end: it goes on reading
    child.stdin.flush()
    while unread_bytes(child.stdin):
        time.sleep(0.01)
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == code


def test_a_script_that_is_watched_keeps_its_own_code(start, runs):
    (runs / "ends.py").write_text("raise SystemExit(33)")
    child = start("-m", "ampwatch", "run", "-q", "ends.py")
    child.communicate(timeout=60)
    assert child.returncode == 33


def test_each_code_has_a_meaning_and_stands_in_the_docs_so():
    assert set(MEANINGS) == set(ExitCode)
    assert len({meaning for _, meaning in MEANINGS.values()}) == len(ExitCode)
    page = (DOCS / "command_line.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert rows == [
        (str(code.value), who if who == "all" else f"`{who.replace(', ', '`, `')}`", meaning)
        for code, (who, meaning) in MEANINGS.items()
    ]
