"""The recorder's process as its starter holds it: how it is started, heard and ended."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

from ampwatch.errors import FeedError
from ampwatch.recorder.messages import Message, Orders, from_line

# The starter's import path, so that both are the same ampwatch, however the starter was found.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from ampwatch.recorder import child, messages
child.main(messages.Orders.from_text(sys.argv[1]))
"""
# Not to be reached by the terminal's Ctrl-C: what was sent before it is still to be filed.
_OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


class RecorderProcess:
    """One process, from its start to its end. FeedError if it cannot be started."""

    def __init__(self, orders: Orders, environ: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, orders.to_text(), json.dumps(sys.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environ),
                start_new_session=True, creationflags=_OWN_GROUP,
            )  # fmt: skip
        except OSError as error:
            reason = error.strerror or str(error)
            raise FeedError(f"The recorder's process cannot be started ({reason}).") from error

    @property
    def id(self) -> int:
        """The system's number for it."""
        return self._process.pid

    def messages(self) -> Iterator[Message]:
        """What it tells, until it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # a process that is killed may leave half a line
                yield from_line(line)

    def ask_to_end(self) -> None:
        """Let it file what it has, and end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End it now; what it has acknowledged is in the files."""
        self._process.kill()

    def wait(self) -> str:
        """How it ended, in words; called when it has no more to tell."""
        assert self._process.stdout is not None
        self.ask_to_end()
        code = self._process.wait()
        self._process.stdout.close()
        if code >= 0:
            return f"exit status {code}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"
