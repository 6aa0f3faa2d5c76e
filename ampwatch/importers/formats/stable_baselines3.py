"""Boxes of Stable-Baselines: `| ep_rew_mean | -720 |`, a row a value, a box a stretch of training.

A critic's loss grows with what it values, and is no loss of the run. Stable-Baselines 2 prints no
loss by that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number
from ampwatch.importers.statements import Metrics, Statement, Stats
from ampwatch.importers.tables.column_names import losses_among
from ampwatch.metric_names import is_metric

_ROW = re.compile(rf"\| +([a-z][\w/]{{0,40}}) *\| *\[?({NUMBER})\]? *\|")
_COLUMNS = {"loss": "loss", "learning_rate": "lr"}
_STEP, _EVALUATION = "total_timesteps", "| eval/"


def read(line: str) -> Iterator[Statement]:
    """Yield what a box states."""
    told = {name.rpartition("/")[2]: number(value) for name, value in _ROW.findall(line)}
    step = told.pop(_STEP, None)
    if step is None:
        return
    values = {_COLUMNS[name]: value for name, value in told.items() if name in _COLUMNS}
    metrics = {n: v for n, v in told.items() if n not in _COLUMNS and is_metric(n)}
    if _EVALUATION in line and "loss" not in values:
        yield Metrics(metrics)
        return
    if "loss" not in values and (name := next(losses_among(tuple(metrics)), None)) is not None:
        values["loss"] = metrics.pop(name)
    yield Stats(int(step), {**metrics, **values})


FORMAT = Format(source="stable-baselines3", anchors=("total_timesteps ",), read=read)
