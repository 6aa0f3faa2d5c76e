"""A chart as a plotly figure, for those who want to change it: `Run.figure()`.

It is made of the same picture and arrays that the painter draws, so both show the same.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from ampwatch.diagnosis import Engine, conclude
from ampwatch.diagnosis.value_text import powers
from ampwatch.errors import ReportError
from ampwatch.printable_text import printable
from ampwatch.report.letter import begun_as_told, letter_of
from ampwatch.report.overview_chart import curves_of, overview_of, ranks_to_draw
from ampwatch.report.painter import PALETTE
from ampwatch.report.painter.message import Arrays, Panel, Picture, Stroke
from ampwatch.report.step_notes import step_notes_of
from ampwatch.report.thinning import Rug

if TYPE_CHECKING:
    from ampwatch.store import Run

_PANEL_GAP, _LEAST_HEIGHT, _LANE_HEIGHT = 44, 40, 14  # pixels
_FAINT, _SHADE = 0.45, 0.05  # as in the painter

# How the painter chooses an axis, of axis.js; a test compares the two.
_LOG_RATIO = {"number": 30.0, "rate": 8.0}
_FEW_ZEROS = {"number": 0.05}
_ROOM, _FLAT = 0.08, 1e-5
_MOST_POWERS = 6
_DECADES = 1.5  # more than these have labels at powers of ten alone


def figure_of(run: Run, theme: str = "light") -> Any:
    """The run's chart in plotly, as on the dashboard and in the report.

    Raises ReportError without plotly, or where the run has no steps.
    """
    case = Engine().feed(run).case()
    diagnosis = conclude(case)
    curves = curves_of(run, ranks_to_draw(sorted(run.ranks), diagnosis))
    if curves is None or not (curves.lines or curves.skipped):
        raise ReportError(f"{run.info.name} has no steps to draw.")
    name, notes = run.info.name, step_notes_of(run)
    diagnosis = begun_as_told(diagnosis, letter_of(name, run, diagnosis))
    scene = overview_of(curves, diagnosis, case.scale.established, name, notes)
    return figure_of_scene(*scene, theme)


def figure_of_scene(picture: Picture, arrays: Arrays, theme: str = "light") -> Any:
    """A chart's picture and its points in plotly; `theme` is light or dark."""
    try:
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ReportError("Run.figure() needs plotly: `pip install -e '.[dashboard]'`.") from error
    if theme not in PALETTE:
        raise ReportError(f"There is no theme {theme!r}: it is light or dark.")
    heights = [max(_LEAST_HEIGHT, panel.height) for panel in picture.panels]
    gaps = _PANEL_GAP * (len(heights) - 1)
    figure = make_subplots(
        len(heights), 1, shared_xaxes=True, row_heights=heights,
        vertical_spacing=_PANEL_GAP / (sum(heights) + gaps) if gaps else 0,
        subplot_titles=[_title_of(panel, PALETTE[theme]) for panel in picture.panels],
    )  # fmt: skip
    scene = _Scene(figure, picture, arrays, PALETTE[theme], sum(heights) + gaps)
    for row, panel in enumerate(picture.panels, 1):
        _add_panel(scene, panel, row)
    _add_findings(scene)
    _add_uprights(scene)
    _set_look(scene, theme)
    return figure


@dataclass(frozen=True)
class _Scene:
    """What is drawn, and the figure that it is drawn in."""

    figure: Any
    picture: Picture
    arrays: Arrays
    colors: Mapping[str, str]
    height: int  # of the panels, in pixels

    @property
    def span(self) -> tuple[int, int]:
        """The steps in view."""
        return self.picture.span or self.picture.ends

    @cached_property
    def choices(self) -> Sequence[tuple[str, str]]:
        """How the reader chose to see it: letter and name, as chart_view.js writes them."""
        parts = (self.picture.view or "").split("~")
        return [(part[:1], unquote(part[2:])) for part in parts]

    def points(self, stroke: Stroke) -> tuple[NDArray[Any], NDArray[Any]]:
        """The points of a line, as the painter is sent them."""
        for kind in ("base", "whole"):
            if f"{kind}.{stroke.column}.x" in self.arrays:
                x, y = (self.arrays[f"{kind}.{stroke.column}.{part}"] for part in "xy")
                return x, y
        return np.zeros(0), np.zeros(0)

    def stretches(self, stroke: Stroke) -> tuple[NDArray[Any], NDArray[Any]]:
        """The first and last steps of the stretches in which a line is not finite."""
        none = np.zeros(0)
        key = f"odd.{stroke.column}"
        return self.arrays.get(f"{key}.first", none), self.arrays.get(f"{key}.last", none)


def _title_of(panel: Panel, colors: Mapping[str, str]) -> str:
    parts = [*panel.title, *((guide.said, "muted") for guide in panel.guides)]
    return "".join(
        f'<span style="color:{colors[color]}">{html.escape(printable(words))}</span>'
        for words, color in parts
    )


# --- panels ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    """The axis of a panel: its range in plotly's terms, so in powers of ten where it is `log`."""

    type: str
    range: tuple[float, float]

    @property
    def ground(self) -> float:
        """The value at the bottom of the panel."""
        return 10.0 ** self.range[0] if self.type == "log" else self.range[0]


def _add_panel(scene: _Scene, panel: Panel, row: int) -> None:
    place = {"row": row, "col": 1}
    axis = _axis_of(scene, panel)
    look: dict[str, Any] = {"type": axis.type, "range": axis.range, "exponentformat": "e"}
    if axis.type == "log" and axis.range[1] - axis.range[0] > _DECADES:
        look["dtick"] = math.ceil((axis.range[1] - axis.range[0]) / _MOST_POWERS)
    if panel.kind == "power":
        look |= _power_ticks(axis)
    elif not panel.strokes:
        look |= {"showticklabels": False, "showgrid": False}
    scene.figure.update_yaxes(**look, **place)
    for stroke in panel.strokes:
        _add_line(scene, panel, stroke, axis, place)
    if panel.rug:
        _add_skips(scene, axis, place)
    for guide in panel.guides:
        value, low, high = _values(panel, np.array([guide.value, guide.low, guide.high]))
        color = scene.colors[guide.color]
        line = {"color": color, "dash": "dot"}
        if guide.since_step is None:
            scene.figure.add_hline(value, line=line, **place)
        else:
            ends = {"x0": guide.since_step, "x1": scene.picture.ends[1]}
            scene.figure.add_shape(type="line", y0=value, y1=value, line=line, **ends, **place)
        if low < high:
            look = {"fillcolor": color, "opacity": 0.16, "line_width": 0}
            scene.figure.add_hrect(low, high, **look, **place)


def _add_line(
    scene: _Scene, panel: Panel, stroke: Stroke, axis: _Axis, place: dict[str, int]
) -> None:
    x, y = scene.points(stroke)
    name, color = html.escape(printable(stroke.label)), scene.colors[stroke.color]
    is_hidden = ("h", stroke.group or stroke.column) in scene.choices
    group = {"legendgroup": stroke.group or stroke.column, "visible": not is_hidden}
    scene.figure.add_scatter(
        x=x, y=_values(panel, y), name=name, mode="lines+markers", connectgaps=False,
        opacity=_FAINT if stroke.faint else 1.0, **place, **group,
        marker={"size": np.where(_stands_alone(y), 4, 0), "color": color, "line_width": 0},
        line={
            "color": color, "dash": stroke.dash, "width": 2 if stroke.stepped else 1.6,
            "shape": "hv" if stroke.stepped else "linear",
        },
    )  # fmt: skip
    first, last = scene.stretches(stroke)
    _add_ground(scene, (first, last), f"{name}, not finite", color, axis.ground, place | group)
    if axis.type == "log" and panel.kind != "power":
        zeros = x[np.isfinite(y) & (y <= 0)]
        _add_ground(scene, (zeros, zeros), f"{name}, 0", color, axis.ground, place | group)


def _stands_alone(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which points have a break on both sides: no line would show them."""
    broken = np.isnan(np.concatenate([[np.nan], y, [np.nan]]))
    alone: NDArray[np.bool_] = broken[:-2] & broken[2:] & ~broken[1:-1]
    return alone


def _add_ground(
    scene: _Scene, stretches: tuple[Any, Any], name: str, color: str, y: float, place: Any
) -> None:
    """Bars at the bottom of a panel, where a line has no place of its own."""
    first, last = stretches
    if len(first):
        x = np.column_stack([first, last, np.full(len(first), np.nan)]).ravel()
        scene.figure.add_scatter(
            x=x, y=np.where(np.isnan(x), np.nan, y), name=name, mode="lines+markers", **place,
            line={"color": color, "width": 3}, cliponaxis=False, showlegend=False,
            marker={"color": color, "size": 4, "symbol": "square"},
        )  # fmt: skip


def _values(panel: Panel, values: NDArray[Any]) -> NDArray[Any]:
    """A loss scale itself, not its power of two."""
    return 2.0 ** np.asarray(values, np.float64) if panel.kind == "power" else values


def _add_skips(scene: _Scene, axis: _Axis, place: dict[str, int]) -> None:
    """Each skipped step as a tick at the panel's bottom."""
    parts = (scene.arrays[f"base.skips.{part}"].tolist() for part in Rug.__slots__)
    cells = zip(*parts, strict=True)
    steps: list[int] = []
    counts: list[int] = []
    for first, last, count in cells:  # as the painter draws them
        steps.append(first)
        counts.append(count if first == last else count - 1)
        if first != last:
            steps.append(last)
            counts.append(1)
    if not steps:
        return
    scene.figure.add_scatter(
        x=steps, y=np.full(len(steps), axis.ground), name="skipped", mode="markers", **place,
        customdata=counts, hovertemplate="%{customdata} skipped<extra></extra>", cliponaxis=False,
        marker={"color": scene.colors["skip"], "symbol": "line-ns-open", "size": 9},
    )  # fmt: skip


# --- axes, as in axis.js --------------------------------------------------------------------------


def _axis_of(scene: _Scene, panel: Panel) -> _Axis:
    values = list(_values_in_view(scene, panel))
    values_there = np.concatenate(values) if values else np.zeros(0)
    guides = [
        float(value)
        for guide in panel.guides
        if guide.fits
        for value in (min(guide.low, guide.value), max(guide.high, guide.value))
    ]
    if not len(values_there) and not guides:
        return _Axis("linear", (0.0, 1.0))
    every = np.concatenate([values_there, guides])
    low, high = float(every.min()), float(every.max())
    if panel.kind == "power":
        ends = math.floor(low) - 0.6, math.ceil(high) + 0.6
        return _Axis("log", (ends[0] * math.log10(2), ends[1] * math.log10(2)))
    above = every[every > 0]
    least = float(above.min()) if len(above) else 0.0
    if low >= 0 and least > 0 and _wants_log(scene, panel, values_there, least, high):
        room = _ROOM * math.log10(high / least) or 0.1
        return _Axis("log", (math.log10(least) - room, math.log10(high) + room))
    if panel.kind == "share" and high == 0:
        low, high = 0.0, 1.0
    if high - low <= _FLAT * max(abs(low), abs(high)):
        flat = (-1.0, 1.0) if low == 0 else (min(0.0, 1.25 * low), max(0.0, 1.25 * low))
        return _Axis("linear", flat)
    room = _ROOM * (high - low)
    return _Axis("linear", (low - room, high + room))


def _wants_log(scene: _Scene, panel: Panel, known: NDArray[Any], least: float, high: float) -> bool:
    key = panel.strokes[0].column
    for letter, is_log in (("l", True), ("n", False)):
        if (letter, key) in scene.choices:
            return is_log
    zero_share = float(np.mean(known <= 0)) if len(known) else 0.0
    is_wide = high > _LOG_RATIO.get(panel.kind, _LOG_RATIO["number"]) * least
    return is_wide and zero_share <= _FEW_ZEROS.get(panel.kind, 0.0)


def _values_in_view(scene: _Scene, panel: Panel) -> Iterator[NDArray[Any]]:
    first, last = scene.span
    for stroke in panel.strokes:
        if ("h", stroke.group or stroke.column) in scene.choices:
            continue
        x, y = scene.points(stroke)
        finite = np.isfinite(y)
        x, y = x[finite], y[finite]
        inside = (x >= first) & (x <= last)
        if stroke.stepped and (x < first).any():  # it holds its value
            inside[np.flatnonzero(x < first)[-1]] = True
        yield np.asarray(y[inside], np.float64)


def _power_ticks(axis: _Axis) -> dict[str, Any]:
    low, high = (end / math.log10(2) for end in axis.range)
    stride = next((s for s in (1, 2, 4, 8, 16, 32) if (high - low) / s <= _MOST_POWERS), 64)
    ticks = range(math.ceil(low / stride) * stride, math.floor(high) + 1, stride)
    texts = [powers(f"2^{tick}") for tick in ticks]
    return {"tickvals": [2.0**tick for tick in ticks], "ticktext": texts}


# --- over all panels ------------------------------------------------------------------------------


def _add_findings(scene: _Scene) -> None:
    """A lane above the panels for each finding; the steps of the headline's are shaded."""
    first, last = scene.span
    drawn = [m for m in scene.picture.marks if m.first <= last and m.last >= first]
    for lane, mark in enumerate(reversed(drawn)):
        color = scene.colors[mark.color]
        bottom = 1 + (_PANEL_GAP / 2 + _LANE_HEIGHT * lane) / scene.height
        spans = [(step, step) for step in mark.steps] or [(mark.first, mark.last)]
        for start, end in spans:
            if mark.shaded:
                look = {"fillcolor": color, "opacity": _SHADE, "line_width": 0}
                scene.figure.add_vrect(start - 0.5, end + 0.5, **look)
            scene.figure.add_shape(
                type="rect", x0=max(first, start) - 0.5, x1=min(last, end) + 0.5,
                xref="x", yref="paper", y0=bottom, y1=bottom + (_LANE_HEIGHT - 2) / scene.height,
                fillcolor=color, opacity=0.18, line_width=0,
            )  # fmt: skip
        scene.figure.add_annotation(
            text=mark.label, x=max(first, mark.first), xref="x", xanchor="left", y=bottom,
            yref="paper", yanchor="bottom", showarrow=False, font={"size": 10, "color": color},
            borderpad=0,
        )  # fmt: skip


def _add_uprights(scene: _Scene) -> None:
    """The step to restart from, the step that was picked, where attempts begin and so on."""
    picture, colors = scene.picture, scene.colors
    for note in picture.notes:
        color = colors[note.color]
        scene.figure.add_vline(
            note.step, line={"color": color, "dash": "dot", "width": 1.2},
            annotation={"text": note.label, "yref": "paper", "y": 1, "font": {"color": color}},
        )  # fmt: skip
    if picture.restart is not None:
        scene.figure.add_vline(picture.restart, line={"color": colors["advice"], "dash": "dash"})
    if picture.picked is not None:
        scene.figure.add_vline(picture.picked, line={"color": colors["ink"], "width": 1})


def _set_look(scene: _Scene, theme: str) -> None:
    figure, colors, picture = scene.figure, scene.colors, scene.picture
    lanes = _LANE_HEIGHT * len(picture.marks)
    figure.update_annotations(selector={"yref": "paper", "xref": "paper"}, x=0, xanchor="left")
    figure.update_annotations(selector={"xref": "paper"}, font_size=12.5)
    figure.update_xaxes(
        range=scene.span, gridcolor=colors["grid"], zeroline=False, showgrid=False,
        title_text="", linecolor=colors["grid"],
    )  # fmt: skip
    figure.update_xaxes(title_text=picture.unit, row=len(picture.panels), col=1)
    figure.update_yaxes(gridcolor=colors["grid"], zeroline=False)
    top = 60 + _PANEL_GAP // 2 + lanes
    figure.update_layout(
        title={"text": html.escape(printable(picture.title)), "y": 1, "yanchor": "top",
               "yref": "container", "pad": {"t": 16}},
        template=f"plotly_{'dark' if theme == 'dark' else 'white'}", hovermode="x unified",
        showlegend=any(len(panel.strokes) > 1 for panel in picture.panels),
        margin={"l": 64, "r": 16, "t": top, "b": 48}, height=scene.height + top + 48,
        paper_bgcolor=colors["page"], plot_bgcolor=colors["page"],
        font={"color": colors["muted"], "size": 11,
              "family": "'Source Sans', 'Source Sans Pro', system-ui, sans-serif"},
        title_font={"color": colors["ink"], "size": 16},
    )  # fmt: skip
