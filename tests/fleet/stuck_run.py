"""A published run that whoever judges it waits for, so that a test can act while it is judged."""

from __future__ import annotations

import os
from pathlib import Path

from ampwatch.fleet import list_published


class StuckRun:
    """In a folder to which the run was published alone: a pipe in place of what is read first."""

    def __init__(self, place: str, name: str) -> None:
        (row,) = [row for row in list_published(place) if row.name == name]
        self._detail = Path(place) / row.detail_path
        self._whole = self._detail.rename(self._detail.with_suffix(".whole"))
        os.mkfifo(self._detail)

    def come_loose(self) -> None:
        """From now on it can be read; who waits already waits for ever."""
        self._whole.replace(self._detail)
