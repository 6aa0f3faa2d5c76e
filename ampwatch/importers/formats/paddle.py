"""PaddlePaddle: the scale and the ratio it falls by; PaddleNLP's statistics."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, fields, keyed, number
from ampwatch.importers.statements import Setup, Skip, Statement, Stats

_FOUND = re.compile(
    rf"Found inf or nan, current scale is: ({NUMBER}), decrease to: ({NUMBER})\*({NUMBER})"
)
_STEP = re.compile(r"global[_ ]step:? (\d+)")
# PaddleClas; PaddleSeg counts through all epochs.
_PLACE = re.compile(r"\[Train\]\[Epoch (\d+)/\d+\]\[Iter: (\d+)/\d+\]")
_FIELDS_OF_VISION = {
    "loss": re.compile(rf", loss: ({NUMBER})"),
    "lr": re.compile(rf"^lr(?:\(\w{{1,40}}\))?: ({NUMBER})"),
}
_FIELDS = {
    "loss": keyed("loss"),
    "lr": keyed("(?:learning_rate|lr)"),
    "scale_after": keyed("loss_scale"),
    "grad_norm": keyed("(?:global_norm|grad_norm)"),
}


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of Paddle states."""
    found, step = _FOUND.search(line), _STEP.search(line)
    if found:
        ratio = number(found[3])
        yield Setup(scaler={"backoff_factor": ratio})
        yield Skip(number(found[1]), number(found[2]) * ratio)
    elif place := _PLACE.search(line):
        values = fields(line[place.end() :], _FIELDS_OF_VISION)
        yield Stats(step=int(place[2]), epoch=int(place[1]), values=values)
    elif step and "loss" in line and "eval" not in line:
        values = fields(line, _FIELDS)
        if "loss" in values:
            yield Stats(step=int(step[1]), values=values)


FORMAT = Format(
    source="paddle",
    anchors=("Found inf or nan, current scale", "global_step: ", "global step ",
             "[Train][Epoch "),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000.0,
            "init_scale": 32768.0},
)  # fmt: skip
