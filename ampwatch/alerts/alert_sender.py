"""Sends alerts of live runs by the user's settings, from a dashboard or a recorder.

    settings, read again every two seconds -> one delivery a receiver
    live runs -> follower -> what this receiver has not had -> its delivery -> sent.json

Of each run one process sends, however many look at it. What a service has accepted is noted on
disk, so a restart repeats nothing, and what it had not accepted is sent after the restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ampwatch.alerts.alert_settings import AlertSetting, read_settings, settings_path
from ampwatch.alerts.alert_text import Alert, bundle
from ampwatch.alerts.delivery import Delivery, open_services
from ampwatch.alerts.sent_alerts import RunClaim, note_outcome, unfinished_runs
from ampwatch.alerts.session import LOOK_EVERY_S, RunAlerts
from ampwatch.errors import AlertError, AmpwatchError, NotARunError
from ampwatch.files import version_of
from ampwatch.follow import FollowedRun, Follower, FollowThread, State

SETTINGS_EVERY_S = 2.0
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
        self._take_settings()
        self._release()
        if self._receivers:
            for folder in (*self._unfinished, *self._live_runs()):
                self._follow.wake(folder)
            self._unfinished = []

    def _take_settings(self) -> None:
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
