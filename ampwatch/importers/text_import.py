"""A text log in, a run's folder out."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from ampwatch.errors import LogError
from ampwatch.importers.asking import Seen, Wanted, fresh_info
from ampwatch.importers.format import Format
from ampwatch.importers.lines import LineCutter
from ampwatch.importers.reader import Reader, Unknown
from ampwatch.importers.registry import BY_SOURCE, FORMATS
from ampwatch.importers.rowbook import RowBook, StoreSink
from ampwatch.importers.source import Source
from ampwatch.importers.timeline import Timeline
from ampwatch.rows import Mark
from ampwatch.store import RunInfo, create_run, describe_run


class TextImport:
    """A text log on its way into a run's folder; fed with bytes, finished or living on."""

    def __init__(self, folder: Path, info: RunInfo, formats: Sequence[Format]) -> None:
        self.folder = folder
        self._info = info
        self._sink = StoreSink(folder)
        self.timeline = Timeline(RowBook(self._sink))
        self.reader = Reader(formats, self.timeline)
        self._cutter = LineCutter(self.reader.anchors)

    def feed(self, chunk: bytes) -> None:
        """Take in the next bytes."""
        self.reader.feed(self._cutter.feed(chunk))

    def finish(self) -> None:
        """The log has ended."""
        self.reader.feed(self._cutter.finish())
        self.timeline.finish()

    def close(self) -> None:
        """Let go of the run's folder."""
        self._sink.close()

    def describe(self, notes: Sequence[str] = ()) -> RunInfo:
        """The run as the log tells of it, so far."""
        form = self.reader.source()
        info = described(self._info, self.timeline, form, [*notes, *_unknown(self.reader.unknown)])
        describe_run(self.folder, info)
        return info


def described(
    info: RunInfo, timeline: Timeline, form: Format | None, notes: Sequence[str]
) -> RunInfo:
    """The run's description with what was learnt."""
    marks: dict[str, set[str]] = {
        column: {mark.value for mark in marks} for column, marks in timeline.marks.items()
    }
    for column, more in (form.marks if form else {}).items():
        marks.setdefault(column, set()).update(more)
    scaler = {**(form.scaler if form else {}), **timeline.scaler}
    if not _is_confirmed(scaler.get("init_scale"), timeline.first_scale):
        scaler.pop("init_scale", None)
    for name in scaler.keys() - timeline.scaler.keys():
        marks[f"scaler.{name}"] = {Mark.ASSUMED.value}
    return dataclasses.replace(
        info,
        source=form.source if form else info.source,
        config=dict(timeline.config),
        scaler=scaler,
        started_ns=timeline.started_ns or info.started_ns,
        notes=tuple(notes),
        marks={column: sorted(found) for column, found in sorted(marks.items())},
    )


def _is_confirmed(initial: float | None, first: float | None) -> bool:
    """Whether the run began at the framework's default: else nobody knows its initial scale."""
    return initial is not None and first is not None and initial == first


def _unknown(unknown: Unknown) -> list[str]:
    if not unknown.count:
        return []
    lines = "line looks" if unknown.count == 1 else "lines look"
    what = f"{unknown.count:,} {lines} like a scale message of no known format"
    return [f"{what}, for example: {unknown.example!r}."]


def formats_for(wanted: str | None) -> Sequence[Format]:
    """All text formats, or the one that is asked for; raises LogError for one nobody knows."""
    if wanted is None:
        return FORMATS
    if wanted not in BY_SOURCE:
        raise LogError(f"No format is called {wanted!r}: there are {', '.join(sorted(BY_SOURCE))}.")
    return (BY_SOURCE[wanted],)


def import_text(source: Source, out: Path, wanted: Wanted, seen: Seen | None = None) -> Path:
    """A text log as a run in the folder `out`; raises LogError where it tells of no training."""
    info = fresh_info(source.path, wanted)
    folder = create_run(out, info)
    text = TextImport(folder, info, formats_for(wanted.source))
    try:
        size = 0
        for chunk in source.chunks():
            size += len(chunk)
            text.feed(chunk)
            if seen is not None:
                seen(source.read_bytes, source.size_bytes)
        text.finish()
        text.describe([] if source.damage is None else [source.damage])
    except BaseException:
        text.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    text.close()
    if not text.timeline.attempts:
        shutil.rmtree(folder, ignore_errors=True)
        raise LogError(_nothing_in(source, size, text.reader.unknown), path=source.path)
    return folder


def _nothing_in(source: Source, size: int, unknown: Unknown) -> str:
    if not size:
        return (
            f"{source.path} is empty."
            if source.damage is None
            else (f"{source.path} holds nothing readable: {source.damage}")
        )
    told = "".join(f" {sentence}" for sentence in _unknown(unknown))
    broken = f" {source.damage}" if source.damage else ""
    return (
        f"{source.path} holds no training that is recognised: neither a loss scale nor "
        f"statistics of steps. Name its format with --as if there is one.{told}{broken}"
    )
