"""Where a run was started from: what git itself says of the same repositories."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import ampwatch
from ampwatch.probe import run_identity as module
from ampwatch.probe.run_identity import origin

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git here to compare with")


@pytest.fixture(autouse=True)
def asked_anew():
    module._code_of.cache_clear()


def git(folder: Path, *words: str) -> str:
    mine = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "init.defaultBranch=main")
    return subprocess.check_output(("git", *mine, *words), cwd=folder, text=True).strip()


@pytest.fixture
def repository(tmp_path):
    made = tmp_path / "repository"
    (made / "scripts").mkdir(parents=True)
    (made / "scripts" / "train.py").write_text("pass\n")
    git(made, "init", "-q")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "one")
    return made


def test_a_script_is_told_with_its_folder_and_commit(repository, tmp_path):
    script = repository / "scripts" / "train.py"
    assert origin([str(script)], tmp_path) == {
        "folder": str(tmp_path), "script": str(script),
        "commit": git(repository, "rev-parse", "HEAD"), "uncommitted changes": "no",
    }  # fmt: skip
    assert origin(["scripts/train.py"], repository)["script"] == str(script)


def test_changes_that_no_commit_holds_are_told(repository):
    script = repository / "scripts" / "train.py"
    (repository / "runs").mkdir()  # git does not know it: a log is no change of the code
    assert origin([str(script)], repository)["uncommitted changes"] == "no"
    module._code_of.cache_clear()
    script.write_text("pass  # anew\n")
    assert origin([str(script)], repository)["uncommitted changes"] == "yes"


@pytest.mark.parametrize("how", ["packed", "detached", "worktree", "branch with a slash"])
def test_the_commit_is_found_however_git_keeps_it(repository, tmp_path, how):
    folder = repository
    if how == "packed":
        git(repository, "pack-refs", "--all")
    elif how == "detached":
        git(repository, "checkout", "-q", "--detach")
    elif how == "worktree":
        folder = tmp_path / "other"
        git(repository, "worktree", "add", "-q", str(folder))
    else:
        git(repository, "checkout", "-q", "-b", "feature/x")
    assert origin([], folder)["commit"] == git(folder, "rev-parse", "HEAD")


def test_where_there_is_no_commit_none_is_told(tmp_path):
    assert origin(["-c"], tmp_path) == {"folder": str(tmp_path)}
    git(tmp_path, "init", "-q")
    module._code_of.cache_clear()
    assert origin(["gone.py"], tmp_path) == {"folder": str(tmp_path)}


def test_without_git_the_commit_is_told_and_changes_are_not(repository, monkeypatch):
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "")
    assert origin([], repository) == {"folder": str(repository), "commit": commit}


def test_a_git_that_does_not_answer_is_not_waited_for(repository, tmp_path, monkeypatch):
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (slow / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:/bin:/usr/bin")
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    assert "uncommitted changes" not in origin([], repository)


def test_an_attached_run_tells_its_origin_and_no_secret(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(repository)
    monkeypatch.setattr("sys.argv", ["scripts/train.py", "--hf-token", "swordfish", "--lr", "1"])
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "swordfish")
    model = torch.nn.Linear(2, 2)
    watch = ampwatch.attach(
        torch.amp.GradScaler("cpu"), model, log_dir=tmp_path, endpoint="off",
        config={"api_key": "swordfish", "lr": 1.0},
    )  # fmt: skip
    watch.close()
    run = ampwatch.open_run(watch.run_folder)
    assert run.info.origin["commit"] == git(repository, "rev-parse", "HEAD")
    assert run.info.command == ("scripts/train.py", "--hf-token", "***", "--lr", "1")
    started = json.loads(run.events.column("detail")[0].as_py())
    assert started["origin"] == run.info.origin
    assert started["config"] == {"api_key": "***", "lr": "1.0"}
    files = [path for path in watch.run_folder.rglob("*") if path.is_file()]
    assert len(files) > 2
    assert not any(b"swordfish" in path.read_bytes() for path in files)
