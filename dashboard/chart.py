"""The live chart on a page: what this tab was sent, and what its reader dragged and clicked."""

from __future__ import annotations

import address
import live
import overview_chart
import runs
import streamlit as st
from drawing import Arrays, Picture, live_message, still_message
from open_runs import Look

KEY = "chart"
_SENT = "sent base"


def forget_sent() -> None:
    """The browser may have lost the base with the page before: send it with the next message."""
    st.session_state.pop(_SENT, None)


def show(look: Look) -> None:
    """The charts of a run for the span in the address."""
    where = address.read()
    if not len(look.course):
        st.html('<div class="aw-muted">No step was logged yet.</div>')
        return
    if not look.course.present:
        st.html('<div class="aw-muted">The run holds no numbers to draw, or none yet.</div>')
        return
    base = runs.bases().of(look.name, look.course, where.span)
    whole = st.session_state.get(_SENT) != (look.name, base.id)
    picture = overview_chart.picture(look, where.span, where.step)
    live.component(
        live_message(picture, look.course, base, whole=whole),
        key=KEY,
        on_span_change=_span_changed,
        on_step_change=_step_changed,
        on_lost_change=forget_sent,
    )
    st.session_state[_SENT] = (look.name, base.id)


def show_still(picture: Picture, arrays: Arrays, key: str) -> None:
    """Other lines, sent whole; what the reader zooms stays in the browser."""
    live.component(still_message(picture, arrays), key=key)


def _span_changed() -> None:
    span = st.session_state[KEY].span
    address.change(span=None if span is None else (int(span[0]), int(span[1])))


def _step_changed() -> None:
    step = st.session_state[KEY].step
    address.change(step=None if step is None else int(step))
