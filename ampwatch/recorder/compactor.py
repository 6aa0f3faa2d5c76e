"""Compacts finished copies, one after the other, beside the thread that receives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ampwatch import store
from ampwatch.errors import AmpwatchError, RunInUseError

_PATIENCE_S = 10.0


class Compactor:
    """Takes finished runs; what goes wrong is a sentence for `on_note`, and the run stays."""

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._on_note = on_note
        self._latest: threading.Thread | None = None

    def compact(self, folder: Path) -> None:
        """Compact a run when those before it are done."""
        self._latest = threading.Thread(
            target=self._work, args=(folder, self._latest), name="ampwatch-compact", daemon=True
        )
        self._latest.start()

    def finish(self) -> None:
        """Wait a while for what was begun; abandoned, it leaves the run as it was."""
        if self._latest is not None:
            self._latest.join(_PATIENCE_S)

    def _work(self, folder: Path, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            store.compact(folder)
        except RunInUseError:
            return  # the run goes on, or somebody else compacts it
        except (OSError, AmpwatchError) as error:
            self._on_note(f"{folder} could not be compacted and stays as it is: {error}")
