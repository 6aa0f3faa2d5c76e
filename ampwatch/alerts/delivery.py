"""Sends alerts in a thread of its own, rate-limited, and tries again after failures.

Services are those of the library apprise, which is loaded only if an address is given. Any part of
an address may contain credentials, so only its scheme is ever shown.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ampwatch.alerts.alert_text import Alert, bundle
from ampwatch.diagnosis import Severity
from ampwatch.diagnosis.words import count_text
from ampwatch.errors import AlertError

EVERY_S = 60.0  # alerts within this time of the last message are sent as one
RETRY_S, LONGEST_RETRY_S = 30.0, 600.0
_MOST_WAITING = 100  # alerts kept for a service that does not answer; the oldest are dropped
INSTALL = "pip install 'ampwatch[notify]'"
EXAMPLES = "slack://…, discord://…, mailto://…, json://…"
ADDRESSES = "https://appriseit.com/services/"


@dataclass(frozen=True, slots=True)
class Service:
    """One address: its printable label, and a function that sends an alert there."""

    label: str
    send: Callable[[Alert], bool]  # whether the service accepted it


class Delivery:
    """Sends alerts to services, those within a minute as one message, and tries again.

    `put` returns at once. If a service does not accept an alert, it is tried again later, and
    `on_note` is told once. `close` sends what is waiting and reports what could not be sent.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        every_s: float = EVERY_S,
        retry_s: float = RETRY_S,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self._outboxes = [_Outbox(service, every_s, retry_s) for service in services]
        self._on_note = on_note or (lambda _: None)
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
        trouble = _trouble_in(outbox.service, bundle(alerts))
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


def _trouble_in(service: Service, alert: Alert) -> str | None:
    """Why a service did not accept an alert, if so; its exception may quote the address."""
    try:
        return None if service.send(alert) else "refused or unreachable"
    except Exception as error:  # noqa: BLE001  a hundred plug-ins of others; watching must go on
        return type(error).__name__


def open_services(addresses: Sequence[str]) -> tuple[Service, ...]:
    """A service for each address; AlertError says what is missing or not understood."""
    try:
        import apprise
    except ImportError as error:
        raise AlertError(
            f"Alerts need the library apprise, which is not installed: {INSTALL}."
        ) from error
    with warnings.catch_warnings():  # some of its plug-ins import what Python will drop
        warnings.simplefilter("ignore", DeprecationWarning)
        targets = [_target(apprise, at, address) for at, address in enumerate(addresses, 1)]
    labels = [f"{address.partition('://')[0].lower()}://…" for address in addresses]
    if len(set(labels)) < len(labels):
        labels = [f"{label} (number {at})" for at, label in enumerate(labels, 1)]
    return tuple(_service(apprise, *pair) for pair in zip(labels, targets, strict=True))


def _target(apprise: Any, at: int, address: str) -> Any:
    target = apprise.Apprise()
    if target.add(address):
        return target
    raise AlertError(
        f"Address number {at} is not one that apprise understands (not shown here, because it "
        f"may contain a password). Addresses look like {EXAMPLES}; {ADDRESSES} lists them."
    )


def _service(apprise: Any, label: str, target: Any) -> Service:
    kinds = {
        Severity.INFO: apprise.NotifyType.INFO,
        Severity.WARNING: apprise.NotifyType.WARNING,
        Severity.ERROR: apprise.NotifyType.FAILURE,
    }

    def send(alert: Alert) -> bool:
        kind = kinds[alert.severity]
        return bool(target.notify(title=alert.title, body=alert.body, notify_type=kind))

    return Service(label, send)
