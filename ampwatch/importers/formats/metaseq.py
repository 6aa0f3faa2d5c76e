"""metaseq (OPT): fairseq's lines, and the scale with its window; it goes on at its floor."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.importers.format import Format, number, pattern
from ampwatch.importers.statements import Scale, Setup, Statement

_WINDOW = pattern("SCALE_WINDOW: {}, loss scale: {}")


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of metaseq states, if fairseq does not print it too."""
    told = _WINDOW.search(line)
    if told:
        yield Setup(scaler={"growth_interval": number(told[1])})
        yield Scale(scale_after=number(told[2]))


FORMAT = Format(
    source="metaseq",
    anchors=("SCALE_WINDOW", "rejecting batch"),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 256.0,
            "init_scale": 4.0, "min_scale": 2.0**-5},
    instead_of=("fairseq",),
    leads=True,
)  # fmt: skip
