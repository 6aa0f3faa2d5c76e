"""Megatron-LM from 2019 on, Megatron-DeepSpeed, GPT-NeoX: one line of statistics every few steps.

A loss is omitted if its average is nan or 0. Counters count since the previous line. DeepSpeed's
skips are not counted: there an unchanged norm beside a missing loss shows one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, fields, keyed, number
from ampwatch.importers.statements import Statement, Stats
from ampwatch.importers.tables.column_names import column_in_text
from ampwatch.metric_names import is_metric
from ampwatch.rows import Mark

_ITERATION = re.compile(r"iteration +(\d+)/ *\d+ \|")
_NEOX = re.compile(r"samples/sec: .{0,40}?\| +iteration +(\d+)/ *\d+ \|")
_LOSS = re.compile(rf"(?:lm|lm-loss|total|lm_loss)[ _-]?loss:? ({NUMBER})|\bloss: ({NUMBER})")
_SKIPPED = keyed("number of skipped iterations")
_NAN = keyed("number of nan iterations")
_OTHER = re.compile(rf"(?<=\| )([a-z][\w/ ]{{0,40}}): +({NUMBER})(?= \|)")
_FIELDS = {
    "lr": keyed("learning rate"),
    "scale_after": keyed("loss scale"),
    "grad_norm": keyed("grad norm"),
    "param_norm": keyed("params norm"),
    "step_time_ms": re.compile(rf"(?:elapsed time per iteration|time) \(ms\):? +({NUMBER})"),
}


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of Megatron states."""
    iteration = _ITERATION.search(line)
    # A complete line ends in a bar; without it, the terminal has wrapped the line.
    if iteration and line.rstrip().endswith("|") and "validation" not in line:
        yield _statistics(line[iteration.start() :], int(iteration[1]))


def read_neox(line: str) -> Iterator[Statement]:
    """Yield what a line of GPT-NeoX states."""
    iteration = _NEOX.search(line)
    if iteration and line.rstrip().endswith("|"):
        yield _statistics(line, int(iteration[1]))


def _statistics(line: str, step: int) -> Stats:
    """The values between the bars of Megatron's line of statistics, in either wording."""
    values = fields(line, _FIELDS)
    for name, value in _OTHER.findall(line):
        if is_metric(name) and column_in_text(name) is None and name != "params norm":
            values.setdefault(name, number(value))
    loss = _LOSS.search(line)
    if loss:
        values["loss"] = number(loss[1] or loss[2])
    skipped, nan = _SKIPPED.search(line), _NAN.search(line)
    if nan and int(float(nan[1])) and "loss" not in values:
        values["loss"] = float("nan")
    return Stats(
        step=step,
        values=values,
        window_skips=None if skipped is None else int(float(skipped[1])),
        lost_loss=loss is None,
    )


def meant(printed: float) -> float:
    """The scale that Megatron's one digit stands for: 0.2 is a quarter."""
    return 2.0 ** round(math.log2(printed)) if 0 < printed < 1 else printed


_SCALER = {
    "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0, "init_scale": 2.0**32,
    "min_scale": 1.0, "hysteresis": 2.0,
}  # fmt: skip
_MARKS = {"loss": (Mark.AVERAGED.value,)}
FORMAT = Format(
    "megatron", (" iteration ", "] iteration "), read, _SCALER, _MARKS, meant=meant, leads=True
)
NEOX = Format("gpt-neox", ("samples/sec: ",), read_neox, _SCALER, _MARKS, meant=meant, leads=True)
