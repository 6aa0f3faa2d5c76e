"""Settings that a program logs beside its loss, such as the weight of a term, and their changes.

A setting stands at one value for long, changes, and stands again or moves on one way. What is
measured does neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats, Integers
from ampwatch.metric_names import Metric, known_metric, metric_of

_MOST_NAMES, _MOST_CHANGES = 256, 16
HELD = 20  # values alike before a change: what is measured comes back to the same now and then
_AFTER, _LEAST_AFTER = 5, 2  # values after a change, which show how it went on
_TRIED = 64  # values among which none stood: it is no setting
# Of another kind: what counts, and learning rates, whose changes are seen by themselves.
_NO_SETTING = re.compile(r"(?i)epoch|iter|step|time|count|(?:^|[^a-z])n?um(?:$|[^a-z])|lr|learning")


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A logged value that had stood for long, and changed."""

    name: str
    step: int
    before: float
    after: tuple[float, ...]  # the first values since
    now: float = np.nan  # the latest

    @property
    def stands(self) -> bool:
        """Whether it stood again at once."""
        return len(set(self.after)) == 1

    @property
    def is_set(self) -> bool:
        """Whether it stands again, or moves on one way: nothing that counts or is measured."""
        moves = np.diff(self.after)
        way = self.after[0] - self.before
        counts = bool((moves == way).any()) and all(value.is_integer() for value in self.after)
        goes_on = self.stands or (bool((moves * way > 0).all()) and not counts)
        return len(self.after) >= _LEAST_AFTER and goes_on


@dataclass(frozen=True, slots=True)
class _Setting:
    """One logged value so far."""

    last: float = np.nan
    held: int = 0  # the latest values that are alike
    seen: int = 0
    changes: tuple[SettingChange, ...] = ()
    count: int = 0  # of the changes

    @property
    def is_measured(self) -> bool:
        """Whether it never stood."""
        return self.seen >= _TRIED and not self.count and self.held < HELD

    def with_next(self, name: str, steps: Integers, values: Floats) -> _Setting:
        """The setting with its next values."""
        changes = list(self.changes)
        if changes and len(changes[-1].after) < _AFTER:
            missing = _AFTER - len(changes[-1].after)
            after = (*changes[-1].after, *values[:missing].tolist())
            changes[-1] = replace(changes[-1], after=after)
        before = np.concatenate([[self.last if self.seen else values[0]], values[:-1]])
        edges = np.flatnonzero(values != before)
        held = np.diff(edges, prepend=-self.held)
        long = edges[held >= HELD]
        changes += [
            SettingChange(name, int(steps[at]), float(before[at]), tuple(values[at:][:_AFTER]))
            for at in long[-_MOST_CHANGES:].tolist()
        ]
        return _Setting(
            last=float(values[-1]),
            held=len(values) - int(edges[-1]) if len(edges) else self.held + len(values),
            seen=self.seen + len(values),
            changes=tuple(changes[-_MOST_CHANGES:]),
            count=self.count + len(long),
        )


_NEW = _Setting()


@dataclass(frozen=True, slots=True)
class SettingHistory:
    """The settings that were logged so far; `fold` makes a new history."""

    settings: Mapping[str, _Setting | None] = field(default_factory=dict)  # None: it is measured

    def fold(self, block: Block) -> SettingHistory:
        """The history with one more block."""
        names, codes = block.metrics.texts("name")
        if not names:
            return self
        settings = dict(self.settings)
        steps, values = block.metrics.step, block.metrics.numbers("value")
        for code, name in enumerate(names):
            if name not in settings and (len(settings) == _MOST_NAMES or not _may_be_set(name)):
                continue
            own = np.flatnonzero((codes == code) & np.isfinite(values))
            setting = settings.get(name, _NEW)
            if setting is None or not len(own):
                continue
            setting = setting.with_next(name, steps[own], values[own])
            settings[name] = None if setting.is_measured else setting
        return SettingHistory(settings)

    def changes(self, most: float) -> Iterator[SettingChange]:
        """The latest changes of the settings that have changed so often at most."""
        for setting in self.settings.values():
            if setting is not None and setting.count <= most:
                for change in setting.changes:
                    if change.is_set:
                        yield replace(change, now=setting.last)


def _may_be_set(name: str) -> bool:
    kind = metric_of(name)
    is_known = known_metric(name) is not None or kind not in {None, Metric.SIZE}
    return not is_known and not _NO_SETTING.search(name)
