"""`watch_run`: a function of yours is called for each new finding, in a thread of its own."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ampwatch.alerts.news import News
from ampwatch.diagnosis import Engine, Finding
from ampwatch.errors import AmpwatchError, NotARunError
from ampwatch.store import Run, open_run


class Watched(Protocol):
    """What `attach` returns; only its run is needed, and when it began to write it."""

    @property
    def run_folder(self) -> Path | None: ...  # noqa: D102
    @property
    def began_ns(self) -> int: ...  # noqa: D102


def watch_run(
    run: Watched | str | Path, on_finding: Callable[[Finding], None], *, every_s: float = 2.0
) -> RunWatch:
    """Call `on_finding` with each warning and error found in a run, once, and when it gets worse.

    `run` is what `attach` returned, or a run's folder, in any process. A thread of its own reads
    the run's log every `every_s` seconds until the run ends: the training is not asked for
    anything, and `on_finding` may take its time. What it raises is warned of once. The thread ends
    with the run, with `close`, or with the process. With AMPWATCH=0 nothing is watched.
    """
    if isinstance(run, (str, Path)):
        return RunWatch(open_run(run), on_finding, every_s)
    opened = None if run.run_folder is None else open_run(run.run_folder)
    return RunWatch(opened, on_finding, every_s, run.began_ns)


class RunWatch:
    """A run being watched for findings; `close` takes a last look and ends it."""

    def __init__(
        self,
        run: Run | None,
        on_finding: Callable[[Finding], None],
        every_s: float,
        began_ns: int = 0,
    ) -> None:
        self._run = run
        self._began_ns = began_ns
        self._on_finding = on_finding
        self._every_s = every_s
        self._engine, self._news = Engine(), News()
        self._has_warned = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ampwatch-findings", daemon=True)
        if run is not None:
            self._thread.start()

    def close(self) -> None:
        """Take a last look and end."""
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> RunWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _work(self) -> None:
        assert self._run is not None, "without a run there is no thread"
        while True:
            is_last = self._closing.is_set()
            try:
                if not self._look(self._run) or is_last:
                    return
            except NotARunError:
                return  # the folder was removed
            except AmpwatchError as problem:
                self._warn(f"The run cannot be read: {problem}")
            self._closing.wait(self._every_s)

    def _look(self, run: Run) -> bool:
        """Look once; whether there may be more to come."""
        run.refresh()
        for finding in self._news.of(self._engine.feed(run).look()):
            self._tell(finding)
        # Of a run that is resumed, the end mark of the attempt before is no end.
        return not (run.clean_end and run.last_time_ns >= self._began_ns)

    def _tell(self, finding: Finding) -> None:
        try:
            self._on_finding(finding)
        except Exception as error:  # noqa: BLE001  theirs may raise anything; watching goes on
            self._warn(f"on_finding raised {type(error).__name__}: {error}")

    def _warn(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(f"ampwatch: {sentence} It goes on watching.")


def warn(sentence: str) -> None:
    """Say it in the user's own way; a filter that makes warnings errors does not end the thread."""
    try:
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(sentence, file=sys.stderr)
