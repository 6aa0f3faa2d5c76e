"""ColossalAI: a skipped step without a scale (its copy of DeepSpeed's scaler prints as that)."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.importers.format import Format
from ampwatch.importers.statements import Skip, Statement


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of ColossalAI states."""
    if "Found overflow. Skip step" in line:
        yield Skip()


FORMAT = Format(
    source="colossalai",
    anchors=("Found overflow. Skip step",),
    read=read,
    instead_of=("deepspeed",),
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0},
)
