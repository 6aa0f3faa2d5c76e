"""A log that grows, or a pipe, as a run that views follow."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ampwatch import diagnose, open_run
from ampwatch.errors import LogError
from ampwatch.importers import ImportOptions, TextLogFollower, import_log
from ampwatch.rows import Table

LINE = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n"
LINES = [LINE.format(2.0 ** (15 - n)) for n in range(30)]


def scales(run) -> list[float]:
    return run.read(Table.STEPS, columns=("scale_after",)).column(0).to_pylist()


def wait_for(true) -> None:
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)


def test_a_growing_file_is_followed_and_ends_as_if_it_had_been_imported(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(LINES[:5]))
    log = TextLogFollower(str(path), tmp_path / "live", ImportOptions()).start()
    assert log.wait_until_known()
    run = open_run(log.folder)
    assert run.info.source == "apex"
    with path.open("a") as file:
        file.write("".join(LINES[5:]))
    wait_for(lambda: run.refresh() and len(scales(run)) >= 29)
    assert diagnose(run).headline.code == "AMP103"
    log.stop()
    run.refresh()
    assert scales(run) == scales(open_run(import_log(path, tmp_path / "later")))


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(LINES[0] + LINES[1][:-4])
    log = TextLogFollower(str(path), tmp_path / "live", ImportOptions()).start()
    assert log.wait_until_known()
    with path.open("a") as file:
        file.write(LINES[1][-4:])
    time.sleep(0.6)
    log.stop()
    assert scales(open_run(log.folder)) == [32768.0, 16384.0]


def test_a_log_that_tells_nothing_leaves_no_run(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("hello\n")
    log = TextLogFollower(str(path), tmp_path / "live", ImportOptions()).start()
    log.stop()
    assert not any((tmp_path / "live").iterdir())


def test_a_missing_log_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(LogError, match="No such file"):
        TextLogFollower(str(tmp_path / "none"), tmp_path / "live", ImportOptions())
    assert not (tmp_path / "live").exists()


def watch_pipe(data: bytes, tmp_path, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "AMPWATCH_DIR": str(tmp_path / "runs")}
    command = [sys.executable, "-m", "ampwatch", "watch", "--text", "-", *words]
    return subprocess.run(command, input=data, capture_output=True, env=environment, timeout=60)


def test_a_pipe_is_passed_on_byte_for_byte_and_findings_go_to_stderr(tmp_path):
    data = b"\xffodd bytes\r" + "".join(LINES).encode() + b"no end"
    done = watch_pipe(data, tmp_path)
    assert done.returncode == 0
    assert done.stdout == data
    assert b"AMP103" in done.stderr


def test_a_pipe_that_tells_nothing_is_passed_on_all_the_same(tmp_path):
    done = watch_pipe(b"hello\n" * 1000, tmp_path)
    assert done.stdout == b"hello\n" * 1000
    assert done.returncode == 2
    assert b"no training log was found" in done.stderr
    assert b"Traceback" not in done.stderr
