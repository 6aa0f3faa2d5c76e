"""The frameworks whose lines take code, each with the function that reads them.

DeepSpeed, Megatron-LM and GPT-NeoX, fairseq, Hugging Face's Trainer, torchtitan, Stable-Baselines,
Ultralytics.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ampwatch.importers.format import NUMBER, TORCH_SCALER, Format, fields, keyed, number, pattern
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

# --- DeepSpeed ------------------------------------------------------------------------------------

# DeepSpeed: its loss scaler in all its wordings, the fused optimizer, and the step counter.
#
# The loss scaler never prints a growth. Since March 2023 it prints scales through int(), so a scale
# below 1 reads 0 and is absent here.

_ATTEMPTED = re.compile(
    r"(?:Rank (\d+)[ \]]+)?(?:Overflow detected\. )?Skipping step\. Attempted loss scale: "
    rf"({NUMBER}), (?:reducing to ({NUMBER})|but hysteresis is (\d+))"
)
_FUSED = pattern("Grad overflow on iteration {}")
_REDUCING = pattern("Reducing dynamic loss scale from {} to {}")
_INCREASING = pattern("Increasing dynamic loss scale from {} to {}")
_STATIC = pattern("Using static loss scale of: {}")
_DEEPSPEED_STEP = re.compile(rf"\[Rank \d+\] step=(\d+), skipped=(\d+), lr=\[({NUMBER})?")
_AT_MINIMUM = "Current loss scale already at minimum"


def read_deepspeed(line: str) -> Iterator[Statement]:
    """Yield what a line of DeepSpeed states."""
    if "Attempted loss scale" in line:
        if "[deep" in line or "Overflow detected" in line or "loss_scaler.py" in line:
            yield from attempted(line)
    elif step := _DEEPSPEED_STEP.search(line):
        lr = {} if step[3] is None else {"lr": number(step[3])}
        yield Stats(step=int(step[1]), values=lr, total_skips=int(step[2]))
    elif fused := _FUSED.search(line):
        yield Skip(step=_whole(fused[1]))
    elif reducing := _REDUCING.search(line):
        yield Amend(scale=number(reducing[1]), scale_after=number(reducing[2]))
    elif increasing := _INCREASING.search(line):
        yield Scale(scale_after=number(increasing[2]))
    elif static := _STATIC.search(line):
        yield Setup(config={"static_loss_scale": number(static[1])})
    elif _AT_MINIMUM in line:
        yield Fatal("Exception", line[line.index(_AT_MINIMUM) :].strip())


def attempted(line: str) -> Iterator[Skip]:
    """Each `Attempted loss scale` in a line of DeepSpeed: two ranks may share one line."""
    for match in _ATTEMPTED.finditer(line):
        before = number(match[2])
        after = before if match[4] is not None else number(match[3])
        rounded = match[2] == "0" or match[3] == "0"  # through int(); a float's 0.0 is a zero
        yield Skip(
            scale=before or (None if rounded else before),
            scale_after=after or (None if rounded else after),
            rank=None if match[1] is None else int(match[1]),
        )


def _whole(text: str) -> int | None:
    value = number(text)
    return int(value) if abs(value) < 2.0**53 else None


DEEPSPEED = Format(
    source="deepspeed",
    anchors=(
        "Attempted loss scale", "Grad overflow on iteration", "Reducing dynamic loss scale",
        "Increasing dynamic loss scale", "Using static loss scale of", ", skipped=", _AT_MINIMUM,
    ),
    read=read_deepspeed,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0,
            "init_scale": 65536.0, "min_scale": 1.0, "hysteresis": 2.0},
    marks={"scale": (Mark.ROUNDED.value,)},
)  # fmt: skip


# --- Megatron -------------------------------------------------------------------------------------

# Megatron-LM from 2019 on, Megatron-DeepSpeed, GPT-NeoX: one line of statistics every few steps.
#
# A loss is omitted if its average is nan or 0. Counters count since the previous line. DeepSpeed's
# skips are not counted: there an unchanged norm beside a missing loss shows one.

_ITERATION = re.compile(r"iteration +(\d+)/ *\d+ \|")
_NEOX = re.compile(r"samples/sec: .{0,40}?\| +iteration +(\d+)/ *\d+ \|")
_LOSS = re.compile(rf"(?:lm|lm-loss|total|lm_loss)[ _-]?loss:? ({NUMBER})|\bloss: ({NUMBER})")
_SKIPPED = keyed("number of skipped iterations")
_NAN = keyed("number of nan iterations")
_OTHER = re.compile(rf"(?<=\| )([a-z][\w/ ]{{0,40}}): +({NUMBER})(?= \|)")
_MEGATRON_FIELDS = {
    "lr": keyed("learning rate"),
    "scale_after": keyed("loss scale"),
    "grad_norm": keyed("grad norm"),
    "param_norm": keyed("params norm"),
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
    values = fields(line, _MEGATRON_FIELDS)
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


def meant_by_megatron(printed: float) -> float:
    """The scale that Megatron's one digit stands for: 0.2 is a quarter."""
    return 2.0 ** round(math.log2(printed)) if 0 < printed < 1 else printed


_MEGATRON_SCALER = {
    "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0, "init_scale": 2.0**32,
    "min_scale": 1.0, "hysteresis": 2.0,
}  # fmt: skip
_MEGATRON_MARKS = {"loss": (Mark.AVERAGED.value,)}
MEGATRON = Format(
    "megatron",
    (" iteration ", "] iteration "),
    read_megatron,
    _MEGATRON_SCALER,
    _MEGATRON_MARKS,
    meant=meant_by_megatron,
    leads=True,
)
NEOX = Format(
    "gpt-neox",
    ("samples/sec: ",),
    read_neox,
    _MEGATRON_SCALER,
    _MEGATRON_MARKS,
    meant=meant_by_megatron,
    leads=True,
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
_PAIR = re.compile(rf"(?<![a-z_])([a-z_]{{1,40}})[= ]({NUMBER})(?=[, |(]|$)")
_SCALE_ALONE = re.compile(rf"loss_scale=({NUMBER})")
_FLOOR = re.compile(rf"Minimum loss scale reached \(({NUMBER})\)")
# 0.004 is 2^-8 rounded to three digits, 0.03 octaves off.
_ROUNDING_OCTAVES = 0.04
_FAIRSEQ_FIELDS = {
    "loss": "loss", "lr": "lr", "gnorm": "grad_norm", "loss_scale": "scale_after",
    "num_updates": "step",
}  # fmt: skip


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


def _fairseq_statistics(line: str) -> Iterator[Statement]:
    start = line.find("{")
    if start >= 0:
        yield from _fairseq_stats(_json(line[start:]), is_summary='"train_loss"' in line)
        return
    pairs = dict(_PAIR.findall(line))
    batch = _FAIRSEQ_BATCH.search(line)
    skips = None
    if batch and int(batch[1]) == 1 and "num_updates" in pairs:
        skips = max(0, int(batch[2]) - int(number(pairs["num_updates"])))
    yield from _fairseq_stats(pairs, is_summary=batch is None, skips=skips)


def _is_scale(printed: float) -> bool:
    """Whether fairseq printed an exact scale: 0 is rounded, and no power of two is an average."""
    if not (printed > 0 and math.isfinite(printed)):
        return False
    off = abs(math.log2(printed) - round(math.log2(printed)))
    return off < _ROUNDING_OCTAVES


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text[: text.rfind("}") + 1])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key).removeprefix("train_"): value for key, value in found.items()}


def _fairseq_stats(
    pairs: Mapping[str, Any], *, is_summary: bool, skips: int | None = None
) -> Iterator[Stats]:
    values = {
        column: number(str(pairs[name]))
        for name, column in _FAIRSEQ_FIELDS.items()
        if name in pairs
    }
    step = values.pop("step", None)
    if step is None or not abs(step) < 2.0**53:
        return
    yield Stats(step=int(step), values=values, total_skips=skips, is_summary=is_summary)


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
# What a trainer adds, as a reward.
_KEYED = re.compile(rf"'([A-Za-z][\w/@.-]{{0,60}})': '?({NUMBER})")
_HF_FIELDS = {
    "loss": keyed("'loss"),
    "grad_norm": keyed("'grad_norm"),
    "lr": keyed("'learning_rate"),
    "step": keyed("'(?:global_)?step"),
}


def read_hf_trainer(line: str) -> Iterator[Statement]:
    """Yield what a line of the Trainer states."""
    told = _DICT.search(line)
    bars = list(_BAR.finditer(line, 0, told.start() if told else len(line)))
    if bars:
        yield Progress(int(bars[-1][1]), int(bars[-1][2]))
    if told and ("'epoch'" in told[0] or "'learning_rate'" in told[0]):
        yield _hf_stats(told[0])


def _hf_stats(text: str) -> Stats:
    values = fields(text, _HF_FIELDS)
    step = values.pop("step", None)
    for name, value in _KEYED.findall(text):
        if column_in_text(name) is None and is_metric(name):
            values.setdefault(name, number(value))
    return Stats(step=None if step is None else int(step), values=values)


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
    rf"step: +(\d+) +loss: +({NUMBER}) +(?:grad_norm: +{NUMBER} +)?memory: +[\d.]+GiB"
)
_TORCHTITAN_FIELDS = {"grad_norm": re.compile(rf"grad_norm: +({NUMBER})")}
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
        values = {"loss": number(step[2]), **fields(line, _TORCHTITAN_FIELDS)}
        yield Stats(step=int(step[1]), values=values)
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


TORCHTITAN = Format(
    source="torchtitan",
    anchors=('"log_type_name"', "GiB(", "Float8 training active", "Converted Linear layers"),
    read=read_torchtitan,
    scaler=TORCH_SCALER,
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
    rf" *(\d{{1,6}})/\d{{1,6}} +[\d.]+[GM]B? +({NUMBER}) +({NUMBER}) +({NUMBER})(?: +{NUMBER})* +"
    r"\d+ +\d+(:.*)?$"
)
# A row of YOLOv5's `results.txt`: three losses and their sum.
_RESULTS_ROW = re.compile(
    rf" *(\d{{1,6}})/\d{{1,6}} +[\d.]+[GM]B? +{NUMBER} +{NUMBER} +{NUMBER} +({NUMBER}) +\d+ +\d+"
    rf" +{NUMBER} +{NUMBER} +({NUMBER}) +({NUMBER})(?: +{NUMBER})*\s*$"
)
_ALL_CLASSES = re.compile(rf" *all +\d+ +\d+ +({NUMBER}) +({NUMBER}) +({NUMBER}) +({NUMBER})\s*$")
_FULL = "100%"


def read_ultralytics(line: str) -> Iterator[Statement]:
    """Yield what a row of an epoch, or of its evaluation, states."""
    if row := _EPOCH_ROW.match(line):
        if not row[5] or _FULL in row[5]:
            parts = [number(row[at]) for at in (2, 3, 4)]
            yield Stats(step=int(row[1]), values={"loss": sum(parts)})
    elif row := _RESULTS_ROW.match(line):
        values = {"mAP50": number(row[3]), "mAP50-95": number(row[4])}
        yield Stats(step=int(row[1]), values={"loss": number(row[2]), **values})
    elif told := _ALL_CLASSES.match(line):
        yield Metrics({"mAP50": number(told[3]), "mAP50-95": number(told[4])})


ULTRALYTICS = Format(
    source="ultralytics",
    anchors=("G   ", "M   ", " all "),
    read=read_ultralytics,
    counts_epochs=True,
)
