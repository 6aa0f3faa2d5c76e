"""Child processes of this Python that need not load torch each for itself.

Loading torch and making a first optimizer takes three seconds of a processor, more than most
children's own work. So one process loads them once (`nursery`) and forks: the fork has its own
process id, folder, environment, streams, arguments and end, and all else that a fresh process has
to do, it does. What a test has to say about how a program is started or loaded needs a fresh one:
`subprocess`. AMPWATCH_FRESH_CHILDREN=1 makes all of them fresh.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import IO, NamedTuple

import psutil

HERE = Path(__file__).parent
PATIENCE_S = 150.0
CAN_FORK = sys.platform == "linux" and os.environ.get("AMPWATCH_FRESH_CHILDREN") != "1"


class Nursery(NamedTuple):
    orders: socket.socket
    python: Path  # what starts a Python as a fork


@functools.cache
def _nursery(kind: str = "training") -> Nursery:
    """The program that forks children of this kind, which lives until the tests end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = Path(tempfile.mkdtemp())
    door.bind(str(folder / "door"))
    door.listen(100)
    python = folder / "python"
    words = [sys.executable, "-ISs", str(HERE / "forked_python.py"), str(folder / "door")]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    python.chmod(0o700)
    paths = {"PYTHONPATH": str(HERE.parent), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    with theirs, door:
        program = subprocess.Popen(
            [sys.executable, HERE / "nursery.py", str(theirs.fileno()), str(door.fileno()), kind],
            pass_fds=[theirs.fileno(), door.fileno()], env={**os.environ, **paths}, cwd=HERE,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def end() -> None:
        ours.close()
        program.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return Nursery(ours, python)


def dashboard_python() -> str:
    """The Python of a dashboard's server: a fork of what has Streamlit and the pages loaded."""
    return str(_nursery("dashboard").python) if CAN_FORK else sys.executable


def forking(env: Mapping[str, str]) -> dict[str, str]:
    """This environment, in which what a child starts by `sys.executable` is forked as well.

    Such a process passes on its streams and signals; it has no others of its parent's files open.
    """
    return {**env, "AMPWATCH_FORKED_PYTHON": str(_nursery().python)} if CAN_FORK else dict(env)


def python(env: Mapping[str, str] | None = None) -> str:
    """What a shell, or a test itself, starts as Python: forked, or as this environment has it."""
    return (forking({}) if env is None else env).get("AMPWATCH_FORKED_PYTHON", sys.executable)


class Child:
    """A forked process, to be used like a `subprocess.Popen` with text streams."""

    def __init__(
        self,
        words: Sequence[object],
        env: Mapping[str, str],
        cwd: Path | None,
        streams: tuple[int | None, int | None, int | None],
    ) -> None:
        self.returncode: int | None = None
        order = {
            "words": list(map(str, words)), "environment": dict(env),
            "folder": str(cwd or Path.cwd()),
        }  # fmt: skip
        with contextlib.ExitStack() as theirs:
            places: list[IO[str] | None] = []
            numbers = []
            for place, wanted in enumerate(streams):
                if wanted == subprocess.STDOUT:
                    number, stream = os.dup(numbers[-1]), None
                else:
                    number, stream = _stream(place, wanted)
                theirs.callback(os.close, number)
                numbers.append(number)
                places.append(stream)
            self.stdin, self.stdout, self.stderr = places
            reading, report = os.pipe()
            theirs.callback(os.close, report)
            socket.send_fds(_nursery().orders, [json.dumps(order).encode()], [*numbers, report])
        self._report = os.fdopen(reading, "rb", buffering=0)
        self.pid = int(self._line())

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._line())
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # ended, not told of yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(
        self, given: str | None = None, timeout: float | None = None
    ) -> tuple[str | None, str | None]:
        """Hand it this, and wait for its end; what it wrote."""
        said: dict[IO[str], str] = {}
        threads = [
            threading.Thread(target=lambda stream=stream: said.update({stream: stream.read()}))
            for stream in (self.stdout, self.stderr)
            if stream is not None and not stream.closed
        ]
        for thread in threads:
            thread.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(given or "")
                self.stdin.close()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired as late:
            _end_all(self.pid)
            for thread in threads:
                thread.join()
            late.output, late.stderr = said.get(self.stdout), said.get(self.stderr)
            raise
        for thread in threads:
            thread.join()
        for stream in said:
            stream.close()
        return said.get(self.stdout), said.get(self.stderr)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def _line(self) -> bytes:
        line = self._report.readline()
        assert line, "the nursery has ended; its message is above"
        return line


def _stream(place: int, wanted: int | None) -> tuple[int, IO[str] | None]:
    """The child's end of a standard stream, and ours."""
    if wanted is None or wanted >= 0:
        return os.dup(place if wanted is None else wanted), None
    if wanted == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    assert wanted == PIPE
    reading, writing = os.pipe()
    if place == 0:
        return reading, os.fdopen(writing, "w")
    return writing, os.fdopen(reading)


def _end_all(pid: int) -> None:
    """End this child and what it started, once each has written to stderr where it stands."""
    child = psutil.Process(pid)
    family = [*child.children(recursive=True), child]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.2)  # to write it all before the next does
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


Running = Child | subprocess.Popen[str]


def start(
    *words: object,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    fresh: bool = False,
) -> Running:
    """`python WORDS`, running; `fresh` as a new process of its own."""
    if CAN_FORK and not fresh:
        return Child(words, env, cwd, (stdin, stdout, stderr))
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(
        command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, text=True
    )


def run(
    *words: object,
    env: Mapping[str, str],
    cwd: Path | None = None,
    given: str | None = None,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`python WORDS`, at its end, with what it wrote."""
    stdin = subprocess.DEVNULL if given is None else PIPE
    child = start(*words, env=env, cwd=cwd, stdin=stdin, stdout=PIPE, stderr=PIPE, fresh=fresh)
    try:
        out, err = child.communicate(given, PATIENCE_S)
    except subprocess.TimeoutExpired as late:
        child.kill()
        raise AssertionError(f"{late}; its stderr ends with\n{str(late.stderr)[-9000:]}") from None
    except BaseException:
        child.kill()
        raise
    return subprocess.CompletedProcess(list(words), child.returncode, out, err)
