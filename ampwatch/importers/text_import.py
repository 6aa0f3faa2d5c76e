"""Imports a whole text log as a run."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from ampwatch.errors import LogError
from ampwatch.importers.format import Format
from ampwatch.importers.formats import formats_for, formats_learned, source_names
from ampwatch.importers.formats.giving_up import is_of_training_program
from ampwatch.importers.import_options import ImportOptions, OnProgress, fresh_info
from ampwatch.importers.line_reader import LineReader, Unknown
from ampwatch.importers.line_splitter import LineSplitter, plain_lines, shape_of
from ampwatch.importers.log_file import LogFile
from ampwatch.importers.named_numbers import names_of, numbers_in
from ampwatch.importers.row_writer import RowWriter, StoreSink
from ampwatch.importers.run_builder import RunBuilder
from ampwatch.importers.table_import import SOURCES
from ampwatch.rows import Mark
from ampwatch.store import RunInfo, create_run, describe_run

_MOST_UNREAD_BYTES, _MOST_NAMED_LINES, _LEAST_COMPARED_BYTES = 8 << 20, 2000, 1 << 16
_MOST_SHAPES = 100_000
_GROWN = 1.25  # times: so much more text is read anew by what it teaches


class TextImport:
    """Imports a text log into a run's folder; it is fed with the log's bytes."""

    def __init__(self, folder: Path, info: RunInfo, options: ImportOptions, rank: int = 0) -> None:
        self.folder = folder
        self._info = info
        self._sink = StoreSink(folder, rank)
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
        return self.builder.attempts > 0

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
            self.builder.expect_training()
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
    """A note on what a text log that asks for fp8 or fp4 does not say of it."""
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


def import_text(
    log: LogFile, out: Path, options: ImportOptions, on_progress: OnProgress | None = None
) -> Path:
    """Import a whole text log into the folder `out`; raises LogError if it holds no training."""
    info = fresh_info(log.path, options)
    folder = create_run(out, info)
    text = TextImport(folder, info, options)
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
        raise LogError(_nothing_in(log, size, text, options), path=log.path)
    return folder


def _nothing_in(log: LogFile, size: int, text: TextImport, options: ImportOptions) -> str:
    if not size:
        return (
            f"{log.path} is empty."
            if log.damage is None
            else (f"{log.path} holds nothing readable: {log.damage}")
        )
    told = "".join(f" {sentence}" for sentence in _unknown(text.reader.unknown))
    broken = f" {log.damage}" if log.damage else ""
    found = f"No training log found in {log.path} {nothing_on_its_lines(text.names)}"
    if options.columns:
        named = ", ".join(options.columns.values())
        found = f"No training log found in {log.path}: no lines with the numbers {named}."
    return f"{found}{told}{broken}"


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
        "format, name it with --as."
    )


def known_sources() -> tuple[str, ...]:
    """The names of all log formats that can be imported, text and table."""
    return tuple(sorted({*source_names(), *SOURCES}))
