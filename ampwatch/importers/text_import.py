"""Imports a text log as a run, as a whole or while it is still being written.

When a pipe is followed, a thread of its own first passes it on and then hands it over for reading:
whatever happens to the reading, the trainer's output goes on.
"""

from __future__ import annotations

import dataclasses
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ampwatch.errors import AmpwatchError, LogError
from ampwatch.importers.format import Format
from ampwatch.importers.formats import BY_SOURCE, FORMATS
from ampwatch.importers.line_reader import Reader, Unknown
from ampwatch.importers.line_splitter import LineSplitter
from ampwatch.importers.log_file import STANDARD_INPUT, LogFile, opened, refuse_binary
from ampwatch.importers.options import ImportOptions, OnProgress, fresh_info
from ampwatch.importers.row_writer import RowWriter, StoreSink
from ampwatch.importers.run_builder import RunBuilder
from ampwatch.rows import Mark
from ampwatch.store import RunInfo, create_run, describe_run


class TextImport:
    """Imports a text log into a run's folder; it is fed with bytes."""

    def __init__(
        self, folder: Path, info: RunInfo, formats: Sequence[Format], rank: int = 0
    ) -> None:
        self.folder = folder
        self._info = info
        self._sink = StoreSink(folder, rank)
        self.builder = RunBuilder(RowWriter(self._sink))
        self.reader = Reader(formats, self.builder)
        self._cutter = LineSplitter(self.reader.anchors)

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes."""
        self.reader.feed(self._cutter.feed(chunk))

    def finish(self) -> None:
        """Read the last line: the log has ended."""
        self.reader.feed(self._cutter.finish())
        self.builder.finish()

    def close(self) -> None:
        """Close the run's folder."""
        self._sink.close()

    def describe(self, notes: Sequence[str] = ()) -> RunInfo:
        """Write the run's description, as far as the log has been read."""
        form = self.reader.source()
        info = described(self._info, self.builder, form, [*notes, *_unknown(self.reader.unknown)])
        describe_run(self.folder, info)
        return info


def described(
    info: RunInfo, builder: RunBuilder, form: Format | None, notes: Sequence[str]
) -> RunInfo:
    """The run's description with what the log says about it."""
    marks: dict[str, set[str]] = {
        column: {mark.value for mark in marks} for column, marks in builder.marks.items()
    }
    for column, more in (form.marks if form else {}).items():
        marks.setdefault(column, set()).update(more)
    scaler = {**(form.scaler if form else {}), **builder.scaler}
    if not _is_confirmed(scaler.get("init_scale"), builder.first_scale):
        scaler.pop("init_scale", None)
    for name in scaler.keys() - builder.scaler.keys():
        marks[f"scaler.{name}"] = {Mark.ASSUMED.value}
    return dataclasses.replace(
        info,
        source=form.source if form else info.source,
        config=dict(builder.config),
        scaler=scaler,
        started_ns=builder.started_ns or info.started_ns,
        notes=(*notes, *(form.notes if form else ()), *_of_narrow_formats(builder)),
        marks={column: sorted(found) for column, found in sorted(marks.items())},
    )


def _of_narrow_formats(builder: RunBuilder) -> tuple[str, ...]:
    """What a log that asks for fp8 or fp4 does not tell of it."""
    asked = [(name, builder.config.get(name)) for name in ("fp8", "float8", "fp4", "quantization")]
    told = next((f"{n}={v}" for n, v in asked if v and str(v).lower() not in _OFF), None)
    if told is None or builder.layers_told:
        return ()
    said = (
        f"The settings say {told}; what its casts do to layers is not in this log. The statistics "
        "of NVIDIA's inspector can be imported as well; of torchao's layers attach sees it."
    )
    return (said,)


_OFF = frozenset({"none", "false", "0", "off"})


def _is_confirmed(initial: float | None, first: float | None) -> bool:
    """Whether the run began at the framework's default scale; else its initial scale is unknown."""
    return initial is not None and first is not None and initial == first


def _unknown(unknown: Unknown) -> list[str]:
    if not unknown.count:
        return []
    lines = "line looks" if unknown.count == 1 else "lines look"
    what = f"{unknown.count:,} {lines} like a scale message in an unknown format"
    return [f"{what}, for example: {unknown.example!r}."]


def formats_for(options: str | None) -> Sequence[Format]:
    """All text formats, or the named one; raises LogError if there is no such format."""
    if options is None:
        return FORMATS
    if options not in BY_SOURCE:
        raise LogError(
            f"There is no format {options!r}. Known formats: {', '.join(sorted(BY_SOURCE))}."
        )
    return (BY_SOURCE[options],)


def import_text(
    log: LogFile, out: Path, options: ImportOptions, on_progress: OnProgress | None = None
) -> Path:
    """Import a text log into the folder `out`; raises LogError if it holds no training."""
    info = fresh_info(log.path, options)
    folder = create_run(out, info)
    text = TextImport(folder, info, formats_for(options.source))
    try:
        size = 0
        for chunk in log.chunks():
            size += len(chunk)
            text.feed(chunk)
            if on_progress is not None:
                on_progress(log.read_bytes, log.size_bytes)
        text.finish()
        text.describe([] if log.damage is None else [log.damage])
    except BaseException:
        text.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    text.close()
    if not text.builder.attempts:
        shutil.rmtree(folder, ignore_errors=True)
        raise LogError(_nothing_in(log, size, text.reader.unknown), path=log.path)
    return folder


def _nothing_in(log: LogFile, size: int, unknown: Unknown) -> str:
    if not size:
        return (
            f"{log.path} is empty."
            if log.damage is None
            else (f"{log.path} holds nothing readable: {log.damage}")
        )
    told = "".join(f" {sentence}" for sentence in _unknown(unknown))
    broken = f" {log.damage}" if log.damage else ""
    return (
        f"{log.path} holds no training that was recognised: neither a loss scale nor statistics "
        f"of steps. If you know its format, name it with --as.{told}{broken}"
    )


# --- a log that still grows -----------------------------------------------------------------------


_READ_BYTES = 1 << 20
_PAUSE_S = 0.2
_WRITE_EVERY_S = 0.25  # as often as a watched run


class GrowingLog:
    """Follows a file or standard input until `stop()` or its end; the run is in `folder`."""

    def __init__(self, path: str, out: Path, options: ImportOptions) -> None:
        formats = formats_for(options.source)
        self.path = path
        self._raw = opened(path)  # raises here, where the caller can report it
        info = fresh_info(path, options)
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
        """Start reading."""
        for thread in self._threads:
            thread.start()
        return self

    def wait_until_known(self) -> bool:
        """Wait for the first line that is understood; False if the log ended without one."""
        while not self._known.wait(_PAUSE_S):
            if self._over.is_set():
                break
        if self._problem is not None:
            raise self._problem
        return self._known.is_set()

    def stop(self) -> None:
        """Stop reading a file; a pipe is read, and passed on, to its end."""
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
        """New bytes, again and again; empty if there are none."""
        while not self._stop.is_set():
            data = self._piped() if self._pipe is not None else self._raw.read(_READ_BYTES)
            if data is None:
                return
            yield data
            if not data:
                self._stop.wait(_PAUSE_S)

    def _piped(self) -> bytes | None:
        """The next bytes of the pipe; empty if there are none yet, None at its end."""
        assert self._pipe is not None
        try:
            return self._pipe.get(timeout=_PAUSE_S) or None
        except queue.Empty:
            return b""


def nothing_known(path: str) -> LogError:
    """The error for a log that ended without a line that is understood."""
    return LogError(
        f"{path} ended and held no training: neither a loss scale nor statistics of steps. If "
        "you know its format, name it with --as.",
        path=path,
    )
