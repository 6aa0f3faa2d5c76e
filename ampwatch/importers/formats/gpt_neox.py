"""GPT-NeoX: Megatron's line of statistics with a different beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import Format
from ampwatch.importers.formats.megatron import meant, statistics
from ampwatch.importers.statements import Statement
from ampwatch.rows import Mark

_ITERATION = re.compile(r"samples/sec: .{0,40}?\| +iteration +(\d+)/ *\d+ \|")


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of GPT-NeoX states."""
    iteration = _ITERATION.search(line)
    if iteration and line.rstrip().endswith("|"):
        yield statistics(line, int(iteration[1]))


FORMAT = Format(
    source="gpt-neox",
    anchors=("samples/sec: ",),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0,
            "init_scale": 2.0**32, "min_scale": 1.0, "hysteresis": 2.0},
    marks={"loss": (Mark.AVERAGED.value,)},
    meant=meant,
    leads=True,
)  # fmt: skip
