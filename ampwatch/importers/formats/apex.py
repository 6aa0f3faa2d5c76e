"""NVIDIA Apex: apex.amp, apex.fp16_utils and apex.contrib.optimizers.

Apex prints on every rank, never prints a growth, and has no lowest scale.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, TORCH_SCALER, Format, number, pattern
from ampwatch.importers.statements import Amend, Setup, Skip, Statement

_SKIP = re.compile(
    r"Gradient overflow\. +Skipping step, (?:loss scaler \d+ )?reducing loss scale to "
    rf"({NUMBER})"
)
_CLOSURE = pattern("OVERFLOW within closure! Skipping step, reducing loss scale to {}")
_USING = pattern("Using dynamic loss scale of {}")
_SELECTED = re.compile(r"Selected optimization level (O\d)")
_SETTING = re.compile(
    r"^\W*(enabled|opt_level|cast_model_type|patch_torch_functions|keep_batchnorm_fp32|"
    r"master_weights|loss_scale) +: +(\S+)"
)


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of Apex states."""
    told = _SKIP.findall(line)  # ranks that print at once share a line
    if told:
        yield from (Skip(scale_after=number(scale)) for scale in told)
    elif "Gradient overflow, skipping update" in line:
        yield Skip()
    elif closure := _CLOSURE.search(line):
        yield Skip(scale_after=number(closure[1]))
    elif using := _USING.search(line):
        yield Amend(scale=number(using[1]))
    elif selected := _SELECTED.search(line):
        yield Setup(config={"opt_level": selected[1]}, begins=True)
    elif setting := _SETTING.search(line):
        yield Setup(config={setting[1]: _plain(setting[2])})


def _plain(text: str) -> object:
    return {"True": True, "False": False, "None": None}.get(text, text)


FORMAT = Format(
    source="apex",
    anchors=(
        "Gradient overflow", "OVERFLOW within closure", "Using dynamic loss scale of",
        "Selected optimization level", "cast_model_type ", "patch_torch_functions ",
        "keep_batchnorm_fp32 ", "master_weights ", "loss_scale  ", "opt_level  ", "enabled  ",
    ),
    read=read,
    scaler={**TORCH_SCALER, "init_scale": 65536.0, "max_scale": 2.0**24},
)  # fmt: skip
