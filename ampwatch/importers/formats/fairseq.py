"""fairseq: three eras of overflow lines, --amp, and statistics lines of every kind.

The printed loss_scale is rounded to three digits, and before August 2020 averaged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ampwatch.importers.format import NUMBER, Format, number
from ampwatch.importers.statements import Amend, Fatal, Scale, Setup, Skip, Statement, Stats
from ampwatch.rows import Mark

_OVERFLOW = re.compile(
    rf"overflow detected,(?: ignoring gradient,)? setting (?:loss )?scale to:?(?: to)? ({NUMBER})"
)
_PARAMETER = re.compile(r"overflow in param (\S+)")
_EPOCH = re.compile(r"epoch (\d+):? +(?:\d+%\|[^|]{0,200}\| *)?(\d+) */ *(\d+) ")
_PAIR = re.compile(rf"(?<![a-z_])([a-z_]{{1,40}})[= ]({NUMBER})(?=[, |(]|$)")
_SCALE_ALONE = re.compile(rf"loss_scale=({NUMBER})")
_FLOOR = re.compile(rf"Minimum loss scale reached \(({NUMBER})\)")
# 0.004 is 2^-8 rounded to three digits, 0.03 octaves off.
_ROUNDING_OCTAVES = 0.04
_FIELDS = {
    "loss": "loss", "lr": "lr", "gnorm": "grad_norm", "loss_scale": "scale_after",
    "num_updates": "step",
}  # fmt: skip


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of fairseq states."""
    if "rejecting batch" in line:
        return  # the norm was above the clipping limit: no overflow
    overflow = _OVERFLOW.search(line)
    if overflow:
        yield Skip(scale_after=number(overflow[1]) or None)
    elif "overflow in param" in line and (named := _PARAMETER.search(line)):
        yield Amend(layer=named[1])
    elif floor := _FLOOR.search(line):
        yield Setup(scaler={"min_scale": number(floor[1])})
        yield Fatal("FloatingPointError", line[floor.start() :].strip()[:300])
    elif "num_updates" in line and "valid on" not in line and "valid_loss" not in line:
        yield from _statistics(line)
    elif (batch := _EPOCH.search(line)) and (told := _SCALE_ALONE.match(line, batch.end())):
        # Before the first update there is nothing else to print.
        yield from (Scale(scale) for scale in (number(told[1]),) if _is_scale(scale))


def _statistics(line: str) -> Iterator[Statement]:
    start = line.find("{")
    if start >= 0:
        yield from _stats(_json(line[start:]), is_summary='"train_loss"' in line)
        return
    pairs = dict(_PAIR.findall(line))
    batch = _EPOCH.search(line)
    skips = None
    if batch and int(batch[1]) == 1 and "num_updates" in pairs:
        skips = max(0, int(batch[2]) - int(number(pairs["num_updates"])))
    yield from _stats(pairs, is_summary=batch is None, skips=skips)


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


def _stats(
    pairs: Mapping[str, Any], *, is_summary: bool, skips: int | None = None
) -> Iterator[Stats]:
    values = {column: number(str(pairs[name])) for name, column in _FIELDS.items() if name in pairs}
    step = values.pop("step", None)
    if step is None or not abs(step) < 2.0**53:
        return
    yield Stats(step=int(step), values=values, total_skips=skips, is_summary=is_summary)


FORMAT = Format(
    source="fairseq",
    anchors=(
        "overflow detected", "overflow in param", "Minimum loss scale reached", "num_updates",
        " loss_scale=",
    ),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "init_scale": 128.0, "min_scale": 1e-4},
    marks={"scale_after": (Mark.ROUNDED.value,), "loss": (Mark.AVERAGED.value,)},
    is_scale=_is_scale,
    leads=True,
)  # fmt: skip
