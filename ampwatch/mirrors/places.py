"""From what the user writes to a mirror: which place it is, and what must be there for it.

Other projects' clients are loaded when somebody asks for a mirror there, never before.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from ampwatch.errors import MirrorError
from ampwatch.mirrors.readings import Mirror
from ampwatch.text import printable

EXAMPLES = (
    "tensorboard:DIR, prometheus://:9464, otlp://HOST:4318, wandb:PROJECT, mlflow:EXPERIMENT, "
    "trackio:PROJECT"
)
KINDS = ("tensorboard", "prometheus", "otlp", "otlps", "wandb", "mlflow", "trackio")
_LONGEST_REASON = 200  # letters
_WITH_RUNS = ("wandb", "mlflow", "trackio")  # a run of these may be active in this process


def open_mirror(place: str, *, is_inside: bool) -> Mirror:
    """The mirror that a place's name means; MirrorError says what is missing.

    `is_inside` is the training process, where runs of the user's own may be active.
    """
    kind, _, rest = place.partition(":")
    name = kind.strip().lower()
    if name not in KINDS:
        raise MirrorError(f"Nothing can be mirrored to {place!r}: name one of {EXAMPLES}.")
    told = {"scheme": "https"} if name == "otlps" else {}
    try:
        opened: Mirror = _file(name).open_mirror(rest.strip(), is_inside=is_inside, **told)
    except MirrorError:
        raise
    except Exception as error:
        raise MirrorError(f"Nothing can be mirrored to {kind}: {reason(error)}.") from error
    return opened


def open_mirrors(places: Sequence[str], *, is_inside: bool) -> list[Mirror]:
    """A mirror for each place; where one cannot be had, none is left open."""
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
            "No run of W&B, MLflow or trackio is active: begin it before ampwatch.mirror(), or "
            f"say where to: {EXAMPLES}."
        )
    return found


def _file(name: str) -> ModuleType:
    """One of our own files, which load this one; loaded when somebody asks for that place."""
    return import_module(f"ampwatch.mirrors.{'otlp' if name == 'otlps' else name}")


def client(module: str, package: str) -> Any:
    """A client's module; MirrorError names what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MirrorError(
            f"Mirroring there takes the package {package}, which cannot be loaded "
            f"({reason(error)}): pip install {package}."
        ) from error


def reason(error: Exception) -> str:
    """What a client said, without the password that an address in it may hold."""
    text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    text = re.sub(r"://[^/@\s]+@", "://…@", text)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
