"""insightface: a line of statistics with the gradient scale, printed without digits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, TORCH_SCALER, Format, fields
from ampwatch.importers.statements import Statement, Stats
from ampwatch.rows import Mark

_STEP = re.compile(r"Global Step: *(\d+)")
_FIELDS = {
    "loss": re.compile(rf"\bLoss:? +({NUMBER})"),
    "lr": re.compile(rf"LearningRate:? +({NUMBER})"),
    "scale_after": re.compile(rf"Fp16 Grad Scale: *({NUMBER})"),
}


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of insightface states."""
    step = _STEP.search(line)
    if not step or "Speed" not in line:
        return
    yield Stats(step=int(step[1]), values=fields(line, _FIELDS))


FORMAT = Format(
    source="insightface",
    anchors=("Global Step:",),
    read=read,
    scaler=TORCH_SCALER,
    is_scale=lambda printed: printed != 0,  # rounded
    marks={"scale_after": (Mark.ROUNDED.value,), "loss": (Mark.AVERAGED.value,)},
)
