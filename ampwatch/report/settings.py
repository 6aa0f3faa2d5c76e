"""A run's settings as flat names and texts: configuration, optimizer, scaler, versions, host."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ampwatch.diagnosis.signals import detail_of
from ampwatch.rows import EventKind, Mark, Table
from ampwatch.store import Run

_MOST_LETTERS = 300  # of one value: a config may hold a whole vocabulary


def settings_of(run: Run) -> dict[str, str]:
    """Every recorded setting by its dotted name, without assumed defaults."""
    info = run.info
    is_ours = info.source == "ampwatch"
    groups: dict[str, Any] = {
        "command": shlex.join(info.command),
        "config": info.config,
        "optimizer": _optimizers(run),
        "scaler": info.scaler,
        "autocast": _autocast(run),
        "versions": info.versions,
        "host": info.host,
        "processes": info.world_size if is_ours else "",
    }
    assumed = {name for name, marks in info.marks.items() if Mark.ASSUMED.value in marks}
    return {name: text for name, text in _flat("", groups) if text and name not in assumed}


def assumed_settings(run: Run) -> dict[str, str]:
    """The framework's defaults that a foreign log's scale was read against, by dotted name."""
    marks = run.info.marks
    every = dict(_flat("scaler", run.info.scaler))
    return {name: text for name, text in every.items() if Mark.ASSUMED.value in marks.get(name, ())}


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inside in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inside)
    else:
        yield prefix, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def _optimizers(run: Run) -> dict[str, Any]:
    """Each optimizer as first seen; by number where there are several."""
    events = run.read(Table.EVENTS, ("kind", "detail"), min(run.ranks, default=0))
    found: dict[str, Any] = {}
    for row in events.to_pylist():
        if row["kind"] == EventKind.OPTIMIZER.value:
            detail = detail_of(row["detail"])
            found.setdefault(str(detail.get("optimizer", 0)), _by_group(detail))
    return found if len(found) != 1 else next(iter(found.values()))


def _by_group(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Its groups by number where there are several."""
    groups = detail.get("groups")
    rest = {name: value for name, value in detail.items() if name not in {"groups", "optimizer"}}
    if not isinstance(groups, list):
        return rest
    if len(groups) == 1 and isinstance(groups[0], Mapping):
        return {**groups[0], **rest}
    return {**rest, "group": {str(number): group for number, group in enumerate(groups)}}


def _autocast(run: Run) -> str:
    rows = run.read(Table.STEPS, ("autocast_dtype",), min(run.ranks, default=0))
    return ", ".join(name for name in rows.column("autocast_dtype").unique().to_pylist() if name)
