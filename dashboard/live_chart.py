"""A run's chart on a page: what this tab was sent, and what its reader dragged and clicked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import address
import browser_component
import streamlit as st
import user_value_panels
from chart_points import live_message, thinned_bases
from open_runs import Look
from rank_curves import column_of
from step_curves import TIME

from ampwatch.report.overview_chart import Shown, group_of, marks_of, panels_of, restart_of
from ampwatch.report.painter import line_style
from ampwatch.report.painter.message import Arrays, Panel, Picture, still_message

KEY = "chart"
_SENT = "sent base"


def forget_sent() -> None:
    """Send the base with the next message: the browser may have lost it with the page before."""
    st.session_state.pop(_SENT, None)


def show(look: Look) -> None:
    """The charts of a run for the span in the address."""
    where = address.read()
    if not len(look.curves):
        st.html('<div class="aw-muted">No step was logged yet.</div>')
        return
    if look.curves.present <= {TIME} and not look.values.look():
        st.html('<div class="aw-muted">The run holds no numbers to draw, or none yet.</div>')
        return
    base = thinned_bases().base_for(look.name, look.curves, where.span)
    whole = st.session_state.get(_SENT) != (look.name, base.id)
    picture = picture_of(look, where)
    own = user_value_panels.arrays(look, user_value_panels.chosen(look, where.values), where.span)
    browser_component.draw(
        live_message(picture, look.curves, base, own, whole=whole),
        key=KEY,
        on_look_change=partial(keep_look, KEY),
        on_lost_change=forget_sent,
    )
    st.session_state[_SENT] = (look.name, base.id)


def picture_of(look: Look, where: address.Address) -> Picture:
    """The run's chart without its points."""
    curves = look.curves
    shown = Shown(
        curves.present,
        curves.ends,
        curves.skip_count,
        curves.clips,
        look.diagnosis,
        look.established_scale,
    )
    own = user_value_panels.chosen(look, where.values)
    panels = [_of_ranks(look, panel) for panel in panels_of(shown)]
    return Picture(
        name=look.path,
        panels=[*panels, *user_value_panels.panels(look, own)],
        ends=curves.ends,
        marks=list(marks_of(shown)),
        restart=restart_of(look.diagnosis),
        span=where.span,
        picked=where.step,
        rows=len(curves),
        axes=list(user_value_panels.axes(look, own)),
        view=where.view,
        heard=heard(KEY),
    )


def _of_ranks(look: Look, panel: Panel) -> Panel:
    """The panel with a line for each rank whose numbers differ from the lowest one's."""
    if len(look.shown) < 2 or not panel.strokes:
        return panel
    line, lowest = panel.strokes[-1], look.shown[0]
    columns = {rank: column_of(line.column, rank) for rank in look.shown[1:]}
    drawn = {lowest: line.column} | {r: c for r, c in columns.items() if c in look.curves.present}
    if len(drawn) == 1:
        return replace(panel, title=(*panel.title, (", the same on all ranks", "muted")))
    strokes = []
    for rank, column in drawn.items():
        color, dash = line_style(look.shown.index(rank))
        label = f"{line.label}, rank {rank}"
        group = group_of(f"rank {rank}")  # one label hides and lights it in all panels
        strokes.append(
            replace(line, column=column, label=label, color=color, dash=dash, group=group)
        )
    return replace(panel, strokes=tuple(strokes))


def show_still(picture: Picture, arrays: Arrays, key: str) -> None:
    """Other lines, sent whole; the browser alone knows how far they are zoomed."""
    browser_component.draw(still_message(picture, arrays), key=key)


def _told(key: str) -> dict[str, Any]:
    """What the reader chose last, as the chart told it."""
    return getattr(st.session_state.get(key), "look", None) or {}


def heard(key: str) -> int:
    """How many choices a chart has told until now."""
    return int(_told(key).get("count", 0))


def keep_look(key: str) -> None:
    """Keep in the address what the reader chose of a chart."""
    told = _told(key)
    span, step, view = told.get("span"), told.get("step"), told.get("view")
    address.change(
        span=None if span is None else (int(span[0]), int(span[1])),
        step=None if step is None else int(step),
        view=str(view) if view else None,
    )
