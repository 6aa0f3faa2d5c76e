"""Boxes of Stable-Baselines3: `| ep_rew_mean | -720 |`, a row a value, a box a stretch of training.

A critic's loss grows with what it values, and is no loss of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number
from ampwatch.importers.statements import Metrics, More, Place, Statement
from ampwatch.metric_names import metric_of

_ROW = re.compile(rf"\| +([a-z][\w/]{{0,40}}) *\| *({NUMBER}) *\|\s*$")
_COLUMNS = {"loss": "loss", "learning_rate": "lr"}


def read(line: str) -> Iterator[Statement]:
    """Yield what a row of a box states."""
    row = _ROW.match(line)
    if row is None:
        return
    name, value = row[1].rpartition("/")[2], number(row[2])
    if name == "total_timesteps":
        yield Place(int(value))
    elif name in _COLUMNS:
        yield More({_COLUMNS[name]: value})
    elif metric_of(name) is not None:
        yield Metrics({name: value})


FORMAT = Format(
    source="stable-baselines3",
    anchors=("| total_timesteps", "_loss  ", "   loss  ", "_rew_mean", "| learning_rate",
             "   learning_rate", "total_timesteps "),
    read=read,
)  # fmt: skip
