"""What changed in a run's settings since the run of the same script before it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ampwatch.store import RunInfo

T = TypeVar("T")

# What a run's name gets to be told from others: a time, a part of an id, a number.
_OWN_PART = re.compile(r"(?:[-_. ~](?:\d{8}-\d{6}|[0-9a-f]{8}|\d+))+$")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that two runs have otherwise; None where a run does not have it."""

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
    """The settings that differ, in the order of the later run; then those that it lacks."""
    names = dict.fromkeys([*after, *before])
    both = (Change(name, before.get(name), after.get(name)) for name in names)
    return tuple(change for change in both if change.before != change.after)


def run_before(info: RunInfo, others: Iterable[tuple[T, RunInfo]]) -> T | None:
    """Of other runs, each beside a key, the key of the last that started before, of its script."""
    earlier = [
        (other.started_ns, key)
        for key, other in others
        if 0 < other.started_ns < info.started_ns and other.id != info.id and same(info, other)
    ]
    return max(earlier, key=lambda one: one[0])[1] if earlier else None


def same(one: RunInfo, other: RunInfo) -> bool:
    """Whether two runs are of one script; where it is not known of both, of one name."""
    if one.source != other.source:
        return False
    scripts = one.origin.get("script"), other.origin.get("script")
    return (
        scripts[0] == scripts[1] if all(scripts) else name_stem(one.name) == name_stem(other.name)
    )


def name_stem(name: str) -> str:
    """A run's name without the time, id or number that tells it from others."""
    return _OWN_PART.sub("", name) or name
