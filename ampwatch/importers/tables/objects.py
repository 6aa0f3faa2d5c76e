"""JSON: one object a line, or the Trainer's `trainer_state.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MOST_DEPTH = 6


def object_of(line: str) -> dict[str, Any] | None:
    """A line's object, its inner names joined by `/`; None where it is none."""
    text = line.strip().rstrip(",")
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return dict(_flat(found, "", _MOST_DEPTH)) if isinstance(found, dict) else None


def _flat(value: Mapping[str, Any], before: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, dict) and depth:
            yield from _flat(item, f"{before}{name}/", depth - 1)
        else:
            yield f"{before}{name}", item


def history_of(text: str) -> list[dict[str, Any]] | None:
    """The log history of a `trainer_state.json`; None for any other text."""
    if '"log_history"' not in text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    history = found.get("log_history") if isinstance(found, dict) else None
    if not isinstance(history, list):
        return None
    return [entry for entry in history if isinstance(entry, dict) and "loss" in entry]


def objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Each line's object; other lines are left out."""
    return (found for line in lines if (found := object_of(line)) is not None)
