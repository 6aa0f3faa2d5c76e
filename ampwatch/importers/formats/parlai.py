"""ParlAI: the scale after an overflow."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.importers.format import Format, number, pattern
from ampwatch.importers.statements import Skip, Statement

_OVERFLOW = pattern("Overflow: setting loss scale to {}")


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of ParlAI states."""
    told = _OVERFLOW.search(line)
    if told:
        yield Skip(scale_after=number(told[1]))


FORMAT = Format(
    source="parlai",
    anchors=("Overflow: setting loss scale to",),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000.0},
)
