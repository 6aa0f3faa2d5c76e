"""NVIDIA's DLLogger: parameters, and the loss and rate of an iteration."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, TORCH_SCALER, Format, fields, number
from ampwatch.importers.statements import Scale, Setup, Statement, Stats

_LINE = re.compile(r"DLL \S+ \S+ - (.{1,2000})")
_SCALE = re.compile(rf"PARAMETER (?:.{{0,200}} )?loss_scale : ({NUMBER})")
_PARAMETER = re.compile(r"PARAMETER (\w+) : (\S+)$")
_STEP = re.compile(r"(?:Iteration: |\(\d+, |^)(\d+)[,)]? ")
_FIELDS = {
    "loss": re.compile(rf"(?:step_loss|train[._]loss|train_loss|\bloss) : ({NUMBER})"),
    "lr": re.compile(rf"(?:learning_rate|train[._]lr|\blr) : ({NUMBER})"),
}


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of DLLogger states."""
    told = _LINE.search(line)
    if not told:
        return
    text = told[1].strip()
    scale, parameter = _SCALE.search(text), _PARAMETER.match(text)
    if scale:
        yield Scale(number(scale[1]))
    elif parameter:
        yield Setup(config={parameter[1]: parameter[2]})
    elif (step := _STEP.search(text)) and "alid" not in text and (values := fields(text, _FIELDS)):
        yield Stats(step=int(step[1]), values=values)


FORMAT = Format(source="dllogger", anchors=("DLL ",), read=read, scaler=TORCH_SCALER)
