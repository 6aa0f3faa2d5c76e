"""NVIDIA's FP16_Optimizer as copied into early Megatron-LM, Tacotron 2 and others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number, pattern
from ampwatch.importers.formats.deepspeed import attempted
from ampwatch.importers.statements import Skip, Statement, Stats

_BARE = pattern("OVERFLOW! Skipping step. Attempted loss scale: {}")
# Tacotron 2 and similar code, with this optimizer or with Apex.
_TRAIN = re.compile(
    rf"^\W*Train (?:loss|iter) +(\d+) (?:loss )?({NUMBER}) Grad Norm ({NUMBER}) ({NUMBER})s/it"
)


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of FP16_Optimizer states."""
    if told := _TRAIN.search(line):
        loss, norm, seconds = (number(told[at]) for at in (2, 3, 4))
        values = {"loss": loss, "grad_norm": norm, "step_time_ms": 1000 * seconds}
        yield Stats(step=int(told[1]), values=values)
    if "OVERFLOW!" not in line or "[deep" in line:
        return
    found = list(attempted(line))
    if not found and (bare := _BARE.search(line)):
        found = [Skip(scale=float(bare[1]))]
    yield from found


FORMAT = Format(
    source="nvfp16",
    anchors=("OVERFLOW! Skipping step", " Grad Norm "),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0,
            "init_scale": 2.0**32, "min_scale": 1.0},
)  # fmt: skip
