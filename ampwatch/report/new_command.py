"""The command or the setting that began a run, with another learning rate in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampwatch.diagnosis import Record

_RATE_NAME = re.compile(r"^(?:.*[._-])?(?:lr|learning[_-]?rate|max[_-]lr|peak[_-]lr|base[_-]lr)$")
_MASK = "***"
_LONGEST = 160
_SAME = 1e-6


def command_with_rate(run: Record, current: float, advised: str) -> str | None:
    """The run's command with the advised learning rate in place of `current`, or the setting alone.

    None if neither the command nor the configuration shows the value. No secret is printed: where
    one was masked, only the option itself is.
    """
    argv = tuple(str(word) for word in getattr(run.info, "command", ()))
    changed, option = _changed(argv, current, advised)
    if option is not None:
        whole = f"{_program(argv)} {shlex.join(changed[1:])}"
        several = getattr(run.info, "world_size", 1) != 1
        if several or _MASK in whole or len(whole) > _LONGEST:
            return option
        return whole
    return next(_settings(run.info.config, current, advised), None)


def _program(argv: Sequence[str]) -> str:
    script = shlex.quote(argv[0])
    return f"python {script}" if script.endswith(".py") else script


def _changed(argv: Sequence[str], current: float, advised: str) -> tuple[list[str], str | None]:
    """The words of the command with the new value, and the option with it; None if it has none."""
    words, option = list(argv), None
    for at, word in enumerate(words[1:], start=1):
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-+")
        if not _RATE_NAME.match(name):
            continue
        if equals and _is(value, current):
            words[at] = option = f"{flag}={advised}"
        elif not equals and at + 1 < len(words) and _is(words[at + 1], current):
            words[at + 1] = advised
            option = f"{flag} {advised}"
    return words, option


def _is(text: str, current: float) -> bool:
    try:
        return abs(float(text) - current) <= _SAME * abs(current)
    except ValueError:
        return False


def _settings(config: Mapping[str, Any], current: float, advised: str) -> Iterator[str]:
    """The setting of a configuration that holds the learning rate, with the new value."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _settings(value, current, advised))
        elif _RATE_NAME.match(str(name).lower()) and _is(str(value), current):
            yield f"{name}={advised} (in the run's configuration)"
