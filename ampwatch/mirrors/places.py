"""Turns the name of a place into a mirror, and checks what the place needs.

Clients of other projects are loaded only when somebody asks for a mirror there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from ampwatch.errors import MirrorError
from ampwatch.mirrors.updates import Update
from ampwatch.printable_text import cut, printable

EXAMPLES = (
    "tensorboard:DIR, prometheus://:9464, otlp://HOST:4318, wandb:PROJECT, mlflow:EXPERIMENT, "
    "trackio:PROJECT"
)
KINDS = ("tensorboard", "prometheus", "otlp", "otlps", "wandb", "mlflow", "trackio")
_LONGEST_REASON = 200  # letters
_WITH_RUNS = ("wandb", "mlflow", "trackio")  # tools whose runs may be active in this process


class Mirror(Protocol):
    """A place that shows runs. Used by one thread; may be slow and may raise.

    An update at which it raised is passed again later. `close` is called after the last one.
    """

    @property
    def label(self) -> str:
        """Its name in sentences."""

    @property
    def shows_past(self) -> bool:
        """Whether it also wants what was logged before this process began."""

    def take(self, update: Update) -> None:
        """Show an update of a run in this tool."""

    def close(self) -> None:
        """Send what is still waiting, and end."""


def open_mirror(place: str, *, is_inside: bool) -> Mirror:
    """The mirror for the name of a place; MirrorError says what is missing.

    `is_inside`: this is the training process, in which runs of the user may be active.
    """
    kind, _, rest = place.partition(":")
    name = kind.strip().lower()
    if name not in KINDS:
        raise MirrorError(f"There is no place {place!r} to mirror to. Places are {EXAMPLES}.")
    told = {"scheme": "https"} if name == "otlps" else {}
    try:
        opened: Mirror = _file(name).open_mirror(rest.strip(), is_inside=is_inside, **told)
    except MirrorError:
        raise
    except Exception as error:
        raise MirrorError(f"Cannot mirror to {kind}: {reason(error)}.") from error
    return opened


def open_mirrors(places: Sequence[str], *, is_inside: bool) -> list[Mirror]:
    """A mirror for each place; if one fails, none stays open."""
    opened: list[Mirror] = []
    try:
        for place in places:
            opened.append(open_mirror(place, is_inside=is_inside))  # noqa: PERF401  if one fails, those before it end
    except MirrorError:
        for mirror in opened:
            mirror.close()
        raise
    return opened


def active_places() -> list[str]:
    """The places where a run is active in this process; MirrorError if there is none."""
    found = [name for name in _WITH_RUNS if name in sys.modules and _file(name).is_active()]
    if not found:
        raise MirrorError(
            "No run of W&B, MLflow or trackio is active: start one before ampwatch.mirror(), or "
            f"name a place: {EXAMPLES}."
        )
    return found


def _file(name: str) -> ModuleType:
    """Our module for a place to mirror to, loaded when somebody asks for it."""
    return import_module(f"ampwatch.mirrors.{'otlp' if name == 'otlps' else name}")


def client(module: str, package: str) -> Any:
    """The module of a place's client; MirrorError says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MirrorError(
            f"This mirror needs the package {package}, which cannot be loaded ({reason(error)}): "
            f"pip install {package}."
        ) from error


def reason(error: Exception) -> str:
    """A client's error message, without passwords that an address in it may contain."""
    text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    text = re.sub(r"://[^/@\s]+@", "://…@", text)
    return cut(text, _LONGEST_REASON)
