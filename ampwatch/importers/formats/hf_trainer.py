"""Hugging Face's Trainer: dictionaries of each logging step, and its progress bar for the step.

It prints no scale. A loss of exactly 0.0 can be a nan that was filtered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, fields, keyed, number
from ampwatch.importers.statements import Progress, Statement, Stats
from ampwatch.importers.tables.column_names import column_in_text
from ampwatch.metric_names import is_metric
from ampwatch.rows import Mark

# A paste may begin or end within one.
_DICT = re.compile(
    r"\{'loss': [^{}]{0,8000}(?:\}|$)|^[^{}]{0,8000}'learning_rate': [^{}]{0,8000}\}"
)
_BAR = re.compile(r"\| *(\d+)/(\d+) \[[^\]]{3,60}(?:it/s|s/it)")
# What a trainer adds, as a reward.
_KEYED = re.compile(rf"'([A-Za-z][\w/@.-]{{0,60}})': '?({NUMBER})")
_FIELDS = {
    "loss": keyed("'loss"),
    "grad_norm": keyed("'grad_norm"),
    "lr": keyed("'learning_rate"),
    "step": keyed("'(?:global_)?step"),
}


def read(line: str) -> Iterator[Statement]:
    """Yield what a line of the Trainer states."""
    told = _DICT.search(line)
    bars = list(_BAR.finditer(line, 0, told.start() if told else len(line)))
    if bars:
        yield Progress(int(bars[-1][1]), int(bars[-1][2]))
    if told and ("'epoch'" in told[0] or "'learning_rate'" in told[0]):
        yield _stats(told[0])


def _stats(text: str) -> Stats:
    values = fields(text, _FIELDS)
    step = values.pop("step", None)
    for name, value in _KEYED.findall(text):
        if column_in_text(name) is None and is_metric(name):
            values.setdefault(name, number(value))
    return Stats(step=None if step is None else int(step), values=values)


FORMAT = Format(
    source="hf-trainer",
    anchors=("{'loss': ", "'learning_rate': ", "it/s]", "s/it]", "it/s, ", "s/it, "),
    read=read,
    marks={"loss": (Mark.AVERAGED.value,)},
)
