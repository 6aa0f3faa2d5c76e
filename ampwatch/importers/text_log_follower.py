"""Follows a text log that another trainer still writes, and imports it while it grows.

When a pipe is followed, a thread of its own first passes it on and then hands it over for reading:
whatever happens to the reading, the trainer's output goes on.
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
from ampwatch.importers.import_options import ImportOptions, fresh_info
from ampwatch.importers.log_file import STANDARD_INPUT, opened, refuse_binary
from ampwatch.importers.text_import import TextImport, nothing_on_its_lines
from ampwatch.store import create_run

_READ_BYTES = 1 << 20
_PAUSE_S = 0.2
_WRITE_EVERY_S = 0.25  # as often as a watched run


class TextLogFollower:
    """Follows a growing text log, a file or a pipe, until `stop()`; its run is in `folder`."""

    def __init__(self, path: str, out: Path, options: ImportOptions) -> None:
        self.path = path
        self._raw = opened(path)  # raises here, where the caller can report it
        info = fresh_info(path, options)
        self.folder = create_run(out, info)
        self._text = TextImport(self.folder, info, options)
        self._stop = threading.Event()
        self._known = threading.Event()
        self._over = threading.Event()
        self._problem: AmpwatchError | None = None
        self._threads = [threading.Thread(target=self._import, daemon=True)]
        self._pipe: queue.SimpleQueue[bytes] | None = None
        if path == STANDARD_INPUT:
            self._pipe = queue.SimpleQueue()
            self._threads.append(threading.Thread(target=self._pass_on, daemon=True))

    def start(self) -> TextLogFollower:
        """Start following the log."""
        for thread in self._threads:
            thread.start()
        return self

    def wait_until_known(self) -> bool:
        """Wait for the followed log's first known line; False if the log ended without one."""
        while not self._known.wait(_PAUSE_S):
            if self._over.is_set():
                break
        if self._problem is not None:
            raise self._problem
        return self._known.is_set()

    def stop(self) -> None:
        """Stop following a file; a followed pipe is read, and passed on, to its end."""
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
                except OSError:  # nobody reads our output any more; the trainer need not know
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
        self._text.builder.catch_up()
        self._tell()

    def _tell(self) -> None:
        if self._text.builder.attempts:
            self._text.describe()
            self._known.set()

    def _data(self) -> Iterator[bytes]:
        """What the followed log has grown by, again and again; empty if it has not."""
        while not self._stop.is_set():
            data = self._piped() if self._pipe is not None else self._raw.read(_READ_BYTES)
            if data is None:
                return
            yield data
            if not data:
                self._stop.wait(_PAUSE_S)

    def _piped(self) -> bytes | None:
        """The next bytes of the followed pipe; empty if there are none yet, None at its end."""
        assert self._pipe is not None
        try:
            return self._pipe.get(timeout=_PAUSE_S) or None
        except queue.Empty:
            return b""


def nothing_known(path: str) -> LogError:
    """The error for a followed log that ended without a line that is understood."""
    return LogError(
        f"{path} ended, and no training log was found in it {nothing_on_its_lines()}", path=path
    )
