"""trackio: every row at its own step, and alerts."""

from __future__ import annotations

import contextvars
import inspect
from typing import Any

from ampwatch.diagnosis import Severity
from ampwatch.errors import MirrorError
from ampwatch.mirrors.mirroring import client
from ampwatch.mirrors.updates import Update
from ampwatch.store import RunInfo

_LEVELS = {Severity.INFO: "INFO", Severity.WARNING: "WARN", Severity.ERROR: "ERROR"}
# Do not log the mirroring machine's own metrics; older versions have fewer of these options.
_QUIET = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}


def is_active() -> bool:
    """Whether this thread has an active trackio run."""
    return _active(client("trackio", "trackio")) is not None


def open_mirror(rest: str, *, is_inside: bool) -> TrackioMirror:
    """A mirror to the active trackio run, or to new runs in the project `rest`."""
    trackio = client("trackio", "trackio")
    if rest or not is_inside:
        return TrackioMirror(trackio, project=rest or "ampwatch")
    run = _active(trackio)  # the active run belongs to the thread that began it
    if run is None:
        raise MirrorError(
            "No trackio run is active: call trackio.init() before ampwatch.mirror(), or name a "
            "project, as in trackio:PROJECT, for a run of its own."
        )
    return TrackioMirror(trackio, run=run)


class TrackioMirror:
    """Logs to the given run, or to a new run for each of ours."""

    label = "trackio"

    def __init__(self, trackio: Any, *, run: Any = None, project: str = "") -> None:
        self._trackio, self._run, self._project = trackio, run, project
        self._own: dict[str, Any] = {}
        self.shows_past = run is None

    def take(self, update: Update) -> None:
        """Log every row, and send an alert for each new finding."""
        run = self._run or self._begun(update.info)
        for points in update.points:
            for step, _, readings in points.one_by_one():
                run.log(readings, step=step)
        alert = update.alert
        if alert is not None:
            level = getattr(self._trackio.AlertLevel, _LEVELS[alert.severity])
            run.alert(alert.title, alert.body, level, update.fresh[0].first_step)
        if update.is_over and update.info.id in self._own:
            self._own.pop(update.info.id).finish()

    def close(self) -> None:
        """Finish our own runs; the user finishes the active one."""
        while self._own:
            self._own.popitem()[1].finish()

    def _begun(self, info: RunInfo) -> Any:
        if info.id not in self._own:
            known = inspect.signature(self._trackio.init).parameters
            quiet = {name: value for name, value in _QUIET.items() if name in known}
            # In a separate context, because init() finishes the run that it finds in its context.
            self._own[info.id] = contextvars.Context().run(
                self._trackio.init, self._project, name=info.name, config=dict(info.config), **quiet
            )
        return self._own[info.id]


def _active(trackio: Any) -> Any:
    return trackio.context_vars.current_run.get()
