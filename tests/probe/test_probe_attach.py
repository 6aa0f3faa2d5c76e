"""What `attach` says: where the run is, once and to nobody's harm; and what its arguments are."""

from __future__ import annotations

import inspect
import io
import os
import sys
from importlib import import_module

import children
import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.errors import AmpwatchWarning, AttachError
from ampwatch.probe.watch import NoWatch, Watch


@pytest.fixture(autouse=True)
def _speaking(monkeypatch, tmp_path):
    monkeypatch.delenv("AMPWATCH_QUIET")
    monkeypatch.setattr(import_module("ampwatch.probe.watch"), "_told_in", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))


def parts():
    model = nn.Linear(4, 2)
    return torch.amp.GradScaler("cpu"), model, torch.optim.SGD(model.parameters(), lr=0.1)


def said_of(capsys, scaler=None, **settings):
    """What attaching writes to stderr."""
    scaler = scaler or torch.amp.GradScaler("cpu")
    with ampwatch.attach(scaler, nn.Linear(4, 2), **{"run": "one", **settings}):
        captured = capsys.readouterr()
    assert captured.out == capsys.readouterr().err == ""
    return captured.err


# -- where the run is ------------------------------------------------------------------------------


def test_one_line_says_where_the_run_is_and_how_to_see_it(capsys):
    assert said_of(capsys) == (
        "ampwatch: watching; see `ampwatch report one` (in ./ampwatch-runs), "
        "or `ampwatch dashboard`\n"
    )


def test_a_run_elsewhere_is_named_by_its_path(capsys, tmp_path):
    assert "`ampwatch report own/one`, or" in said_of(capsys, log_dir=tmp_path / "own")


@pytest.mark.parametrize(("value", "lines"), [("1", 0), ("true", 0), ("0", 1), ("", 1)])
def test_the_environment_decides_whether_it_is_said(capsys, monkeypatch, value, lines):
    monkeypatch.setenv("AMPWATCH_QUIET", value)
    assert said_of(capsys).count("\n") == lines


def test_a_watch_that_is_there_and_one_that_is_switched_off_say_nothing(capsys, monkeypatch):
    scaler, model, _ = parts()
    with ampwatch.attach(scaler, model):
        capsys.readouterr()
        with pytest.warns(AmpwatchWarning, match="watched already") as caught:
            ampwatch.attach(scaler, model)
        assert caught[0].filename == __file__
    monkeypatch.setenv("AMPWATCH", "0")
    assert isinstance(ampwatch.attach(*parts()[:2]), NoWatch)
    assert capsys.readouterr().err == ""


def test_other_ranks_say_nothing(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert said_of(capsys) == ""


def test_where_no_log_can_be_made_the_warning_is_enough(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(AmpwatchWarning, match="there will be no log"):
        assert said_of(capsys, log_dir=tmp_path / "file") == ""


class Refusing(io.StringIO):
    """A stderr of the program's own that takes nothing."""

    def write(self, _):
        raise OSError("gone")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Refusing(), object()])
def test_a_stderr_that_takes_nothing_is_no_error(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    with ampwatch.attach(*parts()[:2]) as watch:
        assert watch.errors.failures == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16", "cp437"])
def test_a_name_that_stderr_cannot_show_is_written_with_escapes(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding, errors="strict"))
    with ampwatch.attach(*parts()[:2], run="läuft-☃"):
        said = raw.getvalue().decode(encoding)
    assert "watching; see `ampwatch report 'l" in said
    assert said.count("\n") == 1
    assert ("☃" if encoding == "utf-16" else "\\u2603") in said


IN_A_FORK = """
import os, torch, ampwatch
def begin():
    ampwatch.attach(torch.amp.GradScaler("cpu"), torch.nn.Linear(2, 1)).close()
if BEFORE: begin()
if os.fork() == 0:
    begin()
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks are POSIX")
@pytest.mark.parametrize("before", [True, False])
def test_a_fork_says_nothing_if_its_parent_has(tmp_path, before):
    """Where the parent only starts the training, its fork is the one that trains, and tells."""
    done = children.run("-c", f"BEFORE = {before}\n{IN_A_FORK}", cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("watching") == done.stderr.count("\n") == 1
    assert len(ampwatch.list_runs(tmp_path / "ampwatch-runs")) == 1 + before


# -- its arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("model", "attach needs a scaler: attach(scaler, model), or attach(None, model, optimi"),
        ("", "attach needs a scaler"),
        ("model, optimizer=optimizer", "attach needs a scaler"),
        ("model=model", "attach needs a scaler"),
        ("scaler", "attach needs the model, too: attach(scaler, model), or attach(scaler, None)"),
        ("scaler=None", "attach needs the model, too"),
        (
            "scaler, model, optimizer",
            "pass the optimizer by name: attach(scaler, model, optimizer=optimizer).",
        ),
        ("scaler, model, 'night-3'", "pass everything else by its name"),
    ],
)
def test_too_few_and_too_many_arguments_are_told_what_is_meant(monkeypatch, given, said, switch):
    monkeypatch.setenv("AMPWATCH", switch)
    scaler, model, optimizer = parts()
    names = {"scaler": scaler, "model": model, "optimizer": optimizer}
    with pytest.raises(AttachError) as caught:
        eval(f"attach({given})", {"attach": ampwatch.attach, **names})
    assert isinstance(caught.value, TypeError)
    assert said in str(caught.value)


def test_by_their_names_the_arguments_are_taken(tmp_path):
    scaler, model, optimizer = parts()
    with ampwatch.attach(model=model, scaler=scaler, optimizer=optimizer, run="r") as watch:
        assert watch.run_folder == tmp_path / "ampwatch-runs" / "r"


def test_the_article_fits_the_class():
    scaler, _, optimizer = parts()
    with pytest.raises(AttachError, match="model is an SGD, not a torch"):
        ampwatch.attach(scaler, optimizer)
    with pytest.raises(AttachError, match="the scaler is an int, not a"):
        ampwatch.attach(3, nn.Linear(1, 1))


def test_the_signature_is_shown_as_it_is_documented():
    parameters = inspect.signature(ampwatch.attach).parameters
    assert list(parameters)[:3] == ["scaler", "model", "optimizer"]
    assert parameters["optimizer"].kind is inspect.Parameter.KEYWORD_ONLY
    assert ampwatch.attach.__name__ == "attach"
    assert "the one line to add" in ampwatch.attach.__doc__
    assert inspect.signature(Watch.log).parameters.keys() == {"self", "values", "scalars"}
    assert inspect.signature(Watch.log) == inspect.signature(NoWatch.log)
