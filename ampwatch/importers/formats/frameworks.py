"""The frameworks whose lines need no code: for each a row of wordings and what is known of it.

A scale that a meter rounds to 0 is left out; a mean over some steps is marked as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampwatch.importers.format import TORCH_SCALER, Format
from ampwatch.importers.scale_arithmetic import snapped
from ampwatch.importers.wordings import Told, Wording, reader, worded
from ampwatch.rows import Mark

_THOUSAND_STEPS = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0}
_AVERAGED, _ROUNDED = (Mark.AVERAGED.value,), (Mark.ROUNDED.value,)
_DLL = r"DLL \S+ \S+ - "
_METRIC_LOGGER = r"Epoch: \[<epoch>\] +\[ *<step>/<batches>\]"


def _with_milliseconds(told: Told) -> Told:
    seconds = told.pop("seconds", None)
    return told if seconds is None else {**told, "step_time_ms": 1000 * seconds}


def _with_product(told: Told) -> Told:
    """Paddle's scale after an overflow, printed as a product."""
    return {**told, "scale_after": told["scale_after"] * told["backoff_factor"]}


def _with_hysteresis(told: Told) -> Told:
    """DeepSpeed's first overflows may leave the scale as it was."""
    stays = {"scale_after": told.get("scale")} if told.pop("hysteresis", None) else {}
    return {**told, **stays}


def _with_power_of_two(told: Told) -> Told:
    """MindFormers' scale is rounded to a few digits, or to 0."""
    scale = snapped(told.pop("scale_after", 0.0))
    return {**told, "scale": scale} if scale else told


def _meters(source: str, anchor: str, place: str, **more: Any) -> Format:
    """Meters, `name current (average)`: one inf makes an average nan for ever; it is not used.

    Without a loss by that name the last resort reads the line.
    """
    marks = {"loss": _AVERAGED, "grad_norm": _AVERAGED} if more else {}
    line = worded("named", place, wants=("loss",), first_epoch=0, **more)
    return _form(source, (anchor,), TORCH_SCALER, line, marks=marks, is_scale=bool)


def _form(
    source: str,
    anchors: tuple[str, ...],
    scaler: Mapping[str, float],
    *wordings: Wording,
    **more: Any,
) -> Format:
    return Format(source, anchors, reader(wordings), scaler, **more)


# DeepSpeed: its loss scaler in all its wordings, of several ranks on one line; the fused optimizer.
# It never prints a growth. Since March 2023 it prints scales through int(): one below 1 reads
# 0, and is absent here; a float's 0.0 is a zero.
DEEPSPEED = _form(
    "deepspeed",
    (
        "Attempted loss scale",
        "Grad overflow on iteration",
        "Reducing dynamic loss scale",
        "Increasing dynamic loss scale",
        "Using static loss scale of",
        ", skipped=",
        "Current loss scale already at minimum",
    ),
    {**_THOUSAND_STEPS, "init_scale": 65536.0, "min_scale": 1.0, "hysteresis": 2.0},
    worded(
        "skip",
        r"(?:Rank <rank>[ \]]+)?(?:Overflow detected\. )?Skipping step\. Attempted loss "
        r"scale: (?:0|<scale>), (?:reducing to (?:0(?![\d.])|<scale_after>)|but "
        r"hysteresis is (?P<hysteresis>\d+))",
        needs=("[deep", "Overflow detected", "loss_scaler.py"),
        mended=_with_hysteresis,
    ),
    worded("stats", r"\[Rank \d+\] step=<step>, skipped=<total_skips>, lr=\[(?:<lr>)?"),
    worded("skip", "Grad +overflow +on +iteration +<step>"),
    worded("amend", "Reducing +dynamic +loss +scale +from +<scale> +to +<scale_after>"),
    worded("scale", "Increasing +dynamic +loss +scale +from +<> +to +<scale_after>"),
    worded("setup", "Using +static +loss +scale +of: +<static_loss_scale>"),
    worded(
        "fatal",
        "Current loss scale already at minimum",
        exception="Exception",
        unless=("Attempted loss scale",),
    ),
    marks={"scale": _ROUNDED},
)
FRAMEWORKS: tuple[Format, ...] = (
    # Apex prints on every rank, never prints a growth, and has no lowest scale.
    _form(
        "apex",
        ("Gradient overflow", "OVERFLOW within closure", "Using dynamic loss scale of",
         "Selected optimization level", "cast_model_type ", "patch_torch_functions ",
         "keep_batchnorm_fp32 ", "master_weights ", "loss_scale  ", "opt_level  ", "enabled  "),
        {**TORCH_SCALER, "init_scale": 65536.0, "max_scale": 2.0**24},
        worded("skip", r"Gradient overflow\. +Skipping step, (?:loss scaler \d+ )?"
                       "reducing loss scale to <scale_after>"),
        worded("skip", "Gradient overflow, skipping update"),
        worded("skip", "OVERFLOW within closure! Skipping step, reducing loss scale to +"
                       "<scale_after>"),
        worded("amend", "Using dynamic loss scale of +<scale>"),
        worded("setup", r"Selected optimization level (?P<opt_level>O\d)", begins=True),
        worded("setup", r"^\W*(?P<key>enabled|opt_level|cast_model_type|patch_torch_functions|"
                        r"keep_batchnorm_fp32|master_weights|loss_scale) +: +(?P<value>\S+)"),
    ),
    # NVIDIA's FP16_Optimizer as copied into early Megatron-LM, Tacotron 2 and others.
    _form(
        "nvfp16",
        ("OVERFLOW! Skipping step", " Grad Norm "),
        {**_THOUSAND_STEPS, "init_scale": 2.0**32, "min_scale": 1.0},
        worded("stats", r"^\W*Train (?:loss|iter) +<step> (?:loss )?<loss> Grad Norm <grad_norm> "
                        "<seconds>s/it", mended=_with_milliseconds),
        worded("skip", r"Skipping step\. Attempted loss scale: <scale>"
                       "(?:, reducing to <scale_after>)?", needs=("OVERFLOW!",), unless=("[deep",)),
    ),
    # metaseq (OPT): fairseq's lines, and the scale with its window; it goes on at its floor.
    _form(
        "metaseq",
        ("SCALE_WINDOW", "rejecting batch"),
        {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 256.0, "init_scale": 4.0,
         "min_scale": 2.0**-5},
        worded("scale", "SCALE_WINDOW: +<growth_interval>, loss scale: +<scale_after>"),
        instead_of=("fairseq",),
        leads=True,
    ),
    _form(
        "fairseq2",
        ("ignoring gradient, decreasing", "ignoring gradient, loss scale is already",
         "No gradient overflow detected in the last"),
        {"growth_factor": 2.0, "backoff_factor": 0.5},
        worded("skip", "Overflow detected at step <step>, ignoring gradient, decreasing loss scale "
                       r"from <scale> to (?:(?=<min_scale> ?\(minimum\)))?<scale_after>"),
        worded("skip", "Overflow detected at step <step>, ignoring gradient, loss scale is already "
                       r"at minimum \((?=<scale>\))(?=<scale_after>\))<min_scale>\)"),
        worded("scale", r"No gradient overflow detected in the last <growth_interval> step\(s\) "
                        "after step <step>, increasing loss scale from <> to <scale_after>"),
        worded("fatal", r"Overflow detected at step .{0,80}already.{0,200}exploding",
               exception="FloatingPointError"),
    ),
    _form(
        "espnet",
        ("Skipping updating the model", "epoch:train:"),
        TORCH_SCALER,
        worded("skip", r"grad norm is <grad_norm>\. Skipping updating the model"),
        worded("named", r"(?<!\d)<epoch>epoch:train:\d{1,12}-<step>batch: "),
        marks=dict.fromkeys(("loss", "grad_norm", "scale_after"), _AVERAGED),
    ),
    # icefall raises a low scale by itself, and warns.
    _form(
        "icefall",
        ("Grad scale is small", "grad_scale is too small", ", batch "),
        TORCH_SCALER,
        worded("scale", "Grad scale is small: <scale_after>"),
        worded("scale", "grad_scale is too small, exiting: <scale_after>"),
        worded("fatal", "grad_scale is too small, exiting: ", exception="RuntimeError"),
        worded("named", r"Epoch <epoch>, batch <step>,", unless=("validation",)),
        marks={"step": (Mark.PLACED.value,)},
    ),
    _form(
        "parlai",
        ("Overflow: setting loss scale to",),
        TORCH_SCALER,
        worded("skip", "Overflow: setting loss scale to +<scale_after>"),
    ),
    # MindYOLO, and the networks for MindSpore that share its lines.
    _form(
        "mindyolo",
        ("loss scale adjust to",),
        _THOUSAND_STEPS,
        worded("skip", "overflow, (?:drop step, )?loss scale adjust to +<scale_after>"),
        worded("scale", "overflow, still update, loss scale adjust to +<scale_after>"),
    ),
    # NeMo 2, its `ProgressPrinter` (NVIDIA/NeMo, commit 8cfedd7, nemo/lightning/pytorch/callbacks/
    # progress_printer.py): means over an interval with four digits, except the global step.
    _form(
        "nemo",
        ("Training epoch ",),
        {**_THOUSAND_STEPS, "hysteresis": 2.0},
        worded("named", r"Training epoch \d+, iteration <step>/\d+ \|",
               {"step": r"\| global_step: <>", "seconds": r"\| train_step_timing in s: <>"},
               mended=_with_milliseconds),
        marks={"loss": _AVERAGED, "grad_norm": _AVERAGED},
    ),
    # PaddlePaddle's scaler; PaddleClas, PaddleSeg (which counts through all epochs), PaddleNLP.
    _form(
        "paddle",
        ("Found inf or nan, current scale", "global_step: ", "global step ", "[Train][Epoch "),
        {**TORCH_SCALER, "init_scale": 32768.0},
        worded("skip", "Found inf or nan, current scale is: <scale>, decrease to: <scale_after>"
                       r"\*<backoff_factor>", mended=_with_product),
        worded("named", r"\[Train\]\[Epoch <epoch>/\d+\]\[Iter: <step>/\d+\]",
               {"lr": r"\]lr(?:\(\w{1,40}\))?: <>"}),
        worded("named", r"global[_ ]step:? <step>", unless=("eval",), wants=("loss",)),
    ),
    # ColossalAI: a skipped step without a scale (its copy of DeepSpeed's scaler prints as that).
    _form(
        "colossalai",
        ("Found overflow. Skip step",),
        _THOUSAND_STEPS,
        worded("skip", r"Found overflow\. Skip step"),
        instead_of=("deepspeed",),
    ),
    # MindFormers: overflow condition and loss scale of each step; the scale is rounded.
    _form(
        "mindformers",
        ("overflow cond:",),
        _THOUSAND_STEPS,
        *(
            worded("named", place, {"skipped": r"overflow cond: +(?P<found>True|False)"},
                   wants=("skipped",), first_epoch=1, mended=_with_power_of_two)
            for place in (
                r"Epoch:\[ *<epoch>/ *\d+\], step:\[ *<step>/ *<batches>\]",
                r"(?:cur_step_num|step): *<step>",
                r"overflow cond:",
            )
        ),
        marks={"scale": _ROUNDED},
    ),
    _form(
        "insightface",
        ("Global Step:",),
        TORCH_SCALER,
        worded("named", "Global Step: *<step>", needs=("Speed",)),
        is_scale=bool,
        marks={"scale_after": _ROUNDED, "loss": _AVERAGED},
    ),
    # NVIDIA's DLLogger: parameters, and the loss and learning rate of an iteration.
    _form(
        "dllogger",
        ("DLL ",),
        TORCH_SCALER,
        worded("scale", _DLL + "PARAMETER (?:.{0,200} )?loss_scale : <scale_after>"),
        worded("setup", _DLL + r"PARAMETER (?P<key>\w+) : (?P<value>\S+) *$"),
        worded("named", _DLL + r"(?:.{0,200}?Iteration: |\(\d+, )?<step>[,)]? ",
               unless=("alid",), wants=("loss", "lr")),
    ),
    # nanoGPT does not print the scaler.
    _form(
        "nanogpt",
        ("iter ", ": train loss "),
        {},
        worded("stats", r"(?:^|[^\w.])iter <step>: loss <loss>, time <step_time_ms>ms"),
        worded("stats", r"(?:^|[^\w.])step <step>: train loss <>, val loss <val_loss>"),
    ),
    _meters("swin", "Train: [", r"Train: \[<epoch>/\d+\]\[<step>/<batches>\]"),
    _meters("timm", "Train: ", r"Train: <epoch> \[ *<step>/<batches> +\("),
    _meters("beit", "Epoch: [", _METRIC_LOGGER, needs=("loss_scale", "min_lr")),
    _meters("mae", "Epoch: [", _METRIC_LOGGER, unless=("loss_scale", "min_lr")),
)  # fmt: skip
