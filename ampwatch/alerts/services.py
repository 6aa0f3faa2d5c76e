"""Services that take alerts: those of the library apprise, loaded only if an address is given.

Any part of an address may be a password, so only its scheme is ever shown, and what the library
logs is not passed on. What it logs while it sends says why a service did not accept something.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ampwatch.alerts.alert_settings import masked_address
from ampwatch.alerts.alert_text import Alert
from ampwatch.diagnosis import Severity
from ampwatch.errors import AlertError

INSTALL = "pip install 'ampwatch[notify]'"
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
    """What to install before anything can be sent, as a sentence; empty if it is there."""
    try:
        is_there = importlib.util.find_spec("apprise") is not None
    except ValueError:  # somebody has put something else in its place
        is_there = False
    return (
        "" if is_there else f"Alerts need the library apprise, which is not installed: {INSTALL}."
    )


def open_services(addresses: Sequence[str]) -> tuple[Service, ...]:
    """A service for each address; AlertError says what is missing or not understood."""
    if sentence := missing_library():
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
    labels = [masked_address(address) for address in addresses]
    if len(set(labels)) < len(labels):
        labels = [f"{label} (number {at})" for at, label in enumerate(labels, 1)]
    return tuple(_service(apprise, *pair) for pair in zip(labels, targets, strict=True))


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
    """Why it failed, in our words: its own may quote the address."""
    for line in reversed([line for line in lines if not _NO_REASON.search(line)]):
        for sign, meaning in _MEANINGS:
            found = re.search(sign, line, re.IGNORECASE)
            if found:
                return meaning.format(*found.groups())
    return _UNSAID
