"""`ampwatch record --to`: a real recorder, real trainings that send to it, and what it shows."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path
from subprocess import PIPE

import children
import impatient_cli
import pytest
from alert_parts import wait_for
from mirror_parts import train

import ampwatch

pytest.importorskip("prometheus_client", reason="no prometheus-client here")
from test_mirrors_prometheus import values


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for a child")
def test_a_recorder_shows_the_runs_that_are_sent_to_it(tmp_path):
    port = free_port()
    words = [
        impatient_cli.PROGRAM, "record", "--bind", "tcp://127.0.0.1:0", "--insecure",
        "-o", "copies", "--to", f"prometheus://127.0.0.1:{port}", "--to", "tensorboard:tb",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(ampwatch.__file__).parents[1])}
    recorder = children.start(*words, cwd=tmp_path, env=environment, stderr=PIPE)
    said = ""
    while "Recording from" not in said:
        said = recorder.stderr.readline()
    endpoint = re.search(r"tcp://\S+", said)[0]
    train(tmp_path, AMPWATCH_ENDPOINT=endpoint, AMPWATCH_INSECURE="1", end="watch.close()")
    wait_for(lambda: values(port, "run_ended", run="r") == [({"run": "r"}, 1.0)])
    assert values(port, "skipped_steps_total")[0][1] == 2.0
    assert values(port, "step")[0][1] == 39.0
    recorder.send_signal(signal.SIGINT)
    _, rest = recorder.communicate(timeout=60)
    assert recorder.returncode == 0, rest
    assert len(list((tmp_path / "tb" / "r").iterdir())) == 1
    with pytest.raises(OSError, match=r"refused|Connection"):
        values(port, "step")
