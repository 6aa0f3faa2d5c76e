"""torchtitan: a JSON line for each event of a rank, and the console's line of statistics.

Read from torchtitan 0.3.0: `TraceJsonlFormatter` (torchtitan/observability/structured_logger), with
the names that `log_trace_span` and `log_trace_scalar` give; and `MetricsProcessor.log`
(torchtitan/components/metrics.py), with the messages of its converters. The JSON lines hold times
and what was given to `log_trace_scalar`; the trainer itself writes no loss there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ampwatch.importers.format import NUMBER, TORCH_SCALER, Format, fields, number
from ampwatch.importers.statements import Fatal, Setup, Statement, Stats
from ampwatch.importers.tables.column_names import column_in_text

_STEP = re.compile(
    rf"step: +(\d+) +loss: +({NUMBER}) +(?:grad_norm: +{NUMBER} +)?memory: +[\d.]+GiB"
)
_FIELDS = {"grad_norm": re.compile(rf"grad_norm: +({NUMBER})")}
_RECIPE = re.compile(r"Float8 training active with recipe (\w+)")
_CONVERTED = re.compile(r"Converted Linear layers to (\w+)Linear")
# How its check ends a step whose loss or norm is nan; a loss that is not finite has no such norm.
_NOT_FINITE = "gradient norm is not finite"


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of torchtitan states."""
    if is_event(line):
        yield Setup()  # the line is torchtitan's, whatever words its message holds
        yield from _event(json.loads(line))
    elif step := _STEP.search(line):
        values = {"loss": number(step[2]), **fields(line, _FIELDS)}
        yield Stats(step=int(step[1]), values=values)
    elif recipe := _RECIPE.search(line):
        yield Setup(config={"float8": recipe[1]})
    elif converted := _CONVERTED.search(line):
        yield Setup(config={"quantization": converted[1]})


def is_event(line: str) -> bool:
    """Whether a line is an event of torchtitan's structured log."""
    if not line.startswith("{") or '"log_type_name"' not in line or '"seq_id"' not in line:
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _event(event: Mapping[str, Any]) -> Iterator[Statement]:
    step, kind = event.get("step"), str(event.get("log_type_name"))
    if kind.endswith("_error") and (kind == "step_error" or step is None):
        yield from _error(event, step)
    elif isinstance(step, int):
        values = dict(_values(event, kind))
        if values or kind == "step_start":
            yield Stats(step=step, values=values)


def _values(event: Mapping[str, Any], kind: str) -> Iterator[tuple[str, float]]:
    """The column and the value of torchtitan's event, and when it was."""
    value = event.get("value")
    if not isinstance(value, int | float):
        return
    if kind == "metric_value":
        name = str(event.get("event_name"))
        known = column_in_text(name.replace(".", "/"))
        yield known[0] if known and known[0] != "step" else name, float(value)
    elif kind == "step_end":
        yield "step_time_ms", float(value)
        if isinstance(at_us := event.get("time_us"), int):
            yield "time_ns", at_us * 1000
    elif kind.endswith("_end"):
        yield f"{kind.removesuffix('_end')}_ms", float(value)


def _error(event: Mapping[str, Any], step: int | None) -> Iterator[Statement]:
    _, _, text = str(event.get("message", "")).partition("_error: ")
    exception, _, message = text.partition(": ")
    if step is not None and _NOT_FINITE in message:
        yield Stats(step=step, values={"grad_norm": math.nan})
    yield Fatal(exception or "Exception", message)


FORMAT = Format(
    source="torchtitan",
    anchors=('"log_type_name"', "GiB(", "Float8 training active", "Converted Linear layers"),
    read=read,
    scaler=TORCH_SCALER,
)
