"""A run's settings as flat names and texts, and what changed in them since the previous run.

The first word of a name is its section: `config.lr`, `optimizer.betas`, `versions.torch`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ampwatch.diagnosis.value_text import bytes_text, count_text, list_text
from ampwatch.errors import AmpwatchError
from ampwatch.printable_text import cut
from ampwatch.report.facts import optimizer_details
from ampwatch.rows import Mark, Table
from ampwatch.store import RUN_FILE, Run, RunInfo, open_run, read_info

_MOST_LETTERS = 300  # of one value: a config may hold a whole vocabulary
_DEVICE = ("rank", "device", "name", "capability", "total_bytes")
_NEWEST = 64  # samples of a rank's devices; about one a second


def settings_of(run: Run) -> dict[str, str]:
    """Every recorded setting by its dotted name, without assumed defaults, long texts cut."""
    rows = run.read(Table.STEPS, ("autocast_dtype",), min(run.ranks, default=0))
    dtypes = rows.column("autocast_dtype").unique().to_pylist()
    settings = _recorded(run, ", ".join(filter(None, dtypes)))
    return {name: cut(text, _MOST_LETTERS) for name, text in settings.items()}


def whole_settings(run: Run) -> dict[str, str]:
    """The same with uncut texts and the newest step's autocast; fast for runs of any length."""
    last = run.last_rows(Table.STEPS, ("autocast_dtype",), 1).column("autocast_dtype").to_pylist()
    return _recorded(run, (last or [""])[0] or "")


def _recorded(run: Run, autocast: str) -> dict[str, str]:
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
    """The contents of a setting's value, as dotted names and texts."""
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
    settings: dict[str, Any] = {}
    for detail in optimizer_details(run):
        settings.setdefault(str(detail.get("optimizer", 0)), _by_group(detail))
    return settings if len(settings) != 1 else next(iter(settings.values()))


def _by_group(detail: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's groups of settings, with their numbers if there are several."""
    groups = detail.get("groups")
    rest = {name: value for name, value in detail.items() if name not in {"groups", "optimizer"}}
    if not isinstance(groups, list):
        return rest
    if len(groups) == 1 and isinstance(groups[0], Mapping):
        return {**rest, **groups[0]}
    return {**rest, "group": {str(number): group for number, group in enumerate(groups)}}


def _precision(run: Run) -> dict[str, str]:
    """The precision as a setting: how many layers have which data type."""
    rank = min(run.ranks, default=0)
    rows = run.read(Table.LAYER_INFO, ("name", "param_dtype", "output_dtype"), rank).to_pylist()
    last = {row["name"]: row for row in rows}.values()
    settings = {}
    for name, column in (("weights", "param_dtype"), ("outputs", "output_dtype")):
        counts = Counter(row[column] for row in last if row[column])
        texts = (f"{dtype} ({count_text(n, 'layer')})" for dtype, n in counts.most_common())
        settings[name] = ", ".join(texts)
    return settings


def _devices(run: Run) -> str:
    """The devices as a setting: the cards of all ranks, as `8 x NVIDIA H200, 150 GB`."""
    names: dict[tuple[int, str], str] = {}
    for rank in run.ranks:
        for row in run.last_rows(Table.DEVICES, _DEVICE, _NEWEST, rank=rank).to_pylist():
            if row["name"] or row["total_bytes"]:
                names[rank, str(row["device"])] = _device_text(row)
    counts = Counter(names.values())
    return "; ".join(text if n == 1 else f"{n} x {text}" for text, n in counts.items())


def _device_text(row: Mapping[str, Any]) -> str:
    size, capability = row["total_bytes"], row["capability"]
    parts = [str(row["name"] or row["device"])]
    parts += [bytes_text(size)] if size else []
    parts += [f"compute capability {capability}"] if capability else []
    return ", ".join(parts)


# --- changes since the previous run of the script -------------------------------------------------

T = TypeVar("T")

_MOST_BESIDE = 500  # runs of a folder that are looked at, the newest: 0.2 ms each
_MOST_TOLD = 5
_MOST_LETTERS_TOLD = 40  # of a value in a sentence

# What makes a run's name unique: a time, a part of an id, a number.
_OWN_PART = re.compile(r"(?:[-_. ~](?:\d{8}-\d{6}|[0-9a-f]{8}|\d+))+$")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs between two runs; None if a run does not have it."""

    name: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """Added, removed or changed."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """The settings that differ, in the later run's order, then those that it lacks."""
    names = dict.fromkeys([*after, *before])
    both = (Change(name, before.get(name), after.get(name)) for name in names)
    return tuple(change for change in both if change.before != change.after)


def run_before(info: RunInfo, others: Iterable[tuple[T, RunInfo]]) -> T | None:
    """The key of the previous run of the same script, among other runs with their keys."""
    earlier = [
        (other.started_ns, key)
        for key, other in others
        if 0 < other.started_ns < info.started_ns and other.id != info.id and same(info, other)
    ]
    return max(earlier, key=lambda one: one[0])[1] if earlier else None


def same(one: RunInfo, other: RunInfo) -> bool:
    """Whether two runs have the same script, or, if one is unknown, the same name."""
    if one.source != other.source:
        return False
    scripts = one.origin.get("script"), other.origin.get("script")
    return (
        scripts[0] == scripts[1] if all(scripts) else name_stem(one.name) == name_stem(other.name)
    )


def name_stem(name: str) -> str:
    """A run's name without the time, id or number that makes it unique."""
    return _OWN_PART.sub("", name) or name


def changed_text(run: Run) -> str:
    """What changed since the previous run of the script in this folder; empty if nothing."""
    path = run_before(run.info, _beside(run))
    if path is None:
        return ""
    try:
        earlier = open_run(path)
        changed = changes(whole_settings(earlier), whole_settings(run))
    except (AmpwatchError, OSError):
        return ""
    text = list_text([_change_text(change) for change in changed], _MOST_TOLD)
    return f"since {path.name}: {text or 'nothing in the settings'}"


def _beside(run: Run) -> Iterator[tuple[Path, RunInfo]]:
    """The other readable runs of a run's folder: one may be the previous one."""
    for path in _newest_beside(Path(run.path)):
        with contextlib.suppress(AmpwatchError, OSError):
            yield path, read_info(path)


def _newest_beside(folder: Path) -> Sequence[Path]:
    try:
        files = {path: path / RUN_FILE for path in folder.absolute().parent.iterdir()}
        written = {path: file.stat().st_mtime for path, file in files.items() if file.is_file()}
    except OSError:
        return ()
    return sorted(written, key=written.__getitem__, reverse=True)[:_MOST_BESIDE]


def _change_text(change: Change) -> str:
    before, after = (cut(text or "", _MOST_LETTERS_TOLD) for text in (change.before, change.after))
    if change.kind == "changed":
        return f"{change.name} {before} to {after}"
    return f"{change.name} {before or after} {change.kind}"
