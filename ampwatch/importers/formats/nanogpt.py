"""nanoGPT: the loss of an iteration; it does not print the scaler."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number
from ampwatch.importers.statements import Statement, Stats

_ITERATION = re.compile(rf"(?:^|[^\w.])iter (\d+): loss ({NUMBER}), time ({NUMBER})ms")
_EVALUATION = re.compile(rf"(?:^|[^\w.])step (\d+): train loss ({NUMBER}), val loss ({NUMBER})")


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of nanoGPT states."""
    told = _ITERATION.search(line)
    if told:
        values = {"loss": number(told[2]), "step_time_ms": number(told[3])}
        yield Stats(step=int(told[1]), values=values)
    elif evaluation := _EVALUATION.search(line):
        yield Stats(step=int(evaluation[1]), values={"val_loss": number(evaluation[3])})


FORMAT = Format(source="nanogpt", anchors=("iter ", ": train loss "), read=read)
