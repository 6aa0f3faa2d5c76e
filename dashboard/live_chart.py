"""Draws a run's chart on a page, and keeps what its reader dragged and clicked in the address."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import address
import browser_component
import streamlit as st
import user_value_panels
from chart_points import live_message, thinned_bases
from open_runs import RunSnapshot
from rank_curves import rank_column
from step_curves import TIME

from ampwatch.report.overview_chart import Shown, group_of, marks_of, panels_of, restart_of
from ampwatch.report.painter import line_style
from ampwatch.report.painter.message import Arrays, Panel, Picture, still_message

KEY = "chart"
_SENT = "sent base"


def forget_sent() -> None:
    """Send the chart's base again with the next message: the browser may have lost it."""
    st.session_state.pop(_SENT, None)


def show(run: RunSnapshot) -> None:
    """Draw a run's chart for the span in the address."""
    where = address.read()
    if not len(run.curves):
        st.html('<div class="aw-muted">No step was logged yet.</div>')
        return
    if run.curves.present <= {TIME} and not run.values.read():
        st.html('<div class="aw-muted">The run holds no numbers to draw, or none yet.</div>')
        return
    base = thinned_bases().base_for(run.name, run.curves, where.span)
    whole = st.session_state.get(_SENT) != (run.name, base.id)
    picture = picture_of(run, where)
    own = user_value_panels.value_arrays(
        run, user_value_panels.chosen_names(run, where.values), where.span
    )
    browser_component.draw(
        live_message(picture, run.curves, base, own, whole=whole),
        key=KEY,
        on_look_change=partial(keep_choice, KEY),
        acts={"lost": lambda _: forget_sent()},
    )
    st.session_state[_SENT] = (run.name, base.id)


def picture_of(run: RunSnapshot, where: address.Address) -> Picture:
    """A run's chart without its points: panels, marks, axes and span."""
    curves = run.curves
    shown = Shown(
        curves.present,
        curves.ends,
        curves.skip_count,
        curves.clips,
        run.diagnosis,
        run.established_scale,
    )
    own = user_value_panels.chosen_names(run, where.values)
    panels = [_with_lines_of_ranks(run, panel) for panel in panels_of(shown)]
    return Picture(
        name=run.path,
        panels=[*panels, *user_value_panels.value_panels(run, own)],
        ends=curves.ends,
        marks=list(marks_of(shown)),
        restart=restart_of(run.diagnosis),
        span=where.span,
        picked=where.step,
        rows=len(curves),
        axes=list(user_value_panels.value_axes(run, own)),
        view=where.view,
        heard=choice_count(KEY),
    )


def _with_lines_of_ranks(run: RunSnapshot, panel: Panel) -> Panel:
    """The panel of a chart with a line for each rank that differs from the lowest."""
    if len(run.shown) < 2 or not panel.strokes:
        return panel
    line, lowest = panel.strokes[-1], run.shown[0]
    columns = {rank: rank_column(line.column, rank) for rank in run.shown[1:]}
    drawn = {lowest: line.column} | {r: c for r, c in columns.items() if c in run.curves.present}
    if len(drawn) == 1:
        return replace(panel, title=(*panel.title, (", the same on all ranks", "muted")))
    strokes = []
    for rank, column in drawn.items():
        color, dash = line_style(run.shown.index(rank))
        label = f"{line.label}, rank {rank}"
        group = group_of(f"rank {rank}")  # one label hides and lights it in all panels
        strokes.append(
            replace(line, column=column, label=label, color=color, dash=dash, group=group)
        )
    return replace(panel, strokes=tuple(strokes))


def show_still(picture: Picture, arrays: Arrays, key: str) -> None:
    """Draw a chart that the browser alone zooms; its lines are sent whole."""
    browser_component.draw(still_message(picture, arrays), key=key)


def _chart_choice(key: str) -> dict[str, Any]:
    """What the reader chose last in a chart, as the browser sent it."""
    return getattr(st.session_state.get(key), "look", None) or {}


def choice_count(key: str) -> int:
    """How many choices of its reader the chart in the browser has sent so far."""
    return int(_chart_choice(key).get("count", 0))


def keep_choice(key: str) -> None:
    """Keep in the address the span, step and view that the reader chose in a chart."""
    told = _chart_choice(key)
    span, step, view = told.get("span"), told.get("step"), told.get("view")
    address.change(
        span=None if span is None else (int(span[0]), int(span[1])),
        step=None if step is None else int(step),
        view=str(view) if view else None,
    )
