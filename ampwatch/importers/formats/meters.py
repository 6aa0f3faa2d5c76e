"""The meters of Swin, BEiT, MAE and timm: `name current (average)`.

The average is not used: one inf makes it nan for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ampwatch.importers.format import NUMBER, TORCH_SCALER, Format, fields
from ampwatch.importers.statements import Statement, Stats
from ampwatch.rows import Mark

_SWIN = re.compile(r"Train: \[(\d+)/\d+\]\[(\d+)/(\d+)\]")
_TIMM = re.compile(r"Train: (\d+) \[ *(\d+)/(\d+) +\(")
_METRIC_LOGGER = re.compile(r"Epoch: \[(\d+)\] +\[ *(\d+)/(\d+)\]")


def _meter(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){name}:? +({NUMBER})")


_FIELDS: Mapping[str, re.Pattern[str]] = {
    "loss": _meter("[Ll]oss"),
    "lr": _meter("(?:lr|LR)"),
    "scale_after": _meter("loss_scale"),
    "grad_norm": _meter("grad_norm"),
}


def _stats(place: re.Match[str], line: str) -> Iterator[Statement]:
    epoch, batch, batches = (int(part) for part in place.groups())
    values = fields(line[place.end() - 1 :], _FIELDS)
    if "loss" in values:  # else it has another name, or only parts: the last resort reads them
        yield Stats(step=epoch * batches + batch, values=values)


def _read_swin(line: str) -> Iterator[Statement]:
    if place := _SWIN.search(line):
        yield from _stats(place, line)


def _read_timm(line: str) -> Iterator[Statement]:
    if place := _TIMM.search(line):
        yield from _stats(place, line)


def _read_beit(line: str) -> Iterator[Statement]:
    place = _METRIC_LOGGER.search(line)
    if place and ("loss_scale" in line or "min_lr" in line):
        yield from _stats(place, line)


def _read_mae(line: str) -> Iterator[Statement]:
    place = _METRIC_LOGGER.search(line)
    if place and "loss_scale" not in line and "min_lr" not in line and "loss" in line:
        yield from _stats(place, line)


_SMOOTHED = dict.fromkeys(("loss", "grad_norm"), (Mark.AVERAGED.value,))


def _is_scale(printed: float) -> bool:
    """Whether a meter's four digits show the scale."""
    return printed != 0


SWIN = Format("swin", ("Train: [",), _read_swin, TORCH_SCALER, is_scale=_is_scale)
TIMM = Format("timm", ("Train: ",), _read_timm, TORCH_SCALER, is_scale=_is_scale)
BEIT = Format("beit", ("Epoch: [",), _read_beit, TORCH_SCALER, _SMOOTHED, _is_scale)
MAE = Format("mae", ("Epoch: [",), _read_mae, TORCH_SCALER, _SMOOTHED, _is_scale)
