"""Events of a run as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ampwatch.diagnosis.event import Event
from ampwatch.diagnosis.value_text import count_text, scale_text
from ampwatch.rows import EventKind

_MOST_RATES = 3


def title_of(kind: str) -> str:
    """The title of an event; an unknown kind, of a later version, is its own title."""
    return _SHOWN[kind][0] if kind in _SHOWN else kind


def text_of(event: Event) -> str:
    """The text beside an event's title."""
    words = _SHOWN[event.kind][1] if event.kind in _SHOWN else _unknown
    return words(event.detail)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def _from_to(detail: Mapping[str, Any]) -> str:
    return f"from {_number(detail.get('from'))} to {_number(detail.get('to'))}"


def _rate(detail: Mapping[str, Any]) -> str:
    told = [f"{name} {detail[name]}" for name in ("optimizer", "group") if detail.get(name)]
    which = f" of {' '.join(told)}" if told else ""  # unless it is the first
    return f"the learning rate{which} rose {_from_to(detail)}"


def _batch_size(detail: Mapping[str, Any]) -> str:
    return f"the batch went {_from_to(detail)} samples"


def _optimizer(detail: Mapping[str, Any]) -> str:
    groups = detail.get("groups")
    count = count_text(len(groups), "group") if isinstance(groups, list) else "unknown groups"
    rates = [g.get("lr") for g in groups if isinstance(g, dict)] if isinstance(groups, list) else []
    known = [_number(rate) for rate in dict.fromkeys(rates) if rate is not None]
    told = f", learning rate {', '.join(known[:_MOST_RATES])}" if known else ""
    return f"{detail.get('class', 'an optimizer')} with {count}{told}"


def _scaler(detail: Mapping[str, Any]) -> str:
    scale = detail.get("init_scale")
    told = f", initial scale {scale_text(scale)}" if isinstance(scale, (int, float)) else ""
    return f"the loop goes on with another {detail.get('class', 'scaler')}{told}"


def _loaded(detail: Mapping[str, Any]) -> str:
    scale = detail.get("scale")
    told = f" with scale {scale_text(scale)}" if isinstance(scale, (int, float)) else ""
    return f"a saved state was loaded into the {detail.get('of', 'scaler')}{told}"


def _exception(detail: Mapping[str, Any]) -> str:
    name = Event(0, 0, EventKind.EXCEPTION.value, detail).exception
    caught = "" if detail.get("fatal", True) else " (training went on)"
    layer = f" in {detail['layer']}" if detail.get("layer") else ""
    return f"{name}{layer}: {detail.get('message') or 'without a message'}{caught}"


def _control(detail: Mapping[str, Any]) -> str:
    if "offers" in detail:
        return f"a page may ask for: {', '.join(map(str, detail['offers']))}"
    return _told(detail)


def _told(detail: Mapping[str, Any]) -> str:
    return str(detail.get("told") or "")


def _misuse(detail: Mapping[str, Any]) -> str:
    return "" if detail.get("code") else _unknown(detail)


def _gap(detail: Mapping[str, Any]) -> str:
    lost = detail.get("lost_rows")
    count = count_text(lost, "row") if isinstance(lost, int) else "rows"
    return f"{count} of the record are missing: {detail.get('reason') or 'the reason is not known'}"


def _unknown(detail: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in detail.items())


_SHOWN: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    EventKind.OPTIMIZER.value: ("optimizer", _optimizer),
    EventKind.OPTIMIZER_REPLACED.value: ("optimizer replaced", _optimizer),
    EventKind.SCALER_REPLACED.value: ("scaler replaced", _scaler),
    EventKind.STATE_LOADED.value: ("state loaded", _loaded),
    EventKind.LR_CHANGED.value: ("learning rate", _rate),
    EventKind.BATCH_SIZE_CHANGED.value: ("batch size", _batch_size),
    EventKind.SCALE_SET.value: ("loss scale", lambda _: "the program itself set the loss scale"),
    EventKind.MISUSE.value: ("misuse", _misuse),
    EventKind.EXCEPTION.value: ("exception", _exception),
    EventKind.GAP.value: ("gap", _gap),
    EventKind.CONTROL.value: ("control", _control),
    EventKind.GUARD.value: ("guard", _told),
}  # fmt: skip
