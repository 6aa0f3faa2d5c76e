"""A published run that whoever judges it waits for, so that a test can act while it is judged."""

from __future__ import annotations

import os
from pathlib import Path

from ampwatch.fleet import list_published, publish


class StuckRun:
    """Publishes a run to a folder and puts a pipe, which has no end, in place of its detail."""

    def __init__(self, path: Path, place: str) -> None:
        publish(path, place)
        (row,) = [row for row in list_published(place) if row.name == path.name]
        self._detail = Path(place) / row.detail_path
        self._whole = self._detail.rename(self._detail.with_suffix(".whole"))
        os.mkfifo(self._detail)

    def come_loose(self) -> None:
        """From now on it can be read; who waits already waits for ever."""
        self._whole.replace(self._detail)
