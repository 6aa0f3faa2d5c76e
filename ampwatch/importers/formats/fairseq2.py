"""fairseq2: each overflow and each growth, with its step and both scales."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number
from ampwatch.importers.statements import Fatal, Scale, Setup, Skip, Statement

_COUNT = r"([\d,]+)"
_DECREASE = re.compile(
    rf"Overflow detected at step {_COUNT}, ignoring gradient, decreasing loss scale from ({NUMBER})"
    rf" to ({NUMBER})"
)
_MINIMUM = re.compile(
    rf"Overflow detected at step {_COUNT}, ignoring gradient, loss scale is already at minimum "
    rf"\(({NUMBER})\)"
)
_INCREASE = re.compile(
    rf"No gradient overflow detected in the last {_COUNT} step\(s\) after step {_COUNT}, "
    rf"increasing loss scale from ({NUMBER}) to ({NUMBER})"
)


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of fairseq2 states."""
    decrease, minimum = _DECREASE.search(line), _MINIMUM.search(line)
    if decrease:
        yield Skip(number(decrease[2]), number(decrease[3]), step=_whole(decrease[1]))
        if "(minimum)" in line:
            yield Setup(scaler={"min_scale": number(decrease[3])})
    elif minimum:
        floor = number(minimum[2])
        yield Setup(scaler={"min_scale": floor})
        yield Skip(floor, floor, step=_whole(minimum[1]))
    elif increase := _INCREASE.search(line):
        yield Setup(scaler={"growth_interval": float(_whole(increase[1]))})
        yield Scale(number(increase[4]), step=_whole(increase[2]))
    if "exploding" in line and (decrease or minimum) and "already" in line:
        yield Fatal("FloatingPointError", line.strip()[-200:])


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


FORMAT = Format(
    source="fairseq2",
    anchors=("ignoring gradient, decreasing", "ignoring gradient, loss scale is already",
             "No gradient overflow detected in the last"),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5},
)  # fmt: skip
