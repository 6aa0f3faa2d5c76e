"""ESPnet: skipped updates, and the statistics of some batches of an epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, TORCH_SCALER, Format, fields, number
from ampwatch.importers.statements import Skip, Statement, Stats
from ampwatch.rows import Mark

_BATCHES = re.compile(r"(?<!\d)(\d{1,9})epoch:train:\d{1,12}-(\d{1,12})batch: ")
_SKIPPED = re.compile(r"grad norm is (nan|inf)\. Skipping updating the model")
_FIELDS = {
    "loss": re.compile(rf"[ ,]loss=({NUMBER})"),
    "grad_norm": re.compile(rf"[ ,]grad_norm=({NUMBER})"),
    "scale_after": re.compile(rf"[ ,]loss_scale=({NUMBER})"),
    "lr": re.compile(rf"[ ,]optim0_lr0=({NUMBER})"),
}


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of ESPnet states."""
    if skipped := _SKIPPED.search(line):
        yield Skip(grad_norm=number(skipped[1]))
    elif batches := _BATCHES.search(line):
        values = fields(line, _FIELDS)
        yield Stats(step=int(batches[2]), epoch=int(batches[1]), values=values)


FORMAT = Format(
    source="espnet",
    anchors=("Skipping updating the model", "epoch:train:"),
    read=read,
    scaler=TORCH_SCALER,
    marks=dict.fromkeys(("loss", "grad_norm", "scale_after"), (Mark.AVERAGED.value,)),
)
