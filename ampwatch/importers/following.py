"""A foreign log that still grows, read as it grows into a run that views follow.

A pipe is passed on before it is read here, by a thread of its own: whatever becomes of the reading,
the trainer's output goes on.
"""

from __future__ import annotations

import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ampwatch.errors import AmpwatchError, LogError
from ampwatch.importers.asking import Wanted, fresh_info
from ampwatch.importers.source import STANDARD_INPUT, opened, refuse_binary
from ampwatch.importers.text_import import TextImport, formats_for
from ampwatch.store import create_run

_READ_BYTES = 1 << 20
_PAUSE_S = 0.2
_WRITE_EVERY_S = 0.25  # rows wait no longer than a native run's


class GrowingLog:
    """Follows a file, or standard input, until `stop()` or its end; its run is in `folder`."""

    def __init__(self, path: str, out: Path, wanted: Wanted) -> None:
        formats = formats_for(wanted.source)
        self.path = path
        self._raw = opened(path)  # raises here, where it can be told
        info = fresh_info(path, wanted)
        self.folder = create_run(out, info)
        self._text = TextImport(self.folder, info, formats)
        self._stop = threading.Event()
        self._known = threading.Event()
        self._over = threading.Event()
        self._problem: AmpwatchError | None = None
        self._threads = [threading.Thread(target=self._import, daemon=True)]
        self._pipe: queue.SimpleQueue[bytes] | None = None
        if path == STANDARD_INPUT:
            self._pipe = queue.SimpleQueue()
            self._threads.append(threading.Thread(target=self._pass_on, daemon=True))

    def start(self) -> GrowingLog:
        """Begin reading."""
        for thread in self._threads:
            thread.start()
        return self

    def wait_until_known(self) -> bool:
        """Wait for the first line that is understood; False where the log ended without one."""
        while not self._known.wait(_PAUSE_S):
            if self._over.is_set():
                break
        if self._problem is not None:
            raise self._problem
        return self._known.is_set()

    def stop(self) -> None:
        """Read no more of a file; a pipe is read, and passed on, to its end."""
        if self._pipe is None:
            self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._pipe is None:
            self._raw.close()
        if not self._known.is_set():
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- threads ---------------------------------------------------------------------------------

    def _pass_on(self) -> None:
        assert self._pipe is not None
        out: BinaryIO | None = sys.stdout.buffer
        while data := self._raw.read1(_READ_BYTES):  # type: ignore[attr-defined]
            if out is not None:
                try:
                    out.write(data)
                    out.flush()
                except OSError:  # whoever read our output has left; the trainer need not know
                    out = None
            self._pipe.put(data)
        self._pipe.put(b"")

    def _import(self) -> None:
        try:
            self._read_on()
        except AmpwatchError as problem:
            self._problem = problem
        finally:
            self._text.close()
            self._over.set()

    def _read_on(self) -> None:
        text, written_s, is_first = self._text, time.monotonic(), True
        for data in self._data():
            if data and is_first:
                refuse_binary(data, self.path)
                is_first = False
            text.feed(data)
            if time.monotonic() - written_s > _WRITE_EVERY_S:
                written_s = time.monotonic()
                self._write()
        text.finish()
        self._tell()

    def _write(self) -> None:
        self._text.timeline.catch_up()
        self._tell()

    def _tell(self) -> None:
        if self._text.timeline.attempts:
            self._text.describe()
            self._known.set()

    def _data(self) -> Iterator[bytes]:
        """What is new, again and again; nothing where there is nothing new."""
        while not self._stop.is_set():
            data = self._piped() if self._pipe is not None else self._raw.read(_READ_BYTES)
            if data is None:
                return
            yield data
            if not data:
                self._stop.wait(_PAUSE_S)

    def _piped(self) -> bytes | None:
        """The next bytes of the pipe, none yet, or None at its end."""
        assert self._pipe is not None
        try:
            return self._pipe.get(timeout=_PAUSE_S) or None
        except queue.Empty:
            return b""


def nothing_known(path: str) -> LogError:
    """The sentence for a log that ended without a line that is understood."""
    return LogError(
        f"{path} ended and told of no training: neither a loss scale nor statistics of steps. "
        "Name its format with --as if there is one.",
        path=path,
    )
