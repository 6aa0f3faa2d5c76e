"""`report -` and `import -`: a log on standard input, from a pipe or typed into a terminal.

The processes, pipes and terminals are real.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import children
import impatient_cli
import pytest

import ampwatch

LOSSES = (11.7, 8.85, 8713, 15806)
LOG = "".join(f"step {n}00 loss {loss} lr 0.1\n" for n, loss in enumerate(LOSSES))
NORMAL = ("-m", "ampwatch")

needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")


@pytest.fixture
def environment(tmp_path):
    """The user's folders, all inside this test's own."""
    (tmp_path / "temporary").mkdir()
    return {
        **os.environ,
        "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
        "AMPWATCH_DIR": str(tmp_path / "runs"),
        "TMPDIR": str(tmp_path / "temporary"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
    }


@pytest.fixture
def start(environment):
    """Starts a command; if it still runs at the end of the test, it is killed."""
    started = []

    def begin(*words, program=NORMAL, **streams):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        started.append(children.start(*program, *words, env=environment, **streams))
        return started[-1]

    yield begin
    for child in started:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def terminal():
    """A pseudo-terminal: the end that a person types into, and the program's."""
    person, program = os.openpty()
    yield person, program
    os.close(person)
    os.close(program)


def left_in(tmp_path):
    """What a command left in the folder of runs and in the one of temporary files."""
    return [
        path.name
        for folder in ("runs", "temporary")
        for path in (tmp_path / folder).glob("*")
    ]  # fmt: skip


def screen(person, until):
    """What the terminal shows, up to this text."""
    shown = ""
    while until not in shown:
        assert select.select([person], [], [], children.PATIENCE_S)[0], shown
        shown += os.read(person, 1 << 16).decode()
    return shown


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_piped_log_is_reported_and_leaves_nothing_behind(start, tmp_path, encoding):
    paste = f"第1轮 训练\r\n\x1b[32m{LOG}\x1b[0m"
    path = tmp_path / "paste"
    path.write_bytes(paste.encode(encoding))
    with path.open("rb") as stream:
        out, err = start("report", "-", stdin=stream.fileno()).communicate()
    assert "Probably learning rate too high" in out
    assert "FAILING   standard input   " in out
    assert re.search(r"ampwatch explain AMP\d+ - ", out)
    assert "ampwatch report - --all" in out
    assert err == ""
    assert left_in(tmp_path) == []


def test_a_piped_log_is_judged_beside_a_file(start, tmp_path):
    path = tmp_path / "other.log"
    path.write_text(LOG)
    out, _ = start("report", "-", path.name, stdin=subprocess.PIPE, cwd=tmp_path).communicate(LOG)
    assert "FAILING  standard input  " in out
    assert "FAILING  other.log  " in out


def test_a_piped_log_is_imported_as_a_run(start, tmp_path):
    child = start("import", "-", stdin=subprocess.PIPE)
    child.communicate(LOG)
    assert child.returncode == 0
    assert left_in(tmp_path) == ["standard-input"]


@pytest.mark.parametrize("command", ["report", "import"])
@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", (), "standard input is empty."),
        ("Hello.\n", (), "No training log found in standard input (no line tells of"),
        ("Hello.\n", ("--map", "loss=x"), "No training log found in standard input: no lines"),
        ("step,loss\n1,2\n3,4\n", ("--map", "loss=x"), "standard input has no 'x'"),
        ("\x01" * 99, (), "standard input is neither text nor a known kind of file"),
    ],
)
def test_what_is_no_log_is_one_sentence_about_standard_input(start, command, text, words, said):
    child = start(command, "-", *words, stdin=subprocess.PIPE)
    out, err = child.communicate(text)
    assert (child.returncode, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_closed_standard_input_is_one_sentence(environment):
    words = [sys.executable, *NORMAL, "report", "-"]
    closed = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *words], env=environment, capture_output=True, check=False
    )  # fmt: skip
    assert closed.returncode == 2
    assert b"Standard input is closed" in closed.stderr
    assert b"Traceback" not in closed.stderr


@needs_terminal
@pytest.mark.parametrize("text", [LOG, ""])
def test_a_terminal_says_what_it_waits_for_and_ends_with_the_first_ctrl_d(start, terminal, text):
    person, program = terminal
    child = start("report", "-", stdin=program, stderr=program)
    assert "press Enter and Ctrl-D" in screen(person, "leaves.")
    os.write(person, text.encode() + b"\x04")
    out, _ = child.communicate(timeout=children.PATIENCE_S)
    assert child.returncode == (0 if text else 2)
    assert ("Probably learning rate too high" in out) is bool(text)


@needs_terminal
@pytest.mark.parametrize("typed", [LOG, ""])
def test_ctrl_c_at_a_terminal_leaves_nothing_behind(start, terminal, tmp_path, typed):
    person, program = terminal
    child = start("import", "-", stdin=program, stderr=program)
    screen(person, "leaves.")
    os.write(person, typed.encode())
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=children.PATIENCE_S)
    assert (child.returncode, out) == (130, "")
    assert left_in(tmp_path) == []


@needs_terminal
def test_a_pipe_without_an_end_is_mentioned_to_a_person_and_left_with_ctrl_c(
    start, terminal, tmp_path
):
    person, program = terminal
    child = start(
        "import", "-",
        program=[impatient_cli.PROGRAM], stdin=subprocess.PIPE, stderr=program,
    )  # fmt: skip
    written = threading.Event()

    def write_on():
        with contextlib.suppress(BrokenPipeError, ValueError):
            while not written.wait(0.01):
                child.stdin.write(LOG)
                child.stdin.flush()

    writing = threading.Thread(target=write_on)
    writing.start()
    assert "ampwatch watch --text -" in screen(person, "--text -")
    time.sleep(0.5)  # into the import itself
    child.send_signal(signal.SIGINT)
    assert child.wait(children.PATIENCE_S) == 130
    written.set()
    writing.join()
    assert child.stdout.read() == ""
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("command", ["report", "import"])
def test_help_names_the_clipboard_of_each_system(start, command):
    out, _ = start(command, "--help").communicate()
    assert f"  xclip -o -sel c | ampwatch {command} - " in out
    assert "on macOS pbpaste, in PowerShell Get-Clipboard" in " ".join(out.split())
    assert "- reads a pipe" in " ".join(out.split())
