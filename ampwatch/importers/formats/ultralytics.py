"""Ultralytics' YOLO: a row an epoch under a header, with a bar behind it; its loss is their sum.

The line of all classes holds precision, recall and the two mean average precisions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number
from ampwatch.importers.statements import Metrics, Statement, Stats

_ROW = re.compile(
    rf" *(\d{{1,6}})/\d{{1,6}} +[\d.]+[GM]B? +({NUMBER}) +({NUMBER}) +({NUMBER})(?: +{NUMBER})* +"
    r"\d+ +\d+(:.*)?$"
)
# A row of YOLOv5's `results.txt`: three losses and their sum.
_RESULT = re.compile(
    rf" *(\d{{1,6}})/\d{{1,6}} +[\d.]+[GM]B? +{NUMBER} +{NUMBER} +{NUMBER} +({NUMBER}) +\d+ +\d+"
    rf" +{NUMBER} +{NUMBER} +({NUMBER}) +({NUMBER})(?: +{NUMBER})*\s*$"
)
_ALL = re.compile(rf" *all +\d+ +\d+ +({NUMBER}) +({NUMBER}) +({NUMBER}) +({NUMBER})\s*$")
_FULL = "100%"


def read(line: str) -> Iterator[Statement]:
    """Yield what a row of an epoch, or of its evaluation, states."""
    if row := _ROW.match(line):
        if not row[5] or _FULL in row[5]:
            parts = [number(row[at]) for at in (2, 3, 4)]
            yield Stats(step=int(row[1]), values={"loss": sum(parts)})
    elif row := _RESULT.match(line):
        values = {"mAP50": number(row[3]), "mAP50-95": number(row[4])}
        yield Stats(step=int(row[1]), values={"loss": number(row[2]), **values})
    elif told := _ALL.match(line):
        yield Metrics({"mAP50": number(told[3]), "mAP50-95": number(told[4])})


FORMAT = Format(
    source="ultralytics", anchors=("G   ", "M   ", " all "), read=read, counts_epochs=True
)
