"""`ampwatch run`: what a script says and how it ends, byte for byte as alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from run_parts import environment, ran, script, the_run, watched, without_ours

WARNS = """
    import importlib.util, warnings
    warnings.simplefilter("always")
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            torch.optim.Optimizer.__init__(self, parameters, {"lr": 0.1})
        def step(self):
            pass
    with warnings.catch_warnings(record=True) as caught:
        torch.amp.GradScaler("cuda")
    print([(one.filename, one.lineno) for one in caught if "CUDA" in str(one.message)])
    scaler, model, optimizer = parts(2.0**10)
    torch.optim.SGD([model.last.bias] * 2, lr=0.1)
    Own([model.last.bias] * 2)
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
    train(2, scaler, model, optimizer)
    scaler.scale(model(torch.randn(4, 8)).sum()).backward(create_graph=True)
    try:
        torch.optim.SGD([], lr=0.1)
    except ValueError:
        import traceback
        traceback.print_exc()
    def fail():
        model(torch.randn(4, 8)).backward()
    fail()
"""


@pytest.mark.slow_starts
def test_a_warning_of_torchs_names_the_scripts_line_and_a_traceback_only_its_own(tmp_path):
    path = script(tmp_path, WARNS)
    alone, under = ran(tmp_path, path.name), watched(tmp_path, path.name)
    assert under.returncode == alone.returncode == 1
    assert without_ours(under.stderr) == alone.stderr
    assert under.stdout == alone.stdout
    assert "duplicate parameters" in alone.stderr
    assert f"{path}:" in alone.stderr.partition("lr_scheduler.step()")[0]
    run = the_run(tmp_path)
    assert len(run.steps) >= 2
    assert any("RuntimeError" in (event["detail"] or "") for event in run.events.to_pylist())


def test_an_import_of_torch_that_fails_says_what_it_says_alone(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import no_such_thing\n")
    (tmp_path / "t.py").write_text("import torch\n")
    alone, under = ran(tmp_path, "t.py"), watched(tmp_path, "t.py")
    assert under.returncode == alone.returncode == 1
    assert under.stderr == alone.stderr
    assert "no_such_thing" in alone.stderr


CLOSED = """
    import os, subprocess
    train(3, *parts(2.0**10))
    print("told")
    told = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]
    for number in (1, 2):  # would be in a log of ours, if that had taken the stream's place
        try:
            told.append(os.write(number, b"."))
        except OSError as error:
            told.append(str(error))
    child = subprocess.run(["sh", "-c", "echo child"], stderr=subprocess.DEVNULL)
    with open("told.txt", "w") as file:
        print(told, child.returncode, file=file)
    sys.exit(5)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell's way to say it")
@pytest.mark.slow_starts
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_script_without_a_stream_runs_and_ends_as_alone(tmp_path, closed):
    """Alone it trains nothing: what it is told of its streams needs no torch."""
    path = script(tmp_path, CLOSED)
    bare = tmp_path / "bare.py"
    bare.write_text("import sys\ntrain = parts = lambda *_: ()\n" + textwrap.dedent(CLOSED))
    told = []
    for words in (bare.name, f"-m ampwatch run --name it {path.name}"):
        command = f"{sys.executable} {words} {closed}"
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment(tmp_path), capture_output=True,
            text=True, timeout=150, check=False,
        )  # fmt: skip
        said = (tmp_path / "told.txt").read_text()
        told.append((done.returncode, done.stdout, without_ours(done.stderr), said))
    assert told[1] == told[0]
    assert told[0][0] == 5
    assert len(the_run(tmp_path).steps) == 3
