"""The frameworks whose lines take code, each with the function that reads them.

Megatron-LM and GPT-NeoX, fairseq, Hugging Face's Trainer, torchtitan, Stable-Baselines,
Ultralytics.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ampwatch.importers.format import NUMBER, TORCH_SCALER, Format, number
from ampwatch.importers.formats.plain import begins_evaluation
from ampwatch.importers.named_numbers import numbers_in, values_of, whole
from ampwatch.importers.statements import (
    Amend,
    Fatal,
    Metrics,
    Progress,
    Scale,
    Setup,
    Skip,
    Statement,
    Stats,
)
from ampwatch.importers.tables.column_names import column_in_text, losses_among
from ampwatch.metric_names import is_metric
from ampwatch.rows import Mark

# --- Megatron -------------------------------------------------------------------------------------

# Megatron-LM from 2019 on, Megatron-DeepSpeed, GPT-NeoX: one line of statistics every few steps.
#
# A loss is omitted if its average is nan or 0. Counters count since the previous line. DeepSpeed's
# skips are not counted: there an unchanged norm beside a missing loss shows one.

_ITERATION = re.compile(r"iteration +(\d+)/ *\d+ \|")
_NEOX = re.compile(r"samples/sec: .{0,40}?\| +iteration +(\d+)/ *\d+ \|")
_COUNTED = re.compile(r"number of (skipped|nan) iterations: +(\d+)")
_MEGATRON_FIELDS = {
    "param_norm": re.compile(rf"params norm: +({NUMBER})"),
    "step_time_ms": re.compile(rf"(?:elapsed time per iteration|time) \(ms\):? +({NUMBER})"),
}


def read_megatron(line: str) -> Iterator[Statement]:
    """Yield what a line of Megatron states."""
    iteration = _ITERATION.search(line)
    # A complete line ends in a bar; without it, the terminal has wrapped the line.
    if iteration and line.rstrip().endswith("|") and "validation" not in line:
        yield _megatron_statistics(line[iteration.start() :], int(iteration[1]))


def read_neox(line: str) -> Iterator[Statement]:
    """Yield what a line of GPT-NeoX states."""
    iteration = _NEOX.search(line)
    if iteration and line.rstrip().endswith("|"):
        yield _megatron_statistics(line, int(iteration[1]))


def _megatron_statistics(line: str, step: int) -> Stats:
    """The values between the bars of Megatron's line of statistics, in either wording."""
    more = ((name, wanted.search(line)) for name, wanted in _MEGATRON_FIELDS.items())
    values = values_of(numbers_in(line))
    values.update((name, number(match[1])) for name, match in more if match)
    counted = {what: int(count) for what, count in _COUNTED.findall(line)}
    is_lost = "loss" not in values
    if is_lost and counted.get("nan"):
        values["loss"] = math.nan
    return Stats(step, values, window_skips=counted.get("skipped"), lost_loss=is_lost)


def meant_by_megatron(printed: float) -> float:
    """The scale that Megatron's one digit stands for: 0.2 is a quarter."""
    return 2.0 ** round(math.log2(printed)) if 0 < printed < 1 else printed


_MEGATRON_SCALER = {
    "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0, "init_scale": 2.0**32,
    "min_scale": 1.0, "hysteresis": 2.0,
}  # fmt: skip
MEGATRON, NEOX = (
    Format(
        source,
        anchors,
        read,
        _MEGATRON_SCALER,
        {"loss": (Mark.AVERAGED.value,)},
        meant=meant_by_megatron,
        leads=True,
    )
    for source, anchors, read in (
        ("megatron", (" iteration ", "] iteration "), read_megatron),
        ("gpt-neox", ("samples/sec: ",), read_neox),
    )
)


# --- fairseq --------------------------------------------------------------------------------------

# fairseq: three eras of overflow lines, --amp, and statistics lines of every kind.
#
# The printed loss_scale is rounded to three digits, and before August 2020 averaged.

_FAIRSEQ_OVERFLOW = re.compile(
    rf"overflow detected,(?: ignoring gradient,)? setting (?:loss )?scale to:?(?: to)? ({NUMBER})"
)
_PARAMETER = re.compile(r"overflow in param (\S+)")
_FAIRSEQ_BATCH = re.compile(r"epoch (\d+):? +(?:\d+%\|[^|]{0,200}\| *)?(\d+) */ *(\d+) ")
_SCALE_ALONE = re.compile(rf"loss_scale=({NUMBER})")
_FLOOR = re.compile(rf"Minimum loss scale reached \(({NUMBER})\)")
# 0.004 is 2^-8 rounded to three digits, 0.03 octaves off.
_ROUNDING_OCTAVES = 0.04


def read_fairseq(line: str) -> Iterator[Statement]:
    """Yield what a line of fairseq states."""
    if "rejecting batch" in line:
        return  # the norm was above the clipping limit: no overflow
    overflow = _FAIRSEQ_OVERFLOW.search(line)
    if overflow:
        yield Skip(scale_after=number(overflow[1]) or None)
    elif "overflow in param" in line and (named := _PARAMETER.search(line)):
        yield Amend(layer=named[1])
    elif floor := _FLOOR.search(line):
        yield Setup(scaler={"min_scale": number(floor[1])})
        yield Fatal("FloatingPointError", line[floor.start() :].strip()[:300])
    elif "num_updates" in line and "valid on" not in line and "valid_loss" not in line:
        yield from _fairseq_statistics(line)
    elif (batch := _FAIRSEQ_BATCH.search(line)) and (told := _SCALE_ALONE.match(line, batch.end())):
        # Before the first update there is nothing else to print.
        yield from (Scale(scale) for scale in (number(told[1]),) if _is_scale(scale))


def _fairseq_statistics(line: str) -> Iterator[Stats]:
    numbers = numbers_in(line.replace('"train_', '"'))
    told = next((number.text for number in numbers if number.words[-1:] == ("num_updates",)), None)
    if (step := whole(told)) is None:
        return
    batch, is_record = _FAIRSEQ_BATCH.search(line), "{" in line
    skips = None
    if batch and int(batch[1]) == 1 and not is_record:
        skips = max(0, int(batch[2]) - step)
    is_summary = '"train_loss"' in line if is_record else batch is None
    yield Stats(step, values_of(numbers), total_skips=skips, is_summary=is_summary)


def _is_scale(printed: float) -> bool:
    """Whether fairseq printed an exact scale: 0 is rounded, and no power of two is an average."""
    octaves = math.log2(printed) if 0 < printed < math.inf else math.inf
    return octaves < math.inf and abs(octaves - round(octaves)) < _ROUNDING_OCTAVES


FAIRSEQ = Format(
    source="fairseq",
    anchors=(
        "overflow detected", "overflow in param", "Minimum loss scale reached", "num_updates",
        " loss_scale=",
    ),
    read=read_fairseq,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "init_scale": 128.0, "min_scale": 1e-4},
    marks={"scale_after": (Mark.ROUNDED.value,), "loss": (Mark.AVERAGED.value,)},
    is_scale=_is_scale,
    leads=True,
)  # fmt: skip


# --- Hugging Face's Trainer -----------------------------------------------------------------------

# Hugging Face's Trainer: dictionaries of each logging step, and its progress bar for the step.
#
# It prints no scale. A loss of exactly 0.0 can be a nan that was filtered.

# A paste may begin or end within one.
_DICT = re.compile(
    r"\{'loss': [^{}]{0,8000}(?:\}|$)|^[^{}]{0,8000}'learning_rate': [^{}]{0,8000}\}"
)
_BAR = re.compile(r"\| *(\d+)/(\d+) \[[^\]]{3,60}(?:it/s|s/it)")
_HF_STEP = re.compile(r"'(?:global_)?step(?:/max_steps)?'?: *'?(\d+)")


def read_hf_trainer(line: str) -> Iterator[Statement]:
    """Yield what a line of the Trainer states."""
    match = _DICT.search(line)
    bars = list(_BAR.finditer(line, 0, match.start() if match else len(line)))
    # The Trainer's bar counts the whole training; a loop's begins anew in each epoch.
    if bars and "poch" not in line[: bars[-1].start()] and not begins_evaluation(line):
        yield Progress(int(bars[-1][1]), int(bars[-1][2]))
    if match and ("'epoch'" in match[0] or "'learning_rate'" in match[0]):
        step = _HF_STEP.search(match[0])
        yield Stats(int(step[1]) if step else None, values_of(numbers_in(match[0])))


HF_TRAINER = Format(
    source="hf-trainer",
    anchors=("{'loss': ", "'learning_rate': ", "it/s]", "s/it]", "it/s, ", "s/it, "),
    read=read_hf_trainer,
    marks={"loss": (Mark.AVERAGED.value,)},
)


# --- torchtitan -----------------------------------------------------------------------------------

# torchtitan: a JSON line for each event of a rank, and the console's line of statistics.
#
# Read from torchtitan 0.3.0: `TraceJsonlFormatter` (torchtitan/observability/structured_logger),
# with the names that `log_trace_span` and `log_trace_scalar` give; and `MetricsProcessor.log`
# (torchtitan/components/metrics.py), with the messages of its converters. The JSON lines hold times
# and what was given to `log_trace_scalar`; the trainer itself writes no loss there.

_TORCHTITAN_STEP = re.compile(
    rf"step: +(\d+) +loss: +{NUMBER} +(?:grad_norm: +{NUMBER} +)?memory: +[\d.]+GiB"
)
_RECIPE = re.compile(r"Float8 training active with recipe (\w+)")
_CONVERTED = re.compile(r"Converted Linear layers to (\w+)Linear")
# How its check ends a step whose loss or norm is nan; a loss that is not finite has no such norm.
_NOT_FINITE = "gradient norm is not finite"


def read_torchtitan(line: str) -> Iterator[Statement]:
    """Yield what a line of torchtitan states."""
    if is_torchtitan_event(line):
        yield Setup()  # the line is torchtitan's, whatever words its message holds
        yield from _event(json.loads(line))
    elif step := _TORCHTITAN_STEP.search(line):
        yield Stats(int(step[1]), values_of(numbers_in(step[0])))
    elif recipe := _RECIPE.search(line):
        yield Setup(config={"float8": recipe[1]})
    elif converted := _CONVERTED.search(line):
        yield Setup(config={"quantization": converted[1]})


def is_torchtitan_event(line: str) -> bool:
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
        column = column_in_text(name.replace(".", "/"))
        yield column[0] if column and column[0] != "step" else name, float(value)
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


TORCHTITAN = Format(
    source="torchtitan",
    anchors=('"log_type_name"', "GiB(", "Float8 training active", "Converted Linear layers"),
    read=read_torchtitan,
    scaler=TORCH_SCALER,
    has_figures=False,
)


# --- Stable-Baselines -----------------------------------------------------------------------------

# Boxes of Stable-Baselines: `| ep_rew_mean | -720 |`, a row a value, a box a stretch of training.
#
# A critic's loss grows with what it values, and is no loss of the run. Stable-Baselines 2 prints no
# loss by that name.

_BOX_ROW = re.compile(rf"\| +([a-z][\w/]{{0,40}}) *\| *\[?({NUMBER})\]? *\|")
_BOX_COLUMNS = {"loss": "loss", "learning_rate": "lr"}
_BOX_STEP, _BOX_OF_EVALUATION = "total_timesteps", "| eval/"


def read_stable_baselines(line: str) -> Iterator[Statement]:
    """Yield what a box states."""
    told = {name.rpartition("/")[2]: number(value) for name, value in _BOX_ROW.findall(line)}
    step = told.pop(_BOX_STEP, None)
    if step is None:
        return
    values = {_BOX_COLUMNS[name]: value for name, value in told.items() if name in _BOX_COLUMNS}
    metrics = {n: v for n, v in told.items() if n not in _BOX_COLUMNS and is_metric(n)}
    if _BOX_OF_EVALUATION in line and "loss" not in values:
        yield Metrics(metrics)
        return
    if "loss" not in values and (name := next(losses_among(tuple(metrics)), None)) is not None:
        values["loss"] = metrics.pop(name)
    yield Stats(int(step), {**metrics, **values})


STABLE_BASELINES = Format(
    source="stable-baselines3", anchors=("total_timesteps ",), read=read_stable_baselines
)


# --- Ultralytics ----------------------------------------------------------------------------------

# Ultralytics' YOLO: a row an epoch under a header, with a bar behind it; its loss is their sum.
#
# The line of all classes holds precision, recall and the two mean average precisions.

_EPOCH_ROW = re.compile(
    rf" *(\d{{1,6}})/\d{{1,6}} +[\d.]+[GM]B?((?: +{NUMBER}){{3,9}}) +\d+ +\d+(:.*)?$"
)
_EPOCH_HEAD = re.compile(r" *Epoch +(?:gpu|GPU)_mem +(\w.*\w) +\w+ +\w+ *$")
# A row of YOLOv5's `results.txt`: three losses and their sum.
_RESULTS_ROW = re.compile(
    rf" *(\d{{1,6}})/\d{{1,6}} +[\d.]+[GM]B? +{NUMBER} +{NUMBER} +{NUMBER} +({NUMBER}) +\d+ +\d+"
    rf" +{NUMBER} +{NUMBER} +({NUMBER}) +({NUMBER})(?: +{NUMBER})*\s*$"
)
_ALL_CLASSES = re.compile(rf" *all +\d+ +\d+ +({NUMBER}) +({NUMBER}) +({NUMBER}) +({NUMBER})\s*$")
_FULL = "100%"


def learn_ultralytics(lines: Sequence[str]) -> Callable[[str], Iterator[Statement]]:
    """The function that reads a log's rows, with the losses named as in the header above them."""
    head = next(filter(None, map(_EPOCH_HEAD.match, lines)), None)
    return functools.partial(read_ultralytics, names=head[1].split() if head else ())


def read_ultralytics(line: str, names: Sequence[str] = ()) -> Iterator[Statement]:
    """Yield what a row of an epoch, or of its evaluation, states."""
    if row := _EPOCH_ROW.match(line):
        if not row[3] or _FULL in row[3]:
            parts = dict(zip(names or ("", " ", "  "), map(number, row[2].split()), strict=False))
            loss = parts.pop("total", sum(parts.values()))
            yield Stats(step=int(row[1]), values={**(parts if names else {}), "loss": loss})
    elif row := _RESULTS_ROW.match(line):
        values = {"mAP50": number(row[3]), "mAP50-95": number(row[4])}
        yield Stats(step=int(row[1]), values={"loss": number(row[2]), **values})
    elif told := _ALL_CLASSES.match(line):
        yield Metrics({"mAP50": number(told[3]), "mAP50-95": number(told[4])})


ULTRALYTICS = Format(
    source="ultralytics",
    anchors=("G   ", "M   ", " all "),
    read=read_ultralytics,
    learn=learn_ultralytics,
    marks={"step": (Mark.EPOCHS.value,)},
    counts_epochs=True,
)
