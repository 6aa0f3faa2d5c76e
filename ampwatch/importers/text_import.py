"""Imports a text log as a run: a whole file, one that is still written, the logs of each rank."""

from __future__ import annotations

import dataclasses
import queue
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from ampwatch.diagnosis.value_text import count_text
from ampwatch.errors import AmpwatchError, LogError
from ampwatch.importers.format import Format
from ampwatch.importers.formats import formats_for, formats_learned, source_names
from ampwatch.importers.formats.giving_up import is_of_training_program
from ampwatch.importers.import_options import ImportOptions, OnProgress, fresh_info, new_run
from ampwatch.importers.line_reader import LineReader, Unknown
from ampwatch.importers.line_splitter import LineSplitter, plain_lines
from ampwatch.importers.line_templates import shape_of
from ampwatch.importers.log_file import STANDARD_INPUT, LogFile, opened, refuse_binary
from ampwatch.importers.named_numbers import names_of, numbers_in
from ampwatch.importers.row_writer import RowWriter
from ampwatch.importers.run_builder import RunBuilder
from ampwatch.importers.table_import import SOURCES
from ampwatch.rows import Mark
from ampwatch.store import RankWriter, RunInfo, create_run, describe_run
from ampwatch.store.layout import rank_folder

_MOST_UNREAD_BYTES, _MOST_NAMED_LINES, _LEAST_COMPARED_BYTES = 8 << 20, 2000, 1 << 16
_MOST_SHAPES = 100_000
_GROWN = 1.25  # times: so much more text is read anew by what it teaches


class TextImport:
    """Imports a text log into a run's folder; it is fed with the log's bytes."""

    def __init__(self, folder: Path, info: RunInfo, options: ImportOptions, rank: int = 0) -> None:
        self.folder = folder
        self._info = info
        self._sink = RankWriter(folder, rank)
        self._formats, self._columns = formats_for(options.source), options.columns
        self._unread, self._learnt_bytes = b"", 0
        self._shapes: set[str] = set()
        self._begin(self._formats)

    def _begin(self, formats: Sequence[Format]) -> None:
        self.builder = RunBuilder(RowWriter(self._sink))
        self.reader = LineReader(formats, self.builder)
        self._cutter = LineSplitter(self.reader.anchors)

    @property
    def knows_training(self) -> bool:
        """Whether a line of a training has been found."""
        return self.builder.state.attempts > 0

    @property
    def names(self) -> list[str]:
        """What the numbers are called in a text log without a training."""
        lines = plain_lines(self._unread)[:_MOST_NAMED_LINES]
        return names_of(numbers_in(line) for line in lines)

    def feed(self, chunk: bytes) -> None:
        """Import the next bytes of the text log.

        Until a training is found in it, its text is read anew each time it has grown.
        """
        if self.knows_training:
            self._unread = b""
            self.reader.feed(self._cutter.feed(chunk))
            return
        self._unread += chunk
        is_longer = len(self._unread) >= _GROWN * self._learnt_bytes
        if is_longer and self._has_new_shapes(chunk):
            self._learn()
        else:
            self.reader.feed(self._cutter.feed(chunk))
            self._unread = self._unread[-_MOST_UNREAD_BYTES:]

    def _has_new_shapes(self, chunk: bytes) -> bool:
        """Whether some whole line of a chunk looks like none before; of a small chunk, nobody asks.

        What lines of known shapes could teach is learnt.
        """
        shapes = {*map(shape_of, plain_lines(chunk)[1:-1])}
        is_new = len(chunk) < _LEAST_COMPARED_BYTES or not shapes <= self._shapes
        self._shapes = shapes if len(self._shapes) > _MOST_SHAPES else self._shapes | shapes
        return is_new

    def _learn(self) -> None:
        """Read the text in which no training was found anew, by what it teaches."""
        self._unread = self._unread[-_MOST_UNREAD_BYTES:]
        self._learnt_bytes = len(self._unread)
        self._begin(formats_learned(self._formats, self._unread, self._info.name, self._columns))
        if is_of_training_program(self._unread):
            self.builder.state.is_of_training = True
        self.reader.feed(self._cutter.feed(self._unread))

    def finish(self) -> None:
        """Import the last line of the text log, and write what is left."""
        if not self.knows_training and len(self._unread) > self._learnt_bytes:
            self._learn()
        self.reader.feed(self._cutter.finish())
        self.reader.finish()
        self.builder.finish()

    def close(self) -> None:
        """Close the folder of the imported run."""
        self._sink.close()

    def describe(self, notes: Sequence[str] = ()) -> RunInfo:
        """Write the imported run's description, as far as the text log has been read."""
        form = self.reader.source()
        told = [*notes, *self._guesses(), *_unknown(self.reader.unknown)]
        info = described(self._info, self.builder, form, told)
        describe_run(self.folder, info)
        return info

    def _guesses(self) -> Sequence[str]:
        """What the last-resort format took for the step and the loss, if it read anything."""
        last = [form for form in self.reader.formats if form.is_last_resort]
        return [note for form in last if form.source in self.reader.tallies for note in form.notes]


def described(
    info: RunInfo, builder: RunBuilder, form: Format | None, notes: Sequence[str]
) -> RunInfo:
    """The run's description with what its text log says about it."""
    marks: dict[str, set[str]] = {
        column: {mark.value for mark in marks} for column, marks in builder.state.marks.items()
    }
    for column, more in (form.marks if form else {}).items():
        marks.setdefault(column, set()).update(more)
    scaler = {**(form.scaler if form else {}), **builder.state.scaler}
    if not _is_confirmed(scaler.get("init_scale"), builder.state.first_scale):
        scaler.pop("init_scale", None)
    for name in scaler.keys() - builder.state.scaler.keys():
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
    """A note on what a text log that asks for fp8 or fp4 does not say of it."""
    asked = [(name, builder.config.get(name)) for name in ("fp8", "float8", "fp4", "quantization")]
    use = next((f"{n}={v}" for n, v in asked if v and str(v).lower() not in _OFF), None)
    if use is None or builder.layers_told:
        return ()
    sentence = (
        f"The settings say {use}; what its casts do to layers is not in this log. The statistics "
        "of NVIDIA's inspector can be imported as well; of torchao's layers attach sees it."
    )
    return (sentence,)


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


def import_text(
    log: LogFile, out: Path, options: ImportOptions, on_progress: OnProgress | None = None
) -> Path:
    """Import a whole text log into the folder `out`; raises LogError if it holds no training."""
    with new_run(log.path, out, options) as (folder, info):
        with closing(TextImport(folder, info, options)) as text:
            size = 0
            for chunk in log.chunks():
                size += len(chunk)
                text.feed(chunk)
                if on_progress is not None:
                    on_progress(log.read_bytes, log.size_bytes)
            text.finish()
            text.describe([] if log.damage is None else [log.damage])
        if not text.knows_training:
            raise LogError(_nothing_in(log, size, text, options), path=log.path)
    return folder


def _nothing_in(log: LogFile, size: int, text: TextImport, options: ImportOptions) -> str:
    if not size:
        return (
            f"{log.path} is empty."
            if log.damage is None
            else (f"{log.path} holds nothing readable: {log.damage}")
        )
    unread = "".join(f" {sentence}" for sentence in _unknown(text.reader.unknown))
    broken = f" {log.damage}" if log.damage else ""
    found = f"No training log found in {log.path} {nothing_on_its_lines(text.names)}"
    if options.columns:
        named = ", ".join(options.columns.values())
        found = f"No training log found in {log.path}: no lines with the numbers {named}."
    return f"{found}{unread}{broken}"


def nothing_on_its_lines(names: Sequence[str] = ()) -> str:
    """The rest of the sentence about a log with no training in it: what was looked for, what to do.

    `names` are those of its numbers.
    """
    called = f"Its numbers are called {', '.join(names)}; say which is the loss" if names else (
        "If it is one, say what it calls the loss"
    )  # fmt: skip
    return (
        "(no line tells of a training step: its loss, its learning rate or its loss scale). "
        f"{called}: --map loss=NAME. Known formats: {', '.join(known_sources())}. If you know its "
        "format, name it with --format."
    )


def known_sources() -> tuple[str, ...]:
    """The names of all log formats that can be imported, text and table."""
    return tuple(sorted({*source_names(), *SOURCES}))


# --- a log of each rank ---------------------------------------------------------------------------

# A folder in which each rank wrote logs of its own becomes one run with all of them.
#
# A file says its rank in its name: `training.global_rank_3.….jsonl` of torchtitan,
# `nvdlfw_inspect_globalrank-3.log` of NVIDIA's inspector. Several of one rank are its attempts.

_RANK = re.compile(r"global_?rank[-_](\d{1,6})(?!\d)")
_PLACES = ("*", "*/*")  # of the inspector's two folders one holds the statistics


def rank_logs(folder: Path) -> dict[int, list[Path]]:
    """The logs of each rank in a folder, by name; empty if no file's name says its rank."""
    logs: dict[int, list[Path]] = {}
    if not folder.is_dir() or (folder / "run.json").exists():
        return logs
    for path in sorted(path for place in _PLACES for path in folder.glob(place)):
        match = _RANK.search(path.name)
        if match is not None and path.is_file():
            logs.setdefault(int(match[1]), []).append(path)
    return dict(sorted(logs.items()))


def import_ranks(
    place: Path,
    logs: Mapping[int, Sequence[Path]],
    out: Path,
    options: ImportOptions,
    on_progress: OnProgress | None = None,
) -> Path:
    """Import a folder's logs of all ranks as one run; raises LogError if none holds a training."""
    size = sum(path.stat().st_size for paths in logs.values() for path in paths)
    read = 0
    described = False
    with new_run(str(place), out, options) as (folder, info):
        for rank, paths in logs.items():
            described |= _import_rank(folder, info, options, rank, paths, is_first=not described)
            read += sum(path.stat().st_size for path in paths)
            if on_progress is not None:
                on_progress(read, size)
        if not described:
            ranks = count_text(len(logs), "rank")
            raise LogError(f"The logs of {ranks} in {place} hold no training.", path=place)
    return folder


def _import_rank(
    folder: Path,
    info: RunInfo,
    options: ImportOptions,
    rank: int,
    paths: Sequence[Path],
    *,
    is_first: bool,
) -> bool:
    """Import one rank's logs; whether they hold a training. The first one describes the run."""
    with closing(TextImport(folder, info, options, rank)) as text:
        for path in paths:
            with LogFile(path) as log:
                for chunk in log.chunks():
                    text.feed(chunk)
        text.finish()
        if text.knows_training and is_first:
            text.describe()
    if not text.knows_training:
        shutil.rmtree(rank_folder(folder, rank), ignore_errors=True)
    return text.knows_training


# --- a log that is still written ------------------------------------------------------------------

# Follows a text log that another trainer still writes, and imports it while it grows.
#
# When a pipe is followed, a thread of its own first passes it on and then hands it over for
# reading: whatever happens to the reading, the trainer's output goes on.

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
        if self._text.knows_training:
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
