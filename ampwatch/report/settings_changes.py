"""What changed in the settings since the previous run of the same script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ampwatch.diagnosis.words import list_text
from ampwatch.errors import AmpwatchError
from ampwatch.report.settings import whole_settings
from ampwatch.store import RUN_FILE, Run, RunInfo, open_run, read_info

T = TypeVar("T")

_MOST_BESIDE = 500  # runs of a folder that are looked at, the newest: 0.2 ms each
_MOST_TOLD = 5
_MOST_LETTERS = 40  # of a value in a sentence

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
        found = changes(whole_settings(earlier), whole_settings(run))
    except (AmpwatchError, OSError):
        return ""
    told = list_text([_said(change) for change in found], _MOST_TOLD)
    return f"since {path.name}: {told or 'nothing in the settings'}"


def _beside(run: Run) -> Iterator[tuple[Path, RunInfo]]:
    """The other readable runs of its folder."""
    for path in _newest_beside(Path(run.path)):
        info = _info_of(path)
        if info is not None:
            yield path, info


def _info_of(path: Path) -> RunInfo | None:
    try:
        return read_info(path)
    except (AmpwatchError, OSError):
        return None


def _newest_beside(folder: Path) -> Sequence[Path]:
    try:
        files = {path: path / RUN_FILE for path in folder.absolute().parent.iterdir()}
        written = {path: file.stat().st_mtime for path, file in files.items() if file.is_file()}
    except OSError:
        return ()
    return sorted(written, key=written.__getitem__, reverse=True)[:_MOST_BESIDE]


def _said(change: Change) -> str:
    before, after = (_cut(text or "") for text in (change.before, change.after))
    if change.kind == "changed":
        return f"{change.name} {before} to {after}"
    return f"{change.name} {before or after} {change.kind}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
