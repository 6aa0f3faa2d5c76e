"""Sends alerts in a thread of its own, rate-limited, and tries again after failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ampwatch.alerts.alert_text import Alert, bundle
from ampwatch.alerts.services import Service, refusal_of
from ampwatch.diagnosis.words import count_text

EVERY_S = 60.0  # alerts within this time of the last message are sent as one
RETRY_S, LONGEST_RETRY_S = 30.0, 600.0
_MOST_WAITING = 100  # alerts kept for a service that does not answer; the oldest are dropped


class Delivery:
    """Sends alerts to services, those within a minute as one message, and tries again.

    `put` returns at once. If a service does not accept an alert, it is tried again later, and
    `on_note` is told once. `on_tried` is told of each try: the alerts, and why they were not
    accepted, if so. `close` sends what is waiting and reports what could not be sent.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        every_s: float = EVERY_S,
        retry_s: float = RETRY_S,
        on_note: Callable[[str], None] | None = None,
        on_tried: Callable[[Sequence[Alert], str | None], None] | None = None,
    ) -> None:
        self._outboxes = [_Outbox(service, every_s, retry_s) for service in services]
        self._on_note = on_note or (lambda _: None)
        self._on_tried = on_tried or (lambda _, __: None)
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="ampwatch-delivery", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Queue an alert."""
        with self._changed:
            for outbox in self._outboxes:
                outbox.put(alert)
            self._changed.notify()

    @property
    def waiting(self) -> tuple[Alert, ...]:
        """What a service has not accepted yet."""
        with self._changed:
            return tuple(alert for outbox in self._outboxes for alert in outbox.waiting)

    def abandon(self) -> None:
        """Drop what is waiting and end; returns at once."""
        with self._changed:
            for outbox in self._outboxes:
                outbox.waiting = []
            self._closing = True
            self._changed.notify()

    def close(self, wait_s: float = 20.0) -> None:
        """Send what is waiting and end; a service that hangs is abandoned after `wait_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(wait_s)
        for outbox in self._outboxes:
            left = len(outbox.waiting)
            if left:
                self._on_note(f"{count_text(left, 'alert')} could not be sent to {outbox.label}.")

    def __enter__(self) -> Delivery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (rest_s := self._rest_s()) != 0.0:
                    self._changed.wait(rest_s)
                closing = self._closing
            for outbox in self._outboxes:
                if outbox.waiting and (closing or outbox.retry.due_in_s == 0.0):
                    self._send(outbox)
            if closing:
                return

    def _rest_s(self) -> float | None:
        """How long until an outbox is due; None if nothing waits."""
        times = [outbox.retry.due_in_s for outbox in self._outboxes if outbox.waiting]
        return min(times, default=None)

    def _send(self, outbox: _Outbox) -> None:
        with self._changed:
            alerts = tuple(outbox.waiting)
        trouble = refusal_of(outbox.service, bundle(alerts))
        self._on_tried(alerts, trouble)
        with self._changed:
            first_failure = outbox.settle(alerts, failed=trouble is not None)
        if first_failure:
            self._on_note(
                f"{outbox.label} did not accept an alert ({trouble}). It is tried again; "
                "watching goes on."
            )


class _Outbox:
    """The alerts that wait for one service, and when they may be sent."""

    def __init__(self, service: Service, every_s: float, retry_s: float) -> None:
        self.service = service
        self.label = service.label
        self.waiting: list[Alert] = []
        self.retry = Retry(retry_s, LONGEST_RETRY_S)
        self._every_s = every_s

    def put(self, alert: Alert) -> None:
        self.waiting = [*self.waiting, alert][-_MOST_WAITING:]

    def settle(self, sent: Sequence[Alert], *, failed: bool) -> bool:
        """Note whether sending succeeded; True if this service failed for the first time."""
        if not failed:
            gone = {id(alert) for alert in sent}
            self.waiting = [alert for alert in self.waiting if id(alert) not in gone]
        return self.retry.note(failed=failed, rest_s=self._every_s)


class Retry:
    """When to try again: after a pause that doubles with each failure in a row."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self.failures = self.failures_in_a_row = 0
        self._first_s, self._longest_s = first_s, longest_s
        self._not_before_s = 0.0

    @property
    def due_in_s(self) -> float:
        """How long until the next try."""
        return max(0.0, self._not_before_s - time.monotonic())

    def note(self, *, failed: bool, rest_s: float = 0.0) -> bool:
        """Note whether a try succeeded; True if it is the first that failed."""
        pause_s = rest_s
        if failed:
            pause_s = min(self._first_s * 2.0 ** min(self.failures_in_a_row, 16), self._longest_s)
        self._not_before_s = time.monotonic() + pause_s
        self.failures_in_a_row = self.failures_in_a_row + 1 if failed else 0
        self.failures += failed
        return failed and self.failures == 1
