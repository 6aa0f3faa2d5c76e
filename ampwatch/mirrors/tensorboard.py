"""TensorBoard: event files that grow, written by our own encoder; no client is needed.

Each run has a folder of its own: TensorBoard follows only one file of a folder at a time, so a file
beside the user's would hide theirs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ampwatch.errors import MirrorError
from ampwatch.mirrors.readings import PREFIX, READINGS, Bulletin, Points
from ampwatch.mirrors.words import findings_text
from ampwatch.report import EventStream


def open_mirror(rest: str, *, is_inside: bool) -> TensorBoardMirror:
    """A mirror that writes under the folder `rest`."""
    del is_inside
    if not rest:
        raise MirrorError("Say where the event files go: tensorboard:DIR.")
    return TensorBoardMirror(Path(rest).expanduser().absolute())


class TensorBoardMirror:
    """Writes DIR/RUN, and DIR/RUN/rank-N where several ranks train together."""

    label = "TensorBoard"
    shows_past = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[str, int], EventStream] = {}
        self._last: dict[str, tuple[int, float]] = {}  # the newest step of a run, and its time

    def take(self, bulletin: Bulletin) -> None:
        """Append to the runs' files."""
        for points in bulletin.points:
            self._write(self._file(bulletin, points.rank), points)
            self._last[bulletin.info.id] = (
                int(points.steps[-1]),
                int(points.times_ns[-1]) / 1e9,
            )
        if bulletin.diagnosis is not None:
            step, time_s = self._last.get(bulletin.info.id, (0, bulletin.info.started_ns / 1e9))
            first = min((rank for run, rank in self._files if run == bulletin.info.id), default=0)
            text = findings_text(bulletin.info.name, bulletin.place, bulletin.diagnosis)
            self._file(bulletin, first).text(f"{PREFIX}findings/text_summary", step, time_s, text)
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, bulletin: Bulletin, rank: int) -> EventStream:
        info = bulletin.info
        if (info.id, rank) not in self._files:
            folder = self._folder / Path(bulletin.place).name
            folder = folder / f"rank-{rank}" if info.world_size > 1 else folder
            folder.mkdir(parents=True, exist_ok=True)
            # By the run's own time: mirrored again, it takes the place of what is there.
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
