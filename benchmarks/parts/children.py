"""Work in a process of its own: one that says what it measured, and one that stays while wanted."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RECORDER = """
import sys
from ampwatch.recorder import Recorder
with Recorder("tcp://127.0.0.1:*", sys.argv[1]) as recorder:
    print(recorder.endpoint, recorder.process_id, flush=True)
    sys.stdin.readline()
"""


def told_by(*arguments: object, environment: Mapping[str, str] | None = None) -> Any:
    """The JSON that is the last line of what `python ARGUMENTS` prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=True, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def kept(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`python ARGUMENTS`, and its words when it is ready; it ends when its input does."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().split()
        finally:
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
            child.kill()


@contextlib.contextmanager
def recorder(folder: Path) -> Iterator[tuple[str, int]]:
    """A recorder that keeps its copies here: its endpoint, and its process."""
    with kept("-c", RECORDER, folder) as (_, (endpoint, pid)):
        yield endpoint, int(pid)
