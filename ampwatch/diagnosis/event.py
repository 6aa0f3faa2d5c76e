"""One event of a run, and its detail as a mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ampwatch.rows import EventKind

_LARGEST = 2**1000


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run: its step, rank and kind, and its detail as a mapping."""

    step: int
    rank: int
    kind: str
    detail: Mapping[str, Any]

    @property
    def exception(self) -> str:
        """The type of the exception, if the event reports one."""
        return str(self.detail.get("exception") or self.detail.get("type") or "an exception")

    @property
    def layer(self) -> str | None:
        """The layer that the event names; None if it names none."""
        layer = self.detail.get("layer")
        return str(layer) if layer else None

    def is_traced_to(self, direction: str) -> bool:
        """Whether the event is an overflow traced to this: input, forward, loss, weights ..."""
        return self.kind == EventKind.OVERFLOW.value and self.detail.get("direction") == direction

    def retraced(self, direction: str, layer: str) -> Event:
        """The same overflow event, traced to a layer of another model."""
        detail = {**self.detail, "direction": direction, "layer": layer}
        return Event(self.step, self.rank, self.kind, detail)

    @property
    def is_guarded(self) -> bool:
        """Whether the event reports a non-finite forward pass after which the loop took no step."""
        return self.detail.get("guarded") is True


def detail_of(text: str | None) -> Mapping[str, Any]:
    """The detail of an event, read from its JSON text; other text is kept under the key `text`."""
    if not text:
        return {}
    try:
        detail = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    return detail if isinstance(detail, dict) else {"text": detail}


def positive_number(value: Any) -> float | None:
    """A number above zero from an event's detail or run.json; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        value = min(value, _LARGEST)  # JSON's whole numbers have no end
    return float(value) if value > 0 else None
