"""The charts of the HTML report: one plotly figure, its panels above one another over one axis of
steps. Plain data: colours are names of the palette (`@scale@`), and the page puts in those of its
theme.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ampwatch.diagnosis.words import count_text
from ampwatch.report.page.axes import axis_for
from ampwatch.report.page.curves import SCALE, Curves
from ampwatch.report.page.marks import LANE, Flag, drawn, flags_of, guides_of
from ampwatch.report.page.panels import PANELS, Guide, Panel
from ampwatch.report.page.traces import ticks, trace
from ampwatch.report.thinning import Line

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis

Json = dict[str, Any]

_AND = (" and ", "muted")
TITLE, _RUG, _BOTTOM = 30, 16, 46  # pixels


def figure(curves: Curves, diagnosis: Diagnosis, level: float | None) -> Json:
    """The figure; `level` is the scale that the run had established."""
    panels = list(_panels(curves))
    flags = flags_of(curves.ends, diagnosis)
    top = LANE * (max((flag.lane for flag in flags), default=-1) + 1)
    height = top + sum(TITLE + panel.height for panel in panels) + _RUG
    made = Figure(height)
    for number, panel in enumerate(panels):
        made.add(number, panel, curves, list(guides_of(panel, diagnosis, level)), top)
        top += TITLE + panel.height + (_RUG if panel.column == SCALE else 0)
    return made.finished(curves.ends, flags)


def _panels(curves: Curves) -> Iterator[Panel]:
    """Those with something to draw; some logs tell of skips and of no scale."""
    skips = (count_text(curves.skipped, "skipped step"), "skip")
    for panel in PANELS:
        if panel.column in curves.lines:
            counts = panel.column == SCALE and curves.skipped
            yield replace(panel, title=(*panel.title, _AND, skips)) if counts else panel
        elif panel.column == SCALE and curves.skipped:
            yield Panel(SCALE, "", (skips,), "skip", 0)


class Figure:
    """The figure as it is put together, from the top down."""

    def __init__(self, height: int) -> None:
        self._height = height
        self._data: list[Json] = []
        self._axes: Json = {}
        self._shapes: list[Json] = []
        self._notes: list[Json] = []
        self._short: list[str] = []  # the titles, for a screen that the guides' words do not fit

    def add(
        self, number: int, panel: Panel, curves: Curves, guides: Sequence[Guide], top: int
    ) -> None:
        """One panel, from so many pixels below the figure's top."""
        start, end = top + TITLE, top + TITLE + panel.height
        axis = f"y{2 * number + 1}" if number else "y"
        line = curves.lines.get(panel.column)
        if line is not None:
            self._axes[axis.replace("y", "yaxis")] = self._axis(panel, line, guides, top)
            self._data.append(trace(panel, line, axis))
            self._shapes += [shape for guide in guides for shape in drawn(guide, axis)]
        self._notes.append(_title(panel, guides, self._share(start)))
        self._short.append(_spans(panel.title))
        if panel.column == SCALE:
            rug = f"y{2 * number + 2}"
            domain = [self._share(end + _RUG), self._share(end)]
            self._axes[rug.replace("y", "yaxis")] = {**_HIDDEN, "domain": domain}
            self._data.append(ticks(curves.skips, rug))

    def add_together(
        self, number: int, panel: Panel, lines: Sequence[tuple[Panel, Line]], top: int
    ) -> None:
        """One panel of several runs' lines, each with a name and a colour of its own."""
        axis = f"y{number + 1}" if number else "y"
        whole = Line(*(np.concatenate([getattr(line, at) for _, line in lines]) for at in "xy"))
        self._axes[axis.replace("y", "yaxis")] = self._axis(panel, whole, (), top)
        self._data += [trace(mine, line, axis) for mine, line in lines]
        self._notes.append(_title(panel, (), self._share(top + TITLE)))
        self._short.append(_spans(panel.title))

    def _axis(self, panel: Panel, line: Line, guides: Sequence[Guide], top: int) -> Json:
        domain = [self._share(top + TITLE + panel.height), self._share(top + TITLE)]
        return {**_PLAIN, **axis_for(panel.kind, line, guides), "domain": domain}

    def finished(self, ends: tuple[int, int], flags: Sequence[Flag]) -> Json:
        """The whole figure over its axis of steps."""
        first, last = ends
        room = max(0.5, 0.004 * (last - first))
        shapes = [*self._shapes, *(flag.shape for flag in flags)]
        layout = {
            "height": self._height + _BOTTOM,
            "margin": {"l": 62, "r": 16, "t": 0, "b": _BOTTOM, "pad": 0},
            "showlegend": False, "hovermode": "x unified", "hoversubplots": "axis",
            "dragmode": "zoom", "plot_bgcolor": "rgba(0,0,0,0)", "paper_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": "@muted@"},
            "hoverlabel": {
                "bgcolor": "@page@", "bordercolor": "@grid@", "font": {"color": "@ink@"},
                "namelength": -1,
            },
            "xaxis": {
                "range": [first - room, last + room], "showgrid": False, "zeroline": False,
                "showline": True, "linecolor": "@grid@", "ticks": "outside", "ticklen": 4,
                "tickcolor": "@grid@", "tickformat": ",~d", "nticks": 10, "anchor": "free",
                "position": 0, "title": {"text": "step", "standoff": 6},
                "unifiedhovertitle": {"text": "step %{x:,d}"},
                "showspikes": True, "spikemode": "across", "spikethickness": 1,
                "spikedash": "solid", "spikecolor": "@muted@", "spikesnap": "cursor",
            },
            **self._axes, "shapes": shapes,
            "annotations": [*self._notes, *(flag.note(self._height) for flag in flags)],
        }  # fmt: skip
        return {"data": self._data, "layout": layout, "short": self._short}

    def _share(self, pixels: float) -> float:
        return round(min(1.0, max(0.0, 1 - pixels / self._height)), 5)


_PLAIN: Json = {
    "gridcolor": "@grid@", "zeroline": False, "ticks": "outside", "ticklen": 3,
    "tickcolor": "rgba(0,0,0,0)", "nticks": 5,
}  # fmt: skip
_HIDDEN: Json = {"visible": False, "fixedrange": True, "range": [0, 1]}


def _spans(words: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f'<span style="color:@{color}@">{text if color == "muted" else f"<b>{text}</b>"}</span>'
        for text, color in words
    )


def _title(panel: Panel, guides: Sequence[Guide], y: float) -> Json:
    words = (*panel.title, *((guide.said, "muted") for guide in guides))
    return {
        "text": _spans(words), "xref": "paper", "yref": "paper", "x": 0, "y": y,
        "xanchor": "left", "yanchor": "bottom", "yshift": 2, "showarrow": False,
        "font": {"size": 13},
    }  # fmt: skip
