"""Commands that run until they are told to end, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import children
import impatient_cli
import psutil
import pytest
from written_runs import event_columns, step_columns, write_run

import ampwatch
from ampwatch import codec, open_run, store
from ampwatch.cli.demo import SCENARIOS
from ampwatch.recorder import Recorder
from ampwatch.rows import Table

PATIENCE_S = 150.0


@pytest.fixture
def environment(tmp_path):
    """The user's folders, all inside this test's own."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "AMPWATCH_CONFIG_DIR": str(tmp_path / "config"),
        "AMPWATCH_DIR": str(tmp_path / "runs"),
        "AMPWATCH_ENDPOINT": "off",
        "OMP_NUM_THREADS": "1",
    }


def start(words, environment, program=("-m", "ampwatch")):
    return children.start(
        *program, *words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(child):
    """Its exit code, stdout and stderr; it must end by itself."""
    try:
        out, err = child.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise
    return child.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recorder_ends_politely_when_asked(tmp_path, environment, number):
    child = start(
        ["record", "--bind", f"ipc://{tmp_path}/feed", "-o", tmp_path / "out"], environment
    )
    first = child.stderr.readline()
    child.send_signal(number)
    code, _, err = finish(child)
    assert "Recording from ipc://" in first
    assert code == 0
    assert "on disk" in err
    assert "Traceback" not in err


def test_a_taken_port_is_an_error_that_names_the_flag_which_takes_another(tmp_path, environment):
    with Recorder("tcp://127.0.0.1:*", tmp_path / "first") as first:
        words = ["record", "--bind", first.endpoint, "-o", tmp_path / "second"]
        code, _, err = finish(start(words, environment, [impatient_cli.PROGRAM]))
        assert code == 2
        assert err.startswith(f"ampwatch: {first.endpoint} is taken")
        assert "--any-port" in err
        child = start([*words, "--any-port"], environment, [impatient_cli.PROGRAM])
        said = [child.stderr.readline(), child.stderr.readline()]
        child.send_signal(signal.SIGTERM)
        code, _, _ = finish(child)
    assert code == 0
    assert "your trainers on this machine find it" in said[0]
    assert said[1].startswith("Recording from tcp://127.0.0.1:")
    assert first.endpoint not in said[1]


def test_watching_ends_when_the_run_ends(tmp_path, environment):
    path = write_run(tmp_path, accepted=20, ended=False, age_s=0)
    child = start(["watch", path, "--every", "0.1"], environment)
    first = child.stdout.readline()
    writer = store.RankWriter(path, 0)
    now = time.time_ns()
    writer.append(codec.encode(Table.STEPS, step_columns(20, 10, now, first=20)))
    writer.append(codec.encode(Table.EVENTS, event_columns([(50, "ended", {})], now)))
    writer.close()
    code, out, err = finish(child)
    assert "step 20" in first
    assert "step 50" in out
    assert code == 0
    assert f"ampwatch report {path}" in err


def test_ctrl_c_while_watching_is_no_error(tmp_path, environment):
    child = start(["watch", write_run(tmp_path, ended=False, age_s=0)], environment)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    code, _, err = finish(child)
    assert (code, err) == (0, "You stopped watching; the training goes on.\n")


@pytest.mark.slow_browser
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_dashboard_that_ends_in_any_way_leaves_no_server_behind(tmp_path, environment, name):
    """Nor its recorder's process, whose own end it survives."""
    pytest.importorskip("streamlit", reason="no streamlit here to serve with")
    listening = environment | {"AMPWATCH_ENDPOINT": "tcp://127.0.0.1:*"}
    with socket.create_server(("127.0.0.1", 0)) as free:  # no other dashboard will look for it
        port = free.getsockname()[1]
    child = start(["dashboard", tmp_path, "--no-browser", "--port", port], listening)
    line = next(line for line in child.stderr if "localhost:" in line)
    [server] = psutil.Process(child.pid).children()
    [killed] = server.children()
    killed.kill()
    while not (recorders := [one for one in server.children() if one != killed]):
        time.sleep(0.02)
    assert answers(line)
    child.send_signal(getattr(signal, name, signal.SIGTERM))  # Windows has no SIGKILL
    psutil.wait_procs([server, *recorders], timeout=PATIENCE_S)
    assert not any(one.is_running() for one in (server, *recorders))
    assert not answers(line)
    finish(child)


def answers(line):
    """Whether anybody listens at the address that a line names."""
    port = int(re.search(r"localhost:(\d+)", line)[1])
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
        return True
    return False


def test_a_port_that_is_taken_is_said(tmp_path, environment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["dashboard", tmp_path, "--no-browser", "--port", port]
        code, _, err = finish(start(words, environment))
    assert code == 2
    assert (
        err
        == f"ampwatch: port {port} is taken: choose another, or omit --port to get a free one.\n"
    )


@pytest.mark.slow_starts
def test_the_demo_trains_prints_the_report_and_says_where_the_run_is(tmp_path, environment):
    [scenario] = [one for one in SCENARIOS if one.name == "forward-overflow"]
    words = ["demo", "--no-dashboard", "--scenario", scenario.name, "-o", tmp_path / "d"]
    code, out, err = finish(start(words, children.forking(environment)))
    assert code == 0
    assert "FAILING" in out
    assert "blocks.1.act" in out
    path = tmp_path / "d" / "demo-forward-overflow"
    assert f"ampwatch report {path}" in " ".join(err.split())
    assert open_run(path).steps.num_rows == scenario.steps


@pytest.mark.parametrize(
    ("name", "fresh"),
    [  # one in the processes that a user's command starts
        pytest.param("lr-too-high", True, marks=pytest.mark.slow_starts),
        pytest.param("one-bad-rank", False, marks=pytest.mark.slow_ranks),
    ],
)
def test_ctrl_c_in_the_demo_ends_the_training_too_and_keeps_the_run(
    tmp_path, environment, name, fresh
):
    environment = environment if fresh else children.forking(environment)
    before = set(psutil.Process().children(recursive=True))
    words = ["demo", "--scenario", name, "--no-dashboard", "-o", str(tmp_path / "d")]
    child = subprocess.Popen(
        [children.python(environment), "-m", "ampwatch", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    path = tmp_path / "d" / f"demo-{name}"
    while child.poll() is None and not (path.is_dir() and open_run(path).steps.num_rows):
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground gets it
    code, _, err = finish(child)
    # CPython's `-m` ends by the signal itself if that came while a string was executed, by which
    # dataclasses are made: to a shell both are 130.
    assert code in {130, -signal.SIGINT}, err
    assert open_run(path).steps.num_rows > 0
    assert set(psutil.Process().children(recursive=True)) == before
