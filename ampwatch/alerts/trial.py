"""A test message: sent at once, in a thread of its own, and what became of it in plain words."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from ampwatch.alerts.alert_settings import AlertSetting
from ampwatch.alerts.alert_text import Alert
from ampwatch.alerts.sent_alerts import note_outcome
from ampwatch.alerts.services import open_services, refusal_of
from ampwatch.diagnosis import Severity
from ampwatch.errors import AlertError

LIMIT_S = 10.0  # then nobody waits for it any longer
_TITLE = "ampwatch: a test message"
_BODY = (
    "Alerts of your training runs will come here: what broke, since which step, why, and what to "
    "do. Nothing is wrong now; somebody wanted to see whether this arrives."
)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Whether a test message was accepted, and by whom, or why not."""

    is_accepted: bool
    sentence: str


class Trial:
    """A test message on its way; `result` is None until it is known, at most ten seconds long."""

    def __init__(self, setting: AlertSetting, *, limit_s: float = LIMIT_S) -> None:
        self._setting, self._limit_s = setting, limit_s
        self._began_s = time.monotonic()
        self._result: TrialResult | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._send, name="ampwatch-trial", daemon=True)
        self._thread.start()

    @property
    def result(self) -> TrialResult | None:
        """What became of it, if that is known."""
        if self._result is None and self.age_s > self._limit_s:
            self._settle("", self._too_late)
        return self._result

    def wait(self) -> TrialResult:
        """The same, once it is known."""
        self._thread.join(self._limit_s)
        if self._result is None:
            self._settle("", self._too_late)
        assert self._result is not None
        return self._result

    @property
    def age_s(self) -> float:
        """How long ago it was sent off."""
        return time.monotonic() - self._began_s

    @property
    def _too_late(self) -> str:
        return f"it did not answer within {self._limit_s:g} seconds"

    def _send(self) -> None:
        try:
            [service] = open_services([self._setting.address])
        except AlertError as problem:
            self._settle("", str(problem))
            return
        self._settle(service.kind, refusal_of(service, Alert(_TITLE, _BODY, Severity.INFO)))

    def _settle(self, kind: str, refusal: str | None) -> None:
        with self._lock:
            if self._result is not None:
                return  # nobody waits for it any longer
            if refusal is None:
                said = f"Accepted by {kind} after {_time_text(self.age_s)}: it should have come."
            else:
                said = f"Not accepted: {refusal.rstrip('.')}."
            self._result = TrialResult(refusal is None, said)
        if refusal is None:
            note_outcome(self._setting.id, title=_TITLE)
        else:
            note_outcome(self._setting.id, failure=refusal)


def _time_text(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1.0 else f"{seconds:.1f} s"
