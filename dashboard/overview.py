"""The overview: verdict, numbers, and the charts, in the order of the reader's questions."""

from __future__ import annotations

import address
import chart
import live
import navigate
import runs
import streamlit as st
import windows
from edge import guarded
from open_runs import Look
from strip import strip
from texts import said
from verdict import band


def show(path: str, *, follow: bool) -> None:
    """The whole page of a run; while it goes on, only this part is brought up to date."""
    chart.forget_sent()
    look = runs.look(path)
    waits = look.is_live or not look.is_judged
    st.fragment(_now, run_every=1.0 if waits and follow else None)(path, goes_on=waits)


@guarded
def _now(path: str, *, goes_on: bool) -> None:
    look = runs.look(path)
    st.html(band(look))
    st.html(strip(look))
    _charts(look)
    for note in () if look.verdict is None else look.verdict.notes:
        st.html(f'<div class="aw-muted">{said(note)}</div>')
    if goes_on and not look.is_live and look.is_judged:
        st.rerun()  # it has ended: the page needs no clock any more


def _charts(look: Look) -> None:
    picked = address.read().step
    step = windows.moment(look, picked)
    scales = windows.message(look, step)
    if scales is None:
        chart.show(look)
        return
    wide, narrow = st.columns([2.7, 1], gap="medium")
    with wide:
        chart.show(look)
    with narrow:
        live.component(scales, key="windows", on_layer_change=_layer_chosen)
    navigate.follow()


def _layer_chosen() -> None:
    layer = st.session_state["windows"].layer
    if layer:
        navigate.ask("Layers", layer=str(layer))
