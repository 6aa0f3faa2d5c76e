"""What a run keeps beside its rows if that is asked for: last lines, a diff, and no secret."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import children
import pytest

from ampwatch.store.console_and_diff import (
    CONSOLE_BYTES,
    copy_console,
    keep_diff,
    read_console,
    read_diff,
)
from ampwatch.store.run_info import masked_lines


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("WANDB_API_KEY=abc123 python train.py", "WANDB_API_KEY=*** python train.py"),
        ('+    "hf_token": "x y z",', '+    "hf_token": ***,'),
        ("train.py --api-key abc --lr 0.1", "train.py --api-key *** --lr 0.1"),
        ("password: hunter2", "password: ***"),
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer ***"),
        ("pull https://me:word@host/x", "pull https://***@host/x"),
        ("login with hf_abcdefghijkl", "login with ***"),
        ("it sent topsecretvalue", "it sent ***"),
        ("sorted(rows, key=lambda row: row)", "sorted(rows, key=lambda row: row)"),
        ("step 10 loss=0.5 lr: 0.1 key_dim=64", "step 10 loss=0.5 lr: 0.1 key_dim=64"),
    ],
)
def test_what_looks_like_a_secret_is_replaced(line, shown):
    assert masked_lines(line, {"MY_SECRET": "topsecretvalue", "A_KEY": "it"}) == shown


def test_a_private_key_is_replaced_whole():
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    assert masked_lines(f"a\n{begin}\nMIIE\nabcd\n{end}\nb", {}) == f"a\n{begin}***{end}\nb"


def test_the_last_lines_of_each_file_are_copied_whole_and_a_redrawn_bar_as_it_was_last(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("".join(f"line {n}\n" for n in range(20_000)))
    err.write_bytes(b"bar 10%\rbar 20%\rbar 30%\r\nlast\n")
    copy_console(tmp_path, {}, [out, err, out])
    lines = read_console(tmp_path).splitlines()
    assert lines[-3:] == ["line 19999", "bar 30%", "last"]
    first = int(lines[0].removeprefix("line "))
    assert lines[:-2] == [f"line {n}" for n in range(first, 20_000)]
    assert len("\n".join(lines)) <= CONSOLE_BYTES


def test_of_what_is_no_file_nothing_is_copied(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    copy_console(tmp_path, {}, [tmp_path / "pipe", Path(os.devnull), tmp_path / "none"])
    assert read_console(tmp_path) == ""


def git(folder, *words):
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@x", *words], cwd=folder, check=True,
        capture_output=True,
    )  # fmt: skip


def test_the_diff_is_what_the_code_has_beyond_its_commit(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    script = code / "train.py"
    script.write_text("lr = 0.1\n")
    git(code, "init")
    git(code, "add", ".")
    git(code, "commit", "-m", "first")
    keep_diff(tmp_path, code, os.environ)
    assert read_diff(tmp_path) == ""
    script.write_text("lr = 0.3\napi_key = 'abc'\n")
    keep_diff(tmp_path, code, os.environ)
    diff = read_diff(tmp_path).splitlines()
    assert [line for line in diff if line[:1] in "+-"][2:] == [
        "-lr = 0.1", "+lr = 0.3", "+api_key = ***",
    ]  # fmt: skip
    keep_diff(tmp_path / "elsewhere", tmp_path, {**os.environ, "PATH": ""})  # no git at all


TRAINING = """
    import sys, torch, ampwatch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.attach(None, model, optimizer=optimizer, run="one", endpoint="off"):
        print("my last words", flush=True)
        raise SystemError("it broke")
"""


@pytest.mark.slow_starts
@pytest.mark.parametrize("asked", ["console,diff", ""])
def test_a_run_keeps_its_traceback_and_the_changes_of_its_script_only_if_asked(tmp_path, asked):
    script = tmp_path / "train.py"
    script.write_text("")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    script.write_text(textwrap.dedent(TRAINING))
    environment = {
        **os.environ, "AMPWATCH_DIR": str(tmp_path / "runs"), "AMPWATCH_KEEP": asked,
    }  # fmt: skip
    with (tmp_path / "out.txt").open("w") as out:
        children.start(script, env=environment, stdout=out.fileno(), stderr=out.fileno()).wait(150)
    folder = tmp_path / "runs/one/rank-0"
    assert ("my last words" in read_console(folder)) == bool(asked)
    assert ("SystemError: it broke" in read_console(folder)) == bool(asked)
    assert ("+    raise SystemError" in read_diff(folder)) == bool(asked)
