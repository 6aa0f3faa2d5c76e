"""NeMo 2: the line of its `ProgressPrinter`, one a log interval.

Read from NVIDIA/NeMo, commit 8cfedd7, nemo/lightning/pytorch/callbacks/progress_printer.py: means
over the interval with four digits, except the global step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, fields
from ampwatch.importers.statements import Statement, Stats
from ampwatch.rows import Mark

_LINE = re.compile(r"Training epoch \d+, iteration (\d+)/\d+ \|")
_GLOBAL_STEP = re.compile(r"\| global_step: (\d+)")
_SECONDS = re.compile(rf"\| train_step_timing in s: ({NUMBER})")
_FIELDS = {
    "loss": re.compile(rf"\| reduced_train_loss: ({NUMBER})"),
    "lr": re.compile(rf"\| lr: ({NUMBER})"),
    "grad_norm": re.compile(rf"\| grad_norm: ({NUMBER})"),
    "scale_after": re.compile(rf"\| loss_scale: ({NUMBER})"),
}


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of NeMo states."""
    told = _LINE.search(line)
    if told is None:
        return
    step = _GLOBAL_STEP.search(line)
    values = fields(line, _FIELDS)
    if seconds := _SECONDS.search(line):
        values["step_time_ms"] = 1000 * float(seconds[1])
    yield Stats(step=int(step[1] if step else told[1]), values=values)


FORMAT = Format(
    source="nemo",
    anchors=("Training epoch ",),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0,
            "hysteresis": 2.0},
    marks={"loss": (Mark.AVERAGED.value,), "grad_norm": (Mark.AVERAGED.value,)},
)  # fmt: skip
