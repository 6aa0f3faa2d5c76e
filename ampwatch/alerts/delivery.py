"""Send alerts to services: in a thread of its own with a limit and retries, or one test message.

The services are those of the library apprise, loaded only if an address is given. Any part of an
address may be a password, so only its scheme is ever shown, and what the library logs is not passed
on. What it logs while it sends says why a service did not accept something.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import logging
import re
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ampwatch.alerts.alert_settings import AlertSetting, masked_address
from ampwatch.alerts.alert_text import Alert, bundle
from ampwatch.alerts.sent_alerts import note_outcome
from ampwatch.diagnosis import Severity
from ampwatch.diagnosis.value_text import count_text, time_text
from ampwatch.errors import AlertError
from ampwatch.retry import Retry

_LACKING = "Alerts to Slack, by e-mail and such need the library apprise, which is not installed"
INSTALL = "pip install -e '.[notify]'"
EXAMPLES = "slack://…, discord://…, mailto://…, json://…"
ADDRESSES = "https://appriseit.com/services/"

# What stands in an error, and what it means to who set the alert up. The first that fits counts.
_MEANINGS = (
    (r"error=40[13]\b|\b535\b|authenticat", "it does not accept the password or token"),
    (r"error=404\b", "it knows nothing at this address (status 404)"),
    (r"error=429\b", "it has had too many messages lately (status 429)"),
    (r"error=(4\d\d)\b", "it refused the message (status {})"),
    (r"error=(\d\d\d)\b", "it failed by itself (status {})"),
    (r"timed? ?out", "it did not answer in time"),
    (r"certificate|wrong version number|\bssl\b", "there is no secure connection to it"),
    (r"refused", "nothing listens at that host and port"),
    (r"resolve|name or service|nodename|getaddrinfo", "there is no host of that name"),
    (r"unreachable|no route", "there is no way to that host from here"),
)
_NO_REASON = re.compile(r"URL: |Payload: ")  # lines that only repeat what was sent, and where
_UNSAID = "refused or unreachable"


@dataclass(frozen=True, slots=True)
class Service:
    """One address: its printable label, and a function that sends an alert there.

    The function returns whether the service accepted it; an AlertError says why not.
    """

    label: str
    send: Callable[[Alert], bool]
    kind: str = ""  # Slack, Discord, E-Mail, ...


def refusal_of(service: Service, alert: Alert) -> str | None:
    """Send an alert; why the service did not accept it, if so, without any part of its address."""
    try:
        return None if service.send(alert) else _UNSAID
    except AlertError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  a hundred plug-ins of others; watching must go on
        return type(error).__name__


def missing_library() -> str:
    """What to install before alerts can be sent, as a sentence; empty if it is there."""
    try:
        is_there = importlib.util.find_spec("apprise") is not None
    except ValueError:  # somebody has put something else in its place
        is_there = False
    return "" if is_there else f"{_LACKING}: {INSTALL}. A web hook of your own (json://) works."


def open_services(addresses: Sequence[str]) -> tuple[Service, ...]:
    """A service that takes alerts for each address; AlertError says what is wrong."""
    if sentence := missing_library():
        if all(is_web_hook(address) for address in addresses):
            return tuple(map(_web_hook, _labels(addresses), addresses))
        raise AlertError(sentence)
    import apprise

    _hear(apprise)  # before it is given an address
    with warnings.catch_warnings():  # some of its plug-ins import what Python will drop
        warnings.simplefilter("ignore", DeprecationWarning)
        alone = len(addresses) == 1
        targets = [
            _target(apprise, "The address" if alone else f"Address number {at}", address)
            for at, address in enumerate(addresses, 1)
        ]
    pairs = zip(_labels(addresses), targets, strict=True)
    return tuple(_service(apprise, *pair) for pair in pairs)


def _labels(addresses: Sequence[str]) -> list[str]:
    """What is shown of each address: its scheme, and a number where others have the same."""
    labels = [masked_address(address) for address in addresses]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} (number {at})" for at, label in enumerate(labels, 1)]


# --- a web hook, which needs no library -----------------------------------------------------------

_HOOKS = {"json": "http", "jsons": "https"}
_HOOK_WAIT_S = 10.0
_TYPES = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.ERROR: "failure"}


def is_web_hook(address: str) -> bool:
    """Whether an address is that of a plain web hook, which takes JSON."""
    parts = urlsplit(address)
    return parts.scheme in _HOOKS and bool(parts.hostname)


def _web_hook(label: str, address: str) -> Service:
    """A web hook of the user's own; it gets the message in the form that apprise gives it."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    url = urlunsplit((_HOOKS[parts.scheme], host, parts.path or "/", parts.query, ""))
    headers = {"Content-Type": "application/json"}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()

    def send(alert: Alert) -> bool:
        kind = _TYPES[alert.severity]
        message = {"version": "1.0", "title": alert.title, "message": alert.body, "type": kind}
        data = json.dumps(message).encode()
        request = urllib.request.Request(url, data, headers)  # noqa: S310 - http or https only
        try:
            with urllib.request.urlopen(request, timeout=_HOOK_WAIT_S):  # noqa: S310
                return True
        except urllib.error.HTTPError as error:
            raise AlertError(_meaning([f"error={error.code}"])) from None
        except OSError as error:
            raise AlertError(_meaning([str(error)])) from None

    return Service(label, send, "JSON")


def _target(apprise: Any, which: str, address: str) -> Any:
    target = apprise.Apprise()
    if target.add(address):
        return target
    hook = "A web hook of your own is json://host/path, or jsons:// for https. "
    raise AlertError(
        f"{which} is not one that apprise understands (not shown here, because it may contain a "
        f"password). {hook if address.startswith('http') else ''}"
        f"Addresses look like {EXAMPLES}; {ADDRESSES} lists them."
    )


def _service(apprise: Any, label: str, target: Any) -> Service:
    kinds = {
        Severity.INFO: apprise.NotifyType.INFO,
        Severity.WARNING: apprise.NotifyType.WARNING,
        Severity.ERROR: apprise.NotifyType.FAILURE,
    }
    places = list(target)  # its own `notify` may send in another thread, whose log is not ours

    def send(alert: Alert) -> bool:
        kind = kinds[alert.severity]
        _HEARD.lines = []
        if all(one.notify(title=alert.title, body=alert.body, notify_type=kind) for one in places):
            return True
        raise AlertError(_meaning(_HEARD.lines))

    return Service(label, send, str(places[0].service_name))


# --- what the library says while it sends ---------------------------------------------------------

_HEARD = threading.local()


class _Ear(logging.Handler):
    """Keeps what is logged in a thread that sends."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = getattr(_HEARD, "lines", None)
        if lines is not None:
            lines.append(record.getMessage())


def _hear(apprise: Any) -> None:
    """Have the library say why something failed to us and to nobody else: it quotes addresses."""
    log = logging.getLogger(apprise.__name__)
    if not any(isinstance(handler, _Ear) for handler in log.handlers):
        log.addHandler(_Ear())
        log.setLevel(logging.DEBUG)
        log.propagate = False


def _meaning(lines: Sequence[str]) -> str:
    """Why a service failed, in our words: its own may quote the address."""
    for line in reversed([line for line in lines if not _NO_REASON.search(line)]):
        for sign, meaning in _MEANINGS:
            found = re.search(sign, line, re.IGNORECASE)
            if found:
                return meaning.format(*found.groups())
    return _UNSAID


# --- delivery -------------------------------------------------------------------------------------

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


# --- a test message -------------------------------------------------------------------------------

LIMIT_S = 10.0  # then nobody waits for it any longer
_TITLE = "ampwatch: a test message"
_BODY = (
    "Alerts of your training runs will come here: what broke, since which step, why, and what to "
    "do. This is a test: somebody wanted to see whether it arrives."
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
                said = (
                    f"Accepted by {kind} after {time_text(1000 * self.age_s)}: it should have come."
                )
            else:
                said = f"Not accepted: {refusal.rstrip('.')}."
            self._result = TrialResult(refusal is None, said)
        if refusal is None:
            note_outcome(self._setting.id, title=_TITLE)
        else:
            note_outcome(self._setting.id, failure=refusal)
