"""Where alerts go: any service that the library apprise knows, by its address.

Loaded only when someone asks for it. An address holds credentials, in whichever of its parts, so
of an address nothing is ever shown but its scheme.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ampwatch.alerts.letters import Letter
from ampwatch.diagnosis import Severity
from ampwatch.errors import AlertError

INSTALL = "pip install 'ampwatch[notify]'"
EXAMPLES = "slack://…, discord://…, mailto://…, json://…"
ADDRESSES = "https://appriseit.com/services/"


@dataclass(frozen=True, slots=True)
class Service:
    """One address: what may be said of it, and how a letter is sent there."""

    label: str
    send: Callable[[Letter], bool]  # whether the service took it


def open_services(addresses: Sequence[str]) -> tuple[Service, ...]:
    """A service for each address; AlertError says what is missing or not understood."""
    try:
        import apprise
    except ImportError as error:
        raise AlertError(
            f"Alerts are sent by the library apprise, which is not installed: {INSTALL}."
        ) from error
    with warnings.catch_warnings():  # of its many plug-ins, some import what Python will drop
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
        f"The address to notify that was given as number {at} is none that apprise understands "
        f"(not shown here, for it may hold a password). Such an address looks like {EXAMPLES}; "
        f"{ADDRESSES} lists them."
    )


def _service(apprise: Any, label: str, target: Any) -> Service:
    kinds = {
        Severity.INFO: apprise.NotifyType.INFO,
        Severity.WARNING: apprise.NotifyType.WARNING,
        Severity.ERROR: apprise.NotifyType.FAILURE,
    }

    def send(letter: Letter) -> bool:
        kind = kinds[letter.severity]
        return bool(target.notify(title=letter.title, body=letter.body, notify_type=kind))

    return Service(label, send)
