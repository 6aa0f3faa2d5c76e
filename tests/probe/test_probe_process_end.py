"""How processes end and what is known of it then: each test is a real child process."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import children
import pytest

from ampwatch.probe import fatal_exceptions
from ampwatch.probe.fatal_exceptions import reason

CHECKOUT = Path(fatal_exceptions.__file__).parents[2]

# `watch()` is what a watch does at its beginning; `said` is a line for each end that was noticed.
PREAMBLE = """
import os, sys, threading
from pathlib import Path
import torch
from torch import nn
from ampwatch.probe import fatal_exceptions
from ampwatch.probe.fatal_exceptions import describe

OUT = Path(sys.argv[1])
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(8, 2))
names = {id(module): name or "(root)" for name, module in model.named_modules()}

def train():
    model(torch.zeros(2, 4))

def watch():
    reported_before = fatal_exceptions.last_reported()
    def say():
        error = fatal_exceptions.ended_by(reported_before, names)
        words = error and describe(error, names)
        with OUT.open("a") as out:
            out.write(f"{words.exception}: {words.layer}\\n" if words else "well\\n")
    return fatal_exceptions.at_end(say)
"""


def environment(folder: Path) -> dict[str, str]:
    paths = {"PYTHONPATH": f"{CHECKOUT}{os.pathsep}{folder}", "IPYTHONDIR": str(folder)}
    return {**os.environ, **paths, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def run(tmp_path) -> Callable[..., tuple[list[str], int, str]]:
    """Runs a script: what its watches said at their end, its exit code, and its stderr."""
    numbers = itertools.count()

    def run_script(body: str, *interpreter: str) -> tuple[list[str], int, str]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        script, out = folder / "train.py", folder / "said"
        script.write_text(PREAMBLE + body)
        done = children.run(
            *(interpreter or (script,)), out, env=environment(folder), cwd=folder,
            fresh=bool(interpreter),
        )  # fmt: skip
        said = out.read_text().splitlines() if out.exists() else []
        return said, done.returncode, done.stderr

    return run_script


def test_an_uncaught_exception_is_known_at_exit_whatever_hook_prints_it(run):
    said, code, stderr = run(
        "watch()\nsys.excepthook = lambda *_: print('mine', file=sys.stderr)\ntrain()"
    )
    assert said == ["RuntimeError: 1"]
    assert (code, stderr.strip()) == (1, "mine")


@pytest.mark.slow_starts
def test_programs_started_by_file_and_by_module_name_end_alike(run):
    for interpreter in (("train.py",), ("-m", "train")):
        said, code, stderr = run("watch()\nopen('/nonexistent/data')", *interpreter)
        assert (said, code) == (["FileNotFoundError: None"], 1)
        assert stderr.count("Traceback") == 1


def test_an_exit_with_a_code_leaves_no_exception_behind(run):
    said, code, _ = run("watch()\nsys.exit(3)")
    assert (said, code) == (["well"], 3)


def test_a_handled_exception_is_no_end(run):
    said, code, _ = run("watch()\ntry:\n    train()\nexcept RuntimeError:\n    pass")
    assert (said, code) == (["well"], 0)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent differently there")
def test_ctrl_c_is_known_and_the_process_ends_by_it_as_without_us(run):
    body = "import signal\nwatch()\nos.kill(os.getpid(), signal.SIGINT)\nthreading.Event().wait()"
    said, code, _ = run(body)
    assert (said, code) == (["KeyboardInterrupt: None"], -signal.SIGINT)


def test_an_exception_in_a_thread_is_the_threads_affair(run):
    body = "watch()\nt = threading.Thread(target=train)\nt.start()\nt.join()"
    said, code, stderr = run(body)
    assert (said, code) == (["well"], 0)
    assert "Exception in thread" in stderr


def test_a_watch_that_was_called_off_says_nothing(run):
    said, _, _ = run("cancel = watch()\ncancel()\ncancel()\ntrain()")
    assert said == []


def test_ours_runs_while_threads_and_the_machinery_of_processes_still_live(run):
    body = """
from multiprocessing import util
stop = threading.Event()
courier = threading.Thread(target=stop.wait, daemon=True)
courier.start()
def last():
    OUT.write_text(f"{courier.is_alive()} {util._exiting}")
fatal_exceptions.at_end(last)
"""
    said, _, _ = run(body)
    assert said == ["True False"]


# --- sessions: what was reported last need not be the end -----------------------------------

SESSION = """
import code
session = code.InteractiveInterpreter(globals())
def type_in(line):
    session.runsource(line)
"""


def test_an_exception_shown_before_the_watch_began_is_not_its_end(run):
    body = SESSION + "type_in('train()')\nassert sys.last_value\nwatch()\n"
    said, _, _ = run(body)
    assert said == ["well"]


def test_in_a_session_only_what_came_out_of_the_training_ended_it(run):
    body = SESSION + "sys.ps1 = '>>> '\nwatch()\ntype_in(LINE)\n"
    for line, expected in (("train()", "RuntimeError: 1"), ("1 / 0", "well")):
        said, _, _ = run(f"LINE = {line!r}\n" + body)
        assert said == [expected]


def test_what_a_host_showed_and_survived_is_not_the_end_of_a_script(run):
    """A test runner, for one, leaves there the last failure that it went on from."""
    body = SESSION + "watch()\ntype_in('raise KeyError(1)')\n"
    said, code, _ = run(body)
    assert (said, code) == (["well"], 0)


@pytest.mark.slow_starts
def test_a_script_kept_open_at_a_prompt_is_a_session(run):
    said, _, _ = run("watch()\ntrain()", "-i", "train.py")
    assert said == ["RuntimeError: 1"]


@pytest.mark.skipif(not importlib.util.find_spec("IPython"), reason="IPython is not installed")
def test_in_a_notebooks_interpreter_a_typo_in_a_later_cell_is_not_the_trainings_end(run):
    body = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(user_ns=globals())
shell.run_cell("train()")      # stale: it failed before the watch began
watch()
shell.run_cell(CELL)
assert sys.last_value is not None
"""
    for cell, expected in (("train()", "RuntimeError: 1"), ("misspelt_name", "well")):
        said, _, stderr = run(f"CELL = {cell!r}\n" + body)
        assert said == [expected], stderr


# --- children -------------------------------------------------------------------------------

has_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@has_fork
def test_a_forked_childs_end_is_not_ours(run):
    body = """
watch()
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
"""
    said, _, _ = run(body)
    assert said == ["well"]


def test_a_training_in_a_process_of_multiprocessing_is_known_to_fail(run):
    body = """
import multiprocessing
def work():
    watch()
    train()
if __name__ == "__main__":
    for method in {"spawn", multiprocessing.get_all_start_methods()[0]}:
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 1
"""
    said, code, stderr = run(body)
    assert code == 0, stderr
    assert set(said) == {"RuntimeError: 1"}


def test_a_training_in_a_process_of_multiprocessing_is_known_to_end_well(run):
    body = """
import multiprocessing
if __name__ == "__main__":
    process = multiprocessing.Process(target=watch)
    process.start()
    process.join()
"""
    said, code, stderr = run(body)
    assert (said, code) == (["well"], 0), stderr


@has_fork
def test_a_process_started_by_torch_tells_what_its_exit_hides(run):
    body = """
import torch.multiprocessing as mp
def work(rank):
    watch()
    train()
if __name__ == "__main__":
    try:
        mp.start_processes(work, nprocs=1, start_method="fork")
    except mp.ProcessRaisedException:
        sys.exit(7)
"""
    said, code, stderr = run(body)
    assert (said, code) == (["RuntimeError: 1"], 7), stderr


# --- leaving a `with` block -----------------------------------------------------------------


def left_by(leave) -> BaseException:
    try:
        leave()
    except BaseException as error:
        return error
    pytest.fail("this was to raise")


@pytest.mark.parametrize("code", [None, 0])
def test_an_exit_that_reports_success_is_an_end_like_any_other(code):
    assert reason(left_by(lambda: sys.exit(code))) is None


def test_an_exit_that_reports_failure_is_recorded_with_what_stands_behind_it():
    plain = left_by(lambda: sys.exit("no data"))
    assert reason(plain) is plain

    def handled(suppress):
        try:
            raise KeyError("deep")
        except KeyError:
            if suppress:
                raise SystemExit(1) from None
            sys.exit(1)

    assert isinstance(reason(left_by(lambda: handled(False))), KeyError)
    assert isinstance(reason(left_by(lambda: handled(True))), SystemExit)


def test_a_closed_generator_is_fine_and_anything_else_is_not():
    assert reason(None) is None
    assert reason(GeneratorExit()) is None
    for error in (ValueError("x"), KeyboardInterrupt()):
        assert reason(error) is error
