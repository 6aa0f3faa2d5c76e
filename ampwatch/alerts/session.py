"""Reports the findings of runs to a Python function or to alert services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.alerts.alert_settings import AlertSetting
from ampwatch.alerts.alert_text import LOST, Alert, alert_of, lost_alert
from ampwatch.alerts.delivery import Delivery
from ampwatch.diagnosis import Finding, Severity
from ampwatch.errors import AmpwatchError, NotARunError, warn
from ampwatch.follow import FollowedRun, Follower, FollowThread, NewFindings, follow

if TYPE_CHECKING:
    from ampwatch.probe import NoWatch, Watch

LOOK_EVERY_S = 1.0
_UNCLEAN_END = "AMP902"


def watch_run(
    run: Watch | NoWatch | str | Path,
    on_finding: Callable[[Finding], None],
    *,
    every_s: float = 2.0,
) -> RunWatch:
    """Call `on_finding` with each warning and error in a run: once, and again when it worsens.

    `run` is what `attach` returned, or a run's folder, in any process. A thread reads the run's log
    every `every_s` seconds until the run is over. The training does nothing for it, and
    `on_finding` may be slow. If `on_finding` raises, a warning says so once.

    The thread ends with the run, with `close`, or with the process. A run whose training was killed
    is over as well: `every_s` and 3 seconds after its last process is gone or, on a disk without
    locks, after a minute without rows. With AMPWATCH=0 nothing is watched.
    """
    if isinstance(run, (str, Path)):
        return RunWatch(follow(run), on_finding, every_s)
    follower = None if run.run_folder is None else follow(run.run_folder)
    return RunWatch(follower, on_finding, every_s, run.began_ns)


class RunWatch:
    """A run that is being watched for findings; `close` looks once more and ends it."""

    def __init__(
        self,
        follower: Follower | None,
        on_finding: Callable[[Finding], None],
        every_s: float,
        began_ns: int = 0,
    ) -> None:
        self._on_finding = on_finding
        self._new = NewFindings()
        self._has_warned = False
        self._thread: FollowThread | None = None
        if follower is not None:
            self._thread = FollowThread(
                self._look, self._say_unreadable, every_s=every_s, name="ampwatch-findings"
            )
            self._thread.follow(follower.path, began_ns)

    @property
    def is_over(self) -> bool:
        """Whether watching has ended: the run is over, or this was closed."""
        return self._thread is None or not self._thread.is_at_work

    def close(self) -> None:
        """Look once more and end."""
        if self._thread is not None:
            self._thread.close()

    def __enter__(self) -> RunWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, _folder: Path, follower: Follower) -> bool:
        followed = follower.update()
        for finding in self._new.of(followed.diagnosis):
            self._call(finding)
        return followed.is_over

    def _call(self, finding: Finding) -> None:
        try:
            self._on_finding(finding)
        except Exception as error:  # noqa: BLE001  theirs may raise anything; watching goes on
            self._warn(f"on_finding raised {type(error).__name__}: {error}")

    def _say_unreadable(self, _folder: Path, problem: AmpwatchError) -> None:
        if not isinstance(problem, NotARunError):  # a deleted run cannot be read
            self._warn(f"The run cannot be read: {problem}")

    def _warn(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(f"{sentence} It goes on watching.", RuntimeWarning)


class RunAlerts:
    """What to report about one run: to one receiver, of whom `told` says what it has had."""

    def __init__(
        self,
        folder: Path,
        setting: AlertSetting | None = None,
        told: Mapping[str, Severity] | None = None,
    ) -> None:
        self._place = str(folder.absolute())
        self._setting = setting
        least = Severity.WARNING if setting is None else setting.least
        self._new = NewFindings(least=least, reported=told)
        self._was_over = LOST in (told or {})

    def of(self, followed: FollowedRun) -> list[Alert]:
        """New findings, and once, that the run ended without an end mark."""
        name, diagnosis = followed.info.name, followed.diagnosis
        if self._setting is not None:
            if not self._setting.wants_run(name):
                return []
            wanted = tuple(f for f in diagnosis.findings if self._setting.names(f.code, f.name))
            diagnosis = replace(diagnosis, findings=wanted)
        # A remark on the end says what the alert of a lost run says at more length.
        fresh = [
            finding
            for finding in self._new.of(diagnosis)
            if finding.code != _UNCLEAN_END or finding.severity is not Severity.INFO
        ]
        alerts = [alert_of(name, self._place, diagnosis, fresh)] if fresh else []
        was_over, self._was_over = self._was_over, followed.is_over
        ended_badly = any(finding.code == _UNCLEAN_END for finding in diagnosis.findings)
        if followed.is_over and not was_over and ended_badly:
            alerts.append(lost_alert(name, self._place, diagnosis))
        return alerts


def alert_session(delivery: Delivery, on_note: Callable[[str], None]) -> FollowThread:
    """A thread that sends alerts for the runs for which it is woken."""
    known: dict[Path, RunAlerts] = {}  # by folder; a run that is over may be resumed

    def look_at(folder: Path, follower: Follower) -> bool:
        followed = follower.update()
        for alert in known.setdefault(folder, RunAlerts(folder)).of(followed):
            delivery.put(alert)
        return followed.is_over

    def say(folder: Path, problem: AmpwatchError) -> None:
        on_note(f"No alerts of {folder.name}: {problem}")

    return FollowThread(look_at, say, every_s=LOOK_EVERY_S, name="ampwatch-alerts")
