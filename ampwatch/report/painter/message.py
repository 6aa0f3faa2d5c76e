"""What the painter is sent: a JSON header, then arrays as they lie in memory.

message.js reads it. JSON alone would take the browser twenty times longer to parse.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampwatch.report import thinning
from ampwatch.report.thinning import Stretches

Arrays = dict[str, NDArray[Any]]

ALIGNMENT = 8  # a typed array must begin at a multiple of its item's size
KINDS = {"float64": np.float64, "float32": np.float32, "int32": np.int32}


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The header with where each array lies, and the arrays."""
    places, pieces, offset = {}, [], 0
    for name, values in arrays.items():
        kept = np.ascontiguousarray(values)
        if kept.dtype.name not in KINDS:
            kept = kept.astype(np.float64)  # JavaScript has no 64 bit integers to draw with
        places[name] = [kept.dtype.name, offset, len(kept)]
        pieces.append(_padded(kept.tobytes()))
        offset += len(pieces[-1])
    text = json.dumps({**header, "arrays": places}, allow_nan=False).encode()
    text = _padded(struct.pack("<I", len(text)) + text)
    return b"".join([text, *pieces])


def _padded(piece: bytes) -> bytes:
    return piece + b" " * (-len(piece) % ALIGNMENT)


def odd_arrays(key: str, odd: Stretches) -> Arrays:
    """Where a line is not finite, as arrays of a message; none where it is."""
    parts: Arrays = {"first": odd.first, "last": odd.last, "kind": odd.kind}
    return {f"odd.{key}.{part}": values for part, values in parts.items()} if len(odd) else {}


# --- what a chart shows --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stroke:
    """One line of a panel."""

    column: str
    label: str
    color: str
    stepped: bool = False
    faint: bool = False
    dash: str = "solid"
    group: str = ""  # lines of one run in several panels: one label hides and lights them all

    def header(self) -> dict[str, Any]:
        """This part of the picture as JSON for the browser."""
        return {
            "key": self.column, "label": self.label, "color": self.color,
            "stepped": self.stepped, "faint": self.faint, "dash": self.dash, "group": self.group,
            "width": 2 if self.stepped else 1.6,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guide:
    """A value drawn across a panel, or from a step on, with an interval around it.

    `fits` makes room for it.
    """

    value: float
    low: float
    high: float
    color: str
    said: str
    fits: bool = False
    since_step: int | None = None

    def header(self) -> dict[str, Any]:
        """This part of the picture as JSON for the browser."""
        return {
            "value": self.value, "low": self.low, "high": self.high, "color": self.color,
            "fits": self.fits, "since": self.since_step,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of the chart; each part of its title has the colour of its line."""

    title: tuple[tuple[str, str], ...]
    strokes: tuple[Stroke, ...]
    kind: str = "number"  # or power, rate, share
    height: int = 96
    unit: str = ""
    rug: bool = False  # whether skipped steps are drawn below it
    guides: tuple[Guide, ...] = ()

    def header(self) -> dict[str, Any]:
        """This part of the picture as JSON for the browser."""
        title = [*self.title, *((guide.said, "muted") for guide in self.guides)]
        return {
            "title": title, "kind": self.kind, "height": self.height, "unit": self.unit,
            "rug": self.rug, "lines": [stroke.header() for stroke in self.strokes],
            "guides": [guide.header() for guide in self.guides],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """The steps of a finding: a span in a lane above the panels, `shaded` through all of them.

    Where single steps count, they are marked instead of all from the first to the last.
    """

    first: int
    last: int
    label: str
    color: str
    shaded: bool = False
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepNote:
    """A step that is marked through all panels: an attempt begins there, or a setting changed."""

    step: int
    label: str
    color: str = "muted"


@dataclass(frozen=True, slots=True)
class Axis:
    """What lines may be drawn over instead of the step: its line gives each step a place."""

    key: str
    label: str
    kind: str = "number"  # or second, or clock
    line: str = ""  # whose line it is, if that has another key
    origin_s: float = 0.0  # of a clock: the time of day of second 0, since 1970


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart without its points."""

    name: str  # with another name, the zoom and the step that the reader chose are dropped
    panels: Sequence[Panel]
    ends: tuple[int, int]
    marks: Sequence[Mark] = ()
    restart: int | None = None
    span: tuple[int, int] | None = None
    picked: int | None = None
    rows: int = 0
    unit: str = "step"  # of the axis: step, or second
    reports: bool = True  # whether the reader's zoom and step are sent back
    axes: Sequence[Axis] = ()
    view: str | None = None  # how the reader chose to see it, as the chart itself wrote it
    heard: int = 0  # how many choices the chart has told until now
    title: str = ""  # whose chart it is, and
    verdict: str = ""  # what was found, in a saved picture
    notes: Sequence[StepNote] = ()
    shares: Sequence[str] = ()  # what the Share menu offers beside files: link, plotly, report

    def header(self, base: str, hole: float, *, whole: bool) -> dict[str, Any]:
        """The picture as JSON; `base` names the points, which are sent along if `whole`."""
        return {
            "component": "chart",
            "run": self.name,
            "rows": self.rows,
            "base": base,
            "hasBase": whole,
            "hole": hole,
            "axis": list(self.ends),
            "unit": self.unit,
            "reports": self.reports,
            "axes": [asdict(axis) for axis in self.axes],
            "view": self.view,
            "heard": self.heard,
            "span": None if self.span is None else list(self.span),
            "picked": self.picked,
            "panels": [panel.header() for panel in self.panels],
            "marks": [asdict(mark) for mark in self.marks],
            "restart": self.restart,
            "notes": [asdict(note) for note in self.notes],
            "title": self.title,
            "verdict": self.verdict,
            "shares": list(self.shares),
        }


def still_message(picture: Picture, arrays: Arrays) -> bytes:
    """A chart whose points are sent whole."""
    hole = thinning.hole_of(*picture.ends)
    return pack(picture.header(f"still {picture.rows}", hole, whole=True), arrays)
