"""A place that is away, closed or cut off: a sentence, and the same command goes on."""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
from pathlib import Path
from subprocess import PIPE

import children
import pytest
import s3_server
from relay import Relay
from written_runs import write_run

import ampwatch
from ampwatch.errors import PlaceError
from ampwatch.fleet import list_published, publish

ROOT = Path(ampwatch.__file__).parents[1]


def refusing(status: int, body: bytes) -> http.server.ThreadingHTTPServer:
    """A service that answers everything so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def told(arguments: list[str], port: int) -> tuple[int, str]:
    """What the command says: in a process of its own, for the service is in this one."""
    environment = {**os.environ, **s3_server.environment(port), "PYTHONPATH": str(ROOT)}
    done = children.run("-m", "ampwatch", *arguments, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_wrong_credentials_are_said_and_never_printed(tmp_path):
    path = write_run(tmp_path / "runs")
    body = (
        b"<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>somebody</AWSAccessKeyId></Error>"
    )
    with refusing(403, body) as server:
        code, said = told(["publish", str(path), "s3://team/runs"], server.server_port)
        server.shutdown()
    assert code == 2
    assert "access was refused: check the credentials" in said
    assert "somebody" not in said
    assert "hush-hush" not in said
    assert "Traceback" not in said


def test_a_bucket_that_does_not_exist_is_said(s3, tmp_path):
    with pytest.raises(PlaceError, match="the bucket does not exist"):
        publish(write_run(tmp_path / "runs"), "s3://nobodys-bucket/runs")


def test_a_service_that_is_away_is_said(tmp_path):
    with refusing(500, b"") as server:
        port = server.server_port
        server.shutdown()
    code, said = told(["runs", "s3://team/runs"], port)
    assert code == 2
    assert "cannot be reached: check the network" in said


def test_a_service_cut_off_in_between_is_said_and_the_next_call_goes_on(s3, s3_place, tmp_path):
    for number in range(6):
        write_run(tmp_path / "runs", f"run-{number}", accepted=400)
    publish(tmp_path / "runs" / "run-0", s3_place)
    relay = Relay(s3.port)
    environment = {**os.environ, **s3_server.environment(relay.port), "PYTHONPATH": str(ROOT)}
    words = ["-m", "ampwatch", "publish", tmp_path / "runs", s3_place]
    child = children.start(*words, stdout=PIPE, stderr=PIPE, env=environment)
    prefix = f"PUT {s3_place.removeprefix('s3:/')}/"
    before = sum(line.startswith(prefix) for line in s3.requests())
    while sum(line.startswith(prefix) for line in s3.requests()) < before + 4:
        assert child.poll() is None
        time.sleep(0.002)
    relay.cut()
    out, err = child.communicate(timeout=100)
    said = out + err
    assert child.returncode == 2
    assert "run the same command again; it goes on where it stopped" in " ".join(said.split())
    assert [run.name for run in list_published(s3_place)] == ["run-0"]
    assert len(publish(tmp_path / "runs", s3_place).published) == 5
    assert len(list_published(s3_place)) == 6


def test_ctrl_c_ends_it_and_the_next_call_goes_on(s3_place, s3, tmp_path):
    for number in range(6):
        write_run(tmp_path / "runs", f"run-{number}", accepted=400)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["-m", "ampwatch", "publish", tmp_path / "runs", s3_place]
    child = children.start(*words, stdout=PIPE, stderr=PIPE, env=environment)
    prefix = f"PUT {s3_place.removeprefix('s3:/')}/"
    while child.poll() is None and not any(line.startswith(prefix) for line in s3.requests()):
        time.sleep(0.002)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in out + err
    assert len(publish(tmp_path / "runs", s3_place).published) == 6
