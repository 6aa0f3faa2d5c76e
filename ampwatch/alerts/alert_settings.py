"""Whom alerts go to, as the user has set it up: a file in the user's state folder.

    STATE/alerts/settings.json    to whom, how bad, what, of which runs, on or off

Addresses hold passwords and tokens: only the user may read the file, and an address is never shown
again. It is changed under a lock and replaced whole, so that two who change it lose nothing. A file
that cannot be read is reported and left as it is.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ampwatch.diagnosis import RULES, Severity
from ampwatch.environment import state_folder
from ampwatch.errors import AlertError, RunInUseError, reason_of
from ampwatch.files import BAD_VALUES, make_private_folder, read_at_most, replace_file
from ampwatch.printable_text import printable
from ampwatch.store.locks import held

KINDS = {
    "AMP1*": "the loss scale",
    "AMP2*": "numbers too large or too small",
    "AMP3*": "the learning rate",
    "AMP4*": "the training loop",
    "AMP5*": "speed and memory",
    "AMP6*": "ranks that differ",
    "AMP7*": "fewer than 16 bits",
    "AMP9*": "the log, and runs that were cut off",
}
LEAST_WORDS = {
    Severity.ERROR: "errors only",
    Severity.WARNING: "warnings and errors",
    Severity.INFO: "everything, remarks too",
}
_NAMES = {rule.code: rule.name for rule in RULES}
_VERSION = 1
_FILE = "settings.json"
_MAX_BYTES = 1 << 20
_LOCK_WAIT_S = 5.0
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class AlertSetting:
    """One receiver of alerts. `what` and `runs` are patterns; without any, all are meant."""

    id: str
    address: str = field(repr=False)
    name: str = ""
    least: Severity = Severity.WARNING
    what: tuple[str, ...] = ()  # of codes and names of findings
    runs: tuple[str, ...] = ()  # of names of runs
    is_on: bool = True

    @property
    def label(self) -> str:
        """How it is shown; of the address only its scheme."""
        masked = masked_address(self.address)
        return f"{printable(self.name)} ({masked})" if self.name else masked

    @property
    def scope(self) -> str:
        """What it is told of, in a line."""
        what = ", ".join(map(what_text, self.what)) or "all findings"
        runs = ", ".join(map(printable, self.runs)) or "all runs"
        return f"{LEAST_WORDS[self.least]} · {what} · {runs}"

    def names(self, *words: str) -> bool:
        """Whether a finding of this code or name is meant."""
        return _fits(self.what, words)

    def wants_run(self, name: str) -> bool:
        """Whether a run of this name is meant."""
        return _fits(self.runs, (name,))


def masked_address(address: str) -> str:
    """An address as it may be shown: any part after its scheme may be a password."""
    scheme, mark, _ = address.partition("://")
    return f"{printable(scheme).lower()}://…" if mark else "…"


def what_text(pattern: str) -> str:
    """A setting's pattern of findings, with what it stands for."""
    meaning = KINDS.get(pattern) or _NAMES.get(pattern)
    return f"{pattern} {meaning}" if meaning else printable(pattern)


def new_setting(address: str, **parts: Any) -> AlertSetting:
    """A setting of alerts with an id of its own; AlertError if its parts make no sense."""
    return _checked(AlertSetting(secrets.token_hex(4), address.strip(), **parts))


def read_settings() -> tuple[AlertSetting, ...]:
    """The settings of alerts in the order they were made; AlertError if they cannot be read."""
    path = settings_path()
    try:
        told = json.loads(read_at_most(path, _MAX_BYTES))
        if told["version"] > _VERSION:
            raise AlertError(
                f"{path} was written by a newer ampwatch: install that one, or move the file away "
                "to start again."
            )
        return tuple(_from_json(one) for one in told["alerts"])
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise AlertError(f"{path} cannot be read ({reason_of(error)}).") from error
    except BAD_VALUES:  # the error may quote an address
        raise AlertError(
            f"{path}, which says whom alerts go to, is damaged. It is left as it is and no alerts "
            "are sent: repair it, or move it away and set alerts up again."
        ) from None


def add_setting(setting: AlertSetting) -> None:
    """Keep one more setting of alerts."""
    _change(lambda settings: (*settings, setting))


def change_setting(setting_id: str, **parts: Any) -> AlertSetting:
    """Change these parts of a setting of alerts; the setting as it is then."""
    changed: list[AlertSetting] = []

    def change(settings: tuple[AlertSetting, ...]) -> Iterable[AlertSetting]:
        changed.append(_checked(replace(_the(setting_id, settings), **parts)))
        return (changed[0] if one.id == setting_id else one for one in settings)

    _change(change)
    return changed[0]


def remove_setting(setting_id: str) -> None:
    """Forget a setting of alerts and its address."""
    _change(lambda settings: (one for one in settings if one.id != setting_id))


def settings_path() -> Path:
    """The file of the settings of alerts."""
    return alerts_folder() / _FILE


def alerts_folder() -> Path:
    """The folder in which alerts keep what is a user's; AlertError without a home."""
    try:
        return state_folder() / "alerts"
    except RuntimeError as error:
        raise AlertError(
            "There is no home folder to keep alerts in: set XDG_STATE_HOME."
        ) from error


# --- within ---------------------------------------------------------------------------------------


def _change(change: Callable[[tuple[AlertSetting, ...]], Iterable[AlertSetting]]) -> None:
    """Read, change and replace the settings while nobody else does."""
    path = settings_path()
    try:
        make_private_folder(path.parent)
        with held(path.parent, wait_s=_LOCK_WAIT_S):
            kept = [_to_json(one) for one in change(read_settings())]
            text = json.dumps({"version": _VERSION, "alerts": kept}, indent=1)
            replace_file(path, text.encode(), durable=True)
    except RunInUseError:
        raise AlertError(f"{path} is being changed by somebody else: try again.") from None
    except OSError as error:
        words = f"{path} cannot be written ({reason_of(error)}): nothing was changed."
        raise AlertError(words) from error


def _the(setting_id: str, settings: Sequence[AlertSetting]) -> AlertSetting:
    for one in settings:
        if one.id == setting_id:
            return one
    raise AlertError("This alert was removed meanwhile, so it was not changed.")


def _checked(setting: AlertSetting) -> AlertSetting:
    """The setting, tidied; AlertError if a part could never match anything."""
    for pattern in setting.what:
        if not any(_fits((pattern,), rule.names) for rule in RULES):
            raise AlertError(
                f"No finding is called {pattern!r}; `ampwatch explain` lists them, and AMP1* "
                "means all whose codes begin so."
            )
    if not setting.address:
        raise AlertError("Say where alerts are to go: an address such as slack://…")
    if "://" in setting.name:
        raise AlertError("A name is shown to everybody: an address must not be part of it.")
    name = printable(" ".join(setting.name.split()))[:_LONGEST_NAME]
    runs = tuple(dict.fromkeys(pattern.strip() for pattern in setting.runs if pattern.strip()))
    return replace(setting, name=name, runs=runs)


def _fits(patterns: Sequence[str], words: Sequence[str]) -> bool:
    return not patterns or any(
        pattern == word or fnmatchcase(word.casefold(), pattern.casefold())
        for pattern in patterns
        for word in words
    )


def _to_json(setting: AlertSetting) -> dict[str, Any]:
    return {
        "id": setting.id,
        "name": setting.name,
        "address": setting.address,
        "least": setting.least.value,
        "what": list(setting.what),
        "runs": list(setting.runs),
        "on": setting.is_on,
    }


def _from_json(told: dict[str, Any]) -> AlertSetting:
    return AlertSetting(
        id=_text(told["id"]),
        address=_text(told["address"]),
        name=_text(told["name"]),
        least=Severity(told["least"]),
        what=_texts(told["what"]),
        runs=_texts(told["runs"]),
        is_on=bool(told["on"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return tuple(map(_text, value))
