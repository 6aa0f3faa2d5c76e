"""From what the user writes to a mirror: which place it is, and what must be there for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ampwatch.errors import MirrorError
from ampwatch.mirrors import mlflow, otlp, prometheus, tensorboard, trackio, wandb
from ampwatch.mirrors.clients import reason
from ampwatch.mirrors.readings import Mirror

EXAMPLES = (
    "tensorboard:DIR, prometheus://:9464, otlp://HOST:4318, wandb:PROJECT, mlflow:EXPERIMENT, "
    "trackio:PROJECT"
)


@dataclass(frozen=True, slots=True)
class _Place:
    """One kind of place: how it is opened, and whether a run of it is active."""

    open: Callable[..., Mirror]  # with what follows the colon, and is_inside
    is_active: Callable[[], bool] = lambda: False


PLACES = {
    "tensorboard": _Place(tensorboard.open_mirror),
    "prometheus": _Place(prometheus.open_mirror),
    "otlp": _Place(otlp.open_mirror),
    "otlps": _Place(partial(otlp.open_mirror, scheme="https")),
    "wandb": _Place(wandb.open_mirror, wandb.is_active),
    "mlflow": _Place(mlflow.open_mirror, mlflow.is_active),
    "trackio": _Place(trackio.open_mirror, trackio.is_active),
}


def open_mirror(place: str, *, is_inside: bool) -> Mirror:
    """The mirror that a place's name means; MirrorError says what is missing.

    `is_inside` is the training process, where runs of the user's own may be active.
    """
    kind, _, rest = place.partition(":")
    known = PLACES.get(kind.strip().lower())
    if known is None:
        raise MirrorError(f"Nothing can be mirrored to {place!r}: name one of {EXAMPLES}.")
    try:
        return known.open(rest.strip(), is_inside=is_inside)
    except MirrorError:
        raise
    except Exception as error:
        raise MirrorError(f"Nothing can be mirrored to {kind}: {reason(error)}.") from error


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
    found = [name for name, place in PLACES.items() if name in sys.modules and place.is_active()]
    if not found:
        raise MirrorError(
            "No run of W&B, MLflow or trackio is active: begin it before ampwatch.mirror(), or "
            f"say where to: {EXAMPLES}."
        )
    return found
