"""DeepSpeed: its loss scaler in all its wordings, the fused optimizer, and the step counter.

The loss scaler never prints a growth. Since March 2023 it prints scales through int(), so a scale
below 1 reads 0 and is absent here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number, pattern
from ampwatch.importers.statements import Amend, Fatal, Scale, Setup, Skip, Statement, Stats
from ampwatch.rows import Mark

_ATTEMPTED = re.compile(
    r"(?:Rank (\d+)[ \]]+)?(?:Overflow detected\. )?Skipping step\. Attempted loss scale: "
    rf"({NUMBER}), (?:reducing to ({NUMBER})|but hysteresis is (\d+))"
)
_FUSED = pattern("Grad overflow on iteration {}")
_REDUCING = pattern("Reducing dynamic loss scale from {} to {}")
_INCREASING = pattern("Increasing dynamic loss scale from {} to {}")
_STATIC = pattern("Using static loss scale of: {}")
_STEP = re.compile(rf"\[Rank \d+\] step=(\d+), skipped=(\d+), lr=\[({NUMBER})?")
_AT_MINIMUM = "Current loss scale already at minimum"


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of DeepSpeed states."""
    if "Attempted loss scale" in line:
        if "[deep" in line or "Overflow detected" in line or "loss_scaler.py" in line:
            yield from attempted(line)
    elif step := _STEP.search(line):
        lr = {} if step[3] is None else {"lr": number(step[3])}
        yield Stats(step=int(step[1]), values=lr, total_skips=int(step[2]))
    elif fused := _FUSED.search(line):
        yield Skip(step=_whole(fused[1]))
    elif reducing := _REDUCING.search(line):
        yield Amend(scale=number(reducing[1]), scale_after=number(reducing[2]))
    elif increasing := _INCREASING.search(line):
        yield Scale(scale_after=number(increasing[2]))
    elif static := _STATIC.search(line):
        yield Setup(config={"static_loss_scale": number(static[1])})
    elif _AT_MINIMUM in line:
        yield Fatal("Exception", line[line.index(_AT_MINIMUM) :].strip())


def attempted(line: str) -> Iterator[Skip]:
    """Each `Attempted loss scale` in a line of DeepSpeed: two ranks may share one line."""
    for match in _ATTEMPTED.finditer(line):
        before = number(match[2])
        after = before if match[4] is not None else number(match[3])
        rounded = match[2] == "0" or match[3] == "0"  # through int(); a float's 0.0 is a zero
        yield Skip(
            scale=before or (None if rounded else before),
            scale_after=after or (None if rounded else after),
            rank=None if match[1] is None else int(match[1]),
        )


def _whole(text: str) -> int | None:
    value = number(text)
    return int(value) if abs(value) < 2.0**53 else None


FORMAT = Format(
    source="deepspeed",
    anchors=(
        "Attempted loss scale", "Grad overflow on iteration", "Reducing dynamic loss scale",
        "Increasing dynamic loss scale", "Using static loss scale of", ", skipped=", _AT_MINIMUM,
    ),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0,
            "init_scale": 65536.0, "min_scale": 1.0, "hysteresis": 2.0},
    marks={"scale": (Mark.ROUNDED.value,)},
)  # fmt: skip
