"""icefall: the gradient scale with its warnings; it raises a low scale by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, fields, number
from ampwatch.importers.statements import Fatal, Scale, Statement, Stats
from ampwatch.rows import Mark

_BATCH = re.compile(r"Epoch (\d+), batch (\d+),")
_LOSS = re.compile(rf"[, ]loss\[(?:\w{{1,40}}=[^,\]]{{1,40}}, ){{0,8}}loss=({NUMBER})")
_RATE = re.compile(rf", lr: ({NUMBER})")
_SCALE = re.compile(rf", grad_scale: ({NUMBER})")
_SMALL = re.compile(rf"Grad scale is small: ({NUMBER})")
_EXIT = re.compile(rf"grad_scale is too small, exiting: ({NUMBER})")


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of icefall states."""
    small, leaving = _SMALL.search(line), _EXIT.search(line)
    if small:
        yield Scale(number(small[1]))
    elif leaving:
        yield Scale(number(leaving[1]))
        yield Fatal("RuntimeError", line[leaving.start() :].strip())
    elif (batch := _BATCH.search(line)) and "validation" not in line:
        values = fields(line, {"loss": _LOSS, "lr": _RATE, "scale_after": _SCALE})
        yield Stats(step=int(batch[2]), epoch=int(batch[1]), values=values)


FORMAT = Format(
    source="icefall",
    anchors=("Grad scale is small", "grad_scale is too small", ", batch "),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000.0},
    marks={"step": (Mark.PLACED.value,)},
)
