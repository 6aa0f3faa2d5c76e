"""MindFormers: overflow condition and loss scale of each step; the scale is printed rounded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, fields, keyed
from ampwatch.importers.scale_arithmetic import snapped
from ampwatch.importers.statements import Statement, Stats
from ampwatch.rows import Mark

_STEP = re.compile(r"Epoch:\[ *(\d+)/ *\d+\], step:\[ *(\d+)/ *(\d+)\]")
_BARE = re.compile(r"(?:cur_step_num|step): *(\d+)")
_COND = re.compile(r"overflow cond: +(True|False)")
_FIELDS = {
    "loss": keyed("loss"),
    "lr": keyed("lr"),
    "scale": keyed("loss_scale"),
    "grad_norm": re.compile(rf"global_norm: *\[?({NUMBER})"),
}


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of MindFormers states."""
    cond = _COND.search(line)
    if not cond:
        return
    values = fields(line, _FIELDS)
    if "scale" in values:
        values["scale"] = snapped(values["scale"])
        if not values["scale"]:
            del values["scale"]
    yield Stats(step=_step(line), values=values, is_skipped=cond[1] == "True")


def _step(line: str) -> int | None:
    place, bare = _STEP.search(line), _BARE.search(line)
    if place:
        return (int(place[1]) - 1) * int(place[3]) + int(place[2])
    return int(bare[1]) if bare else None


FORMAT = Format(
    source="mindformers",
    anchors=("overflow cond:",),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0},
    marks={"scale": (Mark.ROUNDED.value,)},
)
