"""A run's settings as flat names and texts: configuration, optimizer, scaler, versions, hardware.

The first word of a name is its section: `config.lr`, `optimizer.betas`, `versions.torch`.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from ampwatch.diagnosis.event import detail_of
from ampwatch.diagnosis.words import bytes_text, count_text
from ampwatch.rows import EventKind, Mark, Table
from ampwatch.store import Run, RunInfo

_MOST_LETTERS = 300  # of one value: a config may hold a whole vocabulary
_DEVICE = ("rank", "device", "name", "capability", "total_bytes")
_NEWEST = 64  # samples of a rank's devices; about one a second


def settings_of(run: Run) -> dict[str, str]:
    """Every recorded setting by its dotted name, without assumed defaults, long texts cut."""
    told = _told(run, _autocast(run))
    return {
        name: text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
        for name, text in told.items()
    }


def whole_settings(run: Run) -> dict[str, str]:
    """The same with uncut texts and the newest step's autocast; fast for runs of any length."""
    last = run.last_rows(Table.STEPS, ("autocast_dtype",), 1).column("autocast_dtype").to_pylist()
    return _told(run, (last or [""])[0] or "")


def _told(run: Run, autocast: str) -> dict[str, str]:
    info = run.info
    is_ours = info.source == "ampwatch"
    groups: dict[str, Any] = {
        "command": shlex.join(info.command),
        "code": info.origin,
        "config": info.config,
        "optimizer": _optimizers(run),
        "scaler": info.scaler,
        "autocast": autocast,
        "precision": _precision(run),
        "versions": info.versions,
        "environment": info.environment,
        "devices": _devices(run),
        "host": info.host,
        "processes": info.world_size if is_ours else "",
    }
    assumed = {name for name, marks in info.marks.items() if Mark.ASSUMED.value in marks}
    return {name: text for name, text in flat("", groups) if text and name not in assumed}


def assumed_settings(info: RunInfo) -> dict[str, str]:
    """The framework's defaults that were assumed for a foreign log, by dotted name."""
    marks = info.marks
    every = dict(flat("scaler", info.scaler))
    return {name: text for name, text in every.items() if Mark.ASSUMED.value in marks.get(name, ())}


def flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """The contents of a value, as dotted names and texts."""
    if isinstance(value, Mapping):
        for name, inside in value.items():
            yield from flat(f"{prefix}.{name}" if prefix else str(name), inside)
    else:
        yield prefix, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _optimizers(run: Run) -> dict[str, Any]:
    """Each optimizer's first settings; with its number if there are several."""
    events = run.read(Table.EVENTS, ("kind", "detail"), min(run.ranks, default=0))
    told = events.filter(pc.equal(events.column("kind"), EventKind.OPTIMIZER.value))
    found: dict[str, Any] = {}
    for text in told.column("detail").to_pylist():
        detail = detail_of(text)
        found.setdefault(str(detail.get("optimizer", 0)), _by_group(detail))
    return found if len(found) != 1 else next(iter(found.values()))


def _by_group(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Its groups, with their numbers if there are several."""
    groups = detail.get("groups")
    rest = {name: value for name, value in detail.items() if name not in {"groups", "optimizer"}}
    if not isinstance(groups, list):
        return rest
    if len(groups) == 1 and isinstance(groups[0], Mapping):
        return {**rest, **groups[0]}
    return {**rest, "group": {str(number): group for number, group in enumerate(groups)}}


def _autocast(run: Run) -> str:
    rows = run.read(Table.STEPS, ("autocast_dtype",), min(run.ranks, default=0))
    return ", ".join(name for name in rows.column("autocast_dtype").unique().to_pylist() if name)


def _precision(run: Run) -> dict[str, str]:
    """How many layers have which data type of weights and outputs."""
    rank = min(run.ranks, default=0)
    rows = run.read(Table.LAYER_INFO, ("name", "param_dtype", "output_dtype"), rank).to_pylist()
    last = {row["name"]: row for row in rows}.values()
    found = {}
    for name, column in (("weights", "param_dtype"), ("outputs", "output_dtype")):
        counts = Counter(row[column] for row in last if row[column])
        told = (f"{dtype} ({count_text(n, 'layer')})" for dtype, n in counts.most_common())
        found[name] = ", ".join(told)
    return found


def _devices(run: Run) -> str:
    """The cards of all ranks, as `8 x NVIDIA H200, 150 GB`."""
    known: dict[tuple[int, str], str] = {}
    for rank in run.ranks:
        for row in run.last_rows(Table.DEVICES, _DEVICE, _NEWEST, rank=rank).to_pylist():
            if row["name"] or row["total_bytes"]:
                known[rank, str(row["device"])] = _device_text(row)
    counts = Counter(known.values())
    return "; ".join(text if n == 1 else f"{n} x {text}" for text, n in counts.items())


def _device_text(row: Mapping[str, Any]) -> str:
    size, capability = row["total_bytes"], row["capability"]
    parts = [str(row["name"] or row["device"])]
    parts += [bytes_text(size)] if size else []
    parts += [f"compute capability {capability}"] if capability else []
    return ", ".join(parts)
