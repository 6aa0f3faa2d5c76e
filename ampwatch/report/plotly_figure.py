"""A run's chart as a plotly figure, for those who want to change it: `Run.figure()`."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from ampwatch.diagnosis import Engine, conclude
from ampwatch.errors import ReportError
from ampwatch.printable_text import printable
from ampwatch.report.overview_chart import SCALE, curves_of, overview_of
from ampwatch.report.painter import LIGHT
from ampwatch.report.painter.message import Arrays, Panel, Picture

if TYPE_CHECKING:
    from ampwatch.store import Run

_LOG_RATIO = 30.0  # as in axis.js: a linear axis would hide the smaller values
_TITLE, _LEAST = 44, 60  # pixels


def figure_of(run: Run) -> Any:
    """The run's loss scale, loss, norm, rate and step time, with findings, as in the report.

    Raises ReportError without plotly, or where the run has no steps.
    """
    try:
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ReportError("Run.figure() needs plotly: `pip install -e '.[dashboard]'`.") from error
    curves = curves_of(run)
    if curves is None or not curves.lines:
        raise ReportError(f"{run.info.name} has no steps to draw.")
    case = Engine().feed(run).case()
    picture, arrays = overview_of(curves, conclude(case), case.scale.level)
    panels = [panel for panel in picture.panels if panel.strokes]
    heights = [max(_LEAST, panel.height) for panel in panels]
    titles = ["".join(words for words, _ in panel.title) for panel in panels]
    made = make_subplots(
        len(panels), 1, shared_xaxes=True, row_heights=heights, subplot_titles=titles,
        vertical_spacing=min(0.06, 0.9 / len(panels)),
    )  # fmt: skip
    for row, panel in enumerate(panels, 1):
        _add_panel(made, panel, arrays, row)
    _add_marks(made, picture)
    made.update_xaxes(title_text="step", row=len(panels), col=1)
    made.update_layout(
        title=html.escape(printable(run.info.name)), template="plotly_white", showlegend=False,
        hovermode="x unified", height=180 + sum(heights) + _TITLE * len(panels),
    )  # fmt: skip
    return made


def _add_panel(made: Any, panel: Panel, arrays: Arrays, row: int) -> None:
    place = {"row": row, "col": 1}
    for stroke in panel.strokes:
        x, y = (arrays[f"base.{stroke.column}.{axis}"] for axis in "xy")
        made.add_scatter(
            x=x, y=_values(panel, y), name=stroke.label, mode="lines", connectgaps=False,
            opacity=0.45 if stroke.faint else 1.0, **place,
            line={
                "color": LIGHT[stroke.color], "dash": stroke.dash,
                "shape": "hv" if stroke.stepped else "linear",
            },
        )  # fmt: skip
        known = _values(panel, y[np.isfinite(y)])
        is_wide = len(known) > 0 and known.min() > 0 and known.max() > _LOG_RATIO * known.min()
        if panel.kind == "power" or is_wide:
            made.update_yaxes(type="log", exponentformat="power", nticks=5, **place)
    if panel.rug:
        _add_skips(made, arrays, place)
    for guide in panel.guides:
        value, low, high = (float(_values(panel, v)) for v in (guide.value, guide.low, guide.high))
        made.add_hline(value, line={"color": LIGHT[guide.color], "dash": "dot"}, **place)
        if low < high:
            look = {"fillcolor": LIGHT[guide.color], "opacity": 0.16, "line_width": 0}
            made.add_hrect(low, high, **look, **place)


def _values(panel: Panel, values: Any) -> Any:
    """A loss scale itself, not its power of two."""
    return 2.0 ** np.asarray(values, np.float64) if panel.kind == "power" else values


def _add_skips(made: Any, arrays: Arrays, place: dict[str, int]) -> None:
    """Each skipped step as a tick at the scale that it had."""
    first, last = (arrays[f"base.skips.{part}"] for part in ("first", "last"))
    steps = np.unique(np.concatenate([first, last]))
    x, y = arrays[f"base.{SCALE}.x"], arrays[f"base.{SCALE}.y"]
    at = np.clip(np.searchsorted(x, steps, side="right") - 1, 0, None)
    made.add_scatter(
        x=steps, y=2.0 ** y[at].astype(np.float64), name="skipped", mode="markers", **place,
        marker={"color": LIGHT["skip"], "symbol": "line-ns-open", "size": 9},
    )  # fmt: skip


def _add_marks(made: Any, picture: Picture) -> None:
    """The findings' steps and the step to restart from, through all panels."""
    for lane, mark in enumerate(picture.marks):
        look = {"fillcolor": LIGHT[mark.color], "opacity": 0.07, "line_width": 0}
        made.add_vrect(mark.first - 0.5, mark.last + 0.5, **look)
        made.add_annotation(
            text=mark.label, x=mark.first, xref="x", xanchor="left", y=1, yref="paper",
            yshift=24 + 12 * lane, showarrow=False, font={"size": 11, "color": LIGHT[mark.color]},
        )  # fmt: skip
    if picture.restart is not None:
        made.add_vline(picture.restart, line={"color": LIGHT["advice"], "dash": "dash"})
