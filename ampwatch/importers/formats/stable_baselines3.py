"""Boxes of Stable-Baselines3: `| ep_rew_mean | -720 |`, a row a value, a box a stretch of training.

A critic's loss grows with what it values, and is no loss of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number
from ampwatch.importers.statements import Metrics, More, Place, Statement
from ampwatch.metric_names import is_metric

_ROW = re.compile(rf"\| +([a-z][\w/]{{0,40}}) *\| *({NUMBER}) *\|")
_COLUMNS = {"loss": "loss", "learning_rate": "lr"}


def read(line: str) -> Iterator[Statement]:
    """Yield what a box states."""
    if "total_timesteps" not in line:
        return
    rows = [(name.rpartition("/")[2], number(value)) for name, value in _ROW.findall(line)]
    yield from (Place(int(value)) for name, value in rows if name == "total_timesteps")
    values = {_COLUMNS[name]: value for name, value in rows if name in _COLUMNS}
    if values:
        yield More(values)
    metrics = {n: v for n, v in rows if n not in _COLUMNS and is_metric(n)}
    if metrics:
        yield Metrics(metrics)


FORMAT = Format(source="stable-baselines3", anchors=("total_timesteps ",), read=read)
