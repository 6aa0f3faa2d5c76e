"""Sends alerts of live runs: by the user's settings, to addresses, or to a Python function.

A dashboard and a recorder send by the settings (`AlertSender`):

    settings, read again every two seconds -> one delivery a receiver
    live runs -> follower -> what this receiver has not had -> its delivery -> sent.json

Of each run one process sends, however many look at it. What a service has accepted is noted on
disk, so a restart repeats nothing, and what it had not accepted is sent after the restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.alerts.alert_settings import AlertSetting, read_settings, settings_path
from ampwatch.alerts.alert_text import LOST, Alert, alert_of, bundle, lost_alert
from ampwatch.alerts.delivery import Delivery, open_services
from ampwatch.alerts.sent_alerts import RunClaim, note_outcome, unfinished_runs
from ampwatch.diagnosis import Finding, Severity
from ampwatch.errors import AlertError, AmpwatchError, NotARunError, warn
from ampwatch.files import version_of
from ampwatch.follow import FollowedRun, Follower, FollowThread, NewFindings, State, follow

if TYPE_CHECKING:
    from ampwatch.probe import NoWatch, Watch

LOOK_EVERY_S = 1.0
SETTINGS_EVERY_S = 2.0
_UNCLEAN_END = "AMP902"
_NEWS_S = 86400.0  # a run that has been silent for longer and is over is no news


class AlertSender:
    """Sends until it is closed. `live_runs` gives the runs to follow; others are woken."""

    def __init__(
        self,
        live_runs: Callable[[], Iterable[Path]] = tuple,
        *,
        on_note: Callable[[str], None],
    ) -> None:
        self._live_runs, self._on_note = live_runs, on_note
        self._noted: set[str] = set()
        self._receivers: dict[str, _Receiver] = {}  # by the setting's id
        self._stamp: object = None
        self._unfinished: list[Path] | None = None  # what an earlier process has left
        self._claims: dict[str, RunClaim] = {}  # by the run's id
        self._ids: dict[Path, str] = {}
        self._over: set[str] = set()
        self._lock = threading.Lock()  # of the claims
        self._closing = threading.Event()
        self._follow = FollowThread(
            self._look, self._cannot_read, every_s=LOOK_EVERY_S, name="ampwatch-alerts"
        )
        self._thread = threading.Thread(
            target=self._work, name="ampwatch-alert-settings", daemon=True
        )
        self._thread.start()

    def wake(self, folder: Path) -> None:
        """Look at a run that rows have come for."""
        if self._receivers:
            self._follow.wake(folder)

    def hear(self, alive: frozenset[str]) -> None:
        """Take note of the ids of the runs whose trainers were heard of just now."""
        self._follow.hear(alive)

    def close(self, wait_s: float = 20.0) -> None:
        """Look once more, send what waits, and end."""
        self._closing.set()
        self._thread.join()
        self._follow.close()
        for receiver in self._receivers.values():
            receiver.delivery.close(wait_s)
        self._release()
        while self._claims:
            self._claims.popitem()[1].release(is_over=False)

    # --- every two seconds ------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                self._begin_round()
            except (AmpwatchError, OSError) as problem:
                self._note(f"Alerts: {problem}")
            if self._closing.wait(SETTINGS_EVERY_S):
                return

    def _begin_round(self) -> None:
        if self._unfinished is None:
            self._unfinished = list(unfinished_runs())
        self._apply_settings()
        self._release()
        if self._receivers:
            for folder in (*self._unfinished, *self._live_runs()):
                self._follow.wake(folder)
            self._unfinished = []

    def _apply_settings(self) -> None:
        """Send by the settings as they are; those that cannot be read change nothing."""
        stamp = version_of(settings_path())
        if stamp == self._stamp:
            return
        self._stamp = stamp
        before, now = self._receivers, {}
        for setting in read_settings():
            known = before.get(setting.id)
            if known is not None and known.setting == setting:
                now[setting.id] = known
            elif setting.is_on and (made := self._receiver(setting)) is not None:
                now[setting.id] = made
        self._receivers = now
        for key, receiver in before.items():
            if now.get(key) is not receiver:
                receiver.delivery.abandon()

    def _receiver(self, setting: AlertSetting) -> _Receiver | None:
        try:
            services = open_services([setting.address])
        except AlertError as problem:
            self._note(f"No alerts to {setting.label}: {problem}")
            note_outcome(setting.id, failure=str(problem))
            return None
        tried = partial(self._tried, setting.id)
        delivery = Delivery(services, on_note=self._note, on_tried=tried)
        self._note(f"Alerts go to {setting.label}.")
        return _Receiver(setting, delivery)

    def _release(self) -> None:
        """Let go of the runs that are over once nothing of them waits to be sent."""
        receivers = self._receivers.values()
        if not receivers:
            self._over = set(self._claims)
        waiting = {alert.run_id for one in receivers for alert in one.delivery.waiting}
        with self._lock:
            done, self._over = self._over - waiting, self._over & waiting
            for run_id in done:
                for receiver in receivers:
                    receiver.runs.pop(run_id, None)
                self._claims.pop(run_id).release(is_over=True)

    # --- each run, each second --------------------------------------------------------------------

    def _look(self, folder: Path, follower: Follower) -> bool:
        receivers = tuple(self._receivers.values())
        if not receivers:
            return True
        claim = self._claim(folder, follower)
        if claim is None:
            return follower.state() is not State.LIVE
        followed = follower.update()
        if not followed.is_over:
            claim.is_live()
        if not followed.is_over or followed.silent_s < _NEWS_S:
            for receiver in receivers:
                receiver.tell(folder, followed, claim)
        if followed.is_over:
            self._end(follower.run_id)
        return followed.is_over

    def _claim(self, folder: Path, follower: Follower) -> RunClaim | None:
        with self._lock:
            self._over.discard(follower.run_id)
            claim = self._claims.get(follower.run_id)
            if claim is None:
                claim = RunClaim.take(follower.run_id, folder)
                if claim is not None:
                    self._claims[follower.run_id], self._ids[folder] = claim, follower.run_id
            return claim

    def _end(self, run_id: str | None) -> None:
        with self._lock:
            if run_id in self._claims:
                self._over.add(run_id)

    def _cannot_read(self, folder: Path, problem: AmpwatchError) -> None:
        if isinstance(problem, NotARunError):  # it was deleted
            self._end(self._ids.get(folder))
        else:
            self._note(f"No alerts of {folder.name}: {problem}")

    # --- what became of it ------------------------------------------------------------------------

    def _tried(self, setting_id: str, alerts: Sequence[Alert], refusal: str | None) -> None:
        if refusal is not None:
            note_outcome(setting_id, failure=f"{refusal}; it is tried again")
            return
        for alert in alerts:
            claim = self._claims.get(alert.run_id)
            if claim is not None:
                claim.note(setting_id, alert.told)
        note_outcome(setting_id, title=bundle(alerts).title)

    def _note(self, sentence: str) -> None:
        if sentence not in self._noted:
            self._noted.add(sentence)
            self._on_note(sentence)


@dataclass(slots=True)
class _Receiver:
    """One setting that is on, its delivery, and what of each run it was told."""

    setting: AlertSetting
    delivery: Delivery
    runs: dict[str, RunAlerts] = field(default_factory=dict)

    def tell(self, folder: Path, followed: FollowedRun, claim: RunClaim) -> None:
        known = self.runs.get(followed.info.id)
        if known is None:
            known = RunAlerts(folder, self.setting, claim.told(self.setting.id))
            self.runs[followed.info.id] = known
        for alert in known.of(followed):
            self.delivery.put(alert)


# --- what of a run, and by `--notify` -------------------------------------------------------------


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
            asked = tuple(
                each
                for each in diagnosis.findings
                if self._setting.names(each.code, each.name, *each.former_names)
            )
            diagnosis = replace(diagnosis, findings=asked)
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


# --- to a Python function -------------------------------------------------------------------------


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
