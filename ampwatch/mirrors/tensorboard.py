"""TensorBoard: event files that grow, written by our own encoder without a client.

Each run has its own folder: TensorBoard follows only one file in a folder at a time, so a file
beside the user's would hide theirs.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np

from ampwatch.errors import MirrorError
from ampwatch.mirrors.updates import PREFIX, READINGS, Points, Update
from ampwatch.report import EventStream


def open_mirror(rest: str, *, is_inside: bool) -> TensorBoardMirror:
    """A mirror that writes TensorBoard's event files under the folder `rest`."""
    del is_inside
    if not rest:
        raise MirrorError("Where to write the event files is missing: write tensorboard:DIR.")
    return TensorBoardMirror(Path(rest).expanduser().absolute())


class TensorBoardMirror:
    """Writes DIR/RUN, or DIR/RUN/rank-N if several ranks train together."""

    label = "TensorBoard"
    shows_past = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[str, int], EventStream] = {}
        self._last: dict[str, tuple[int, float]] = {}  # the newest step of a run, and its time

    def take(self, update: Update) -> None:
        """Append to the runs' files."""
        for points in update.points:
            self._write(self._file(update, points.rank), points)
            self._last[update.info.id] = (
                int(points.steps[-1]),
                int(points.times_ns[-1]) / 1e9,
            )
        if update.diagnosis is not None:
            step, time_s = self._last.get(update.info.id, (0, update.info.started_ns / 1e9))
            first = min((rank for run, rank in self._files if run == update.info.id), default=0)
            text = textwrap.indent(
                update.findings_text, "    "
            )  # in Markdown, text that is shown unchanged
            self._file(update, first).text(f"{PREFIX}findings/text_summary", step, time_s, text)
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, update: Update, rank: int) -> EventStream:
        info = update.info
        if (info.id, rank) not in self._files:
            folder = self._folder / Path(update.place).name
            folder = folder / f"rank-{rank}" if info.world_size > 1 else folder
            folder.mkdir(parents=True, exist_ok=True)
            # Named by the run's start: a second mirror replaces the first one's file.
            name = f"events.out.tfevents.{info.started_ns // 10**9:010d}.ampwatch.{info.id[:8]}"
            self._files[info.id, rank] = EventStream(folder / name)
        return self._files[info.id, rank]

    def _write(self, file: EventStream, points: Points) -> None:
        steps = np.maximum(points.steps, 0)
        times_s = points.times_ns / 1e9
        for reading in READINGS:
            mask, values = points.known(reading.name)
            if len(values):
                file.scalars(points.prefix + reading.name, steps[mask], times_s[mask], values)
