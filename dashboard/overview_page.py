"""The overview: verdict, current numbers and charts, in the order of the reader's questions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import address
import browser_component
import control_panel
import layer_choices
import live_chart
import navigate
import numpy as np
import open_runs
import refresh_pace
import streamlit as st
import user_value_panels
from formatting import rate_text, said, short_dtype
from open_runs import Look
from problems import guarded
from rank_curves import column_of
from verdict_band import band

from ampwatch.diagnosis.words import bytes_text, duration_text, scale_text, share_text, time_text
from ampwatch.report.facts import age_text
from ampwatch.rows import Table, column
from ampwatch.store import open_run

_RECENT = 100  # steps whose median is the step time
_LATE_MS = 60_000  # memory is sampled each second
_LAYERS = "layer view"
_SHOWN = ("loss", "grad_norm", "lr")


def show(path: str, *, follow: bool) -> None:
    """The whole page of a run; while it goes on, only this part is brought up to date."""
    live_chart.forget_sent()
    look = open_runs.look_at(path)
    waits = look.is_live or not look.is_judged
    every_s = refresh_pace.every_s(1.0) if waits and follow else None
    st.fragment(_now, run_every=every_s)(path, goes_on=waits)
    if len(look.curves) and st.button("Open in Plotly", help="The chart to change and to save"):
        _in_plotly(path)
    if hint := control_panel.hint_to_allow(look):
        st.html(f'<div class="aw-muted">{said(hint)}</div>')


@st.dialog("The run in Plotly", width="large")
@guarded
def _in_plotly(path: str) -> None:
    st.plotly_chart(open_run(path).figure(), width="stretch", theme=None)


@guarded
def _now(path: str, *, goes_on: bool) -> None:
    look = open_runs.look_at(path)
    st.html(band(look))
    control_panel.show(look)
    st.html(look.once("numbers", lambda: current_numbers(look)))
    _charts(look)
    for note in () if look.verdict is None else look.verdict.notes:
        st.html(f'<div class="aw-muted">{said(note)}</div>')
    if goes_on and not look.is_live and look.is_judged:
        st.rerun()  # it has ended: stop refreshing


def _charts(look: Look) -> None:
    layers = layer_choices.layer_view(look, replace(address.read(), layer=None))
    if layers is None:
        live_chart.show(look)
        user_value_panels.choose(look)
        return
    wide, narrow = st.columns([2.7, 1], gap="medium")
    with wide:
        live_chart.show(look)
        user_value_panels.choose(look)
    with narrow:
        browser_component.draw(
            layers,
            key=_LAYERS,
            on_layer_change=_layer_chosen,
            on_view_change=partial(layer_choices.keep_view, _LAYERS),
            on_role_change=partial(layer_choices.keep_role, _LAYERS),
        )
    navigate.follow()


def _layer_chosen() -> None:
    layer = st.session_state[_LAYERS].layer
    if layer:
        navigate.ask("Layers", layer=str(layer))


# --- the line of numbers --------------------------------------------------------------------------


def current_numbers(look: Look) -> str:
    """One line: scale, skips, loss, gradient norm, learning rate, step time, memory, autocast."""
    cells = [
        f'<div class="aw-number"><span>{said(label)}</span><b>{said(text)}</b>{_aside(more)}</div>'
        for label, text, more in _numbers(look)
    ]
    return f'<div class="aw-strip">{"".join(cells)}</div>'


def _aside(text: str) -> str:
    return f"<small>{said(text)}</small>" if text else ""


def _numbers(look: Look) -> Iterator[tuple[str, str, str]]:
    """Of each number its name, how it is written, and what is to be known of it."""
    curves = look.curves
    if look.diagnosis is not None:
        yield from _scale(look)
    else:
        yield "steps", f"{len(curves):,}", ""
    for name in _SHOWN:
        if name in curves.present:
            differs = any(column_of(name, rank) in curves.present for rank in look.shown)
            who = f", rank {look.shown[0]}" if differs else ""
            yield column(Table.STEPS, name).label + who, *_latest(look, name)
    times = curves.columns["step_time_ms"][-_RECENT:]
    if np.isfinite(times).any():
        yield "step time", time_text(float(np.nanmedian(times))), ""
    memory = _memory(look)
    if memory:
        yield "GPU memory", *memory
    if curves.autocast_dtype:
        yield "autocast", short_dtype(curves.autocast_dtype), ""


def _scale(look: Look) -> Iterator[tuple[str, str, str]]:
    assert look.diagnosis is not None
    facts = look.diagnosis.run
    if facts.final_scale is None:
        yield "steps", f"{facts.steps:,}", ""
        return
    scale = scale_text(facts.final_scale)
    small = scale.startswith("2^") and abs(int(scale[2:])) <= 4
    yield "loss scale", f"{scale} = {facts.final_scale:.4g}" if small else scale, ""
    share = f" · {share_text(facts.skipped, facts.steps)}" if facts.skipped else ""
    yield "skipped", f"{facts.skipped:,} of {facts.steps:,}{share}", ""


def _latest(look: Look, name: str) -> tuple[str, str]:
    value, _ = look.curves.latest(name)
    if value is None:
        return "never finite", ""
    age = look.curves.age(name)
    text = rate_text(value) if name == "lr" else f"{value:.4g}"
    return text, age_text(age.step, is_broken=age.is_broken)


def _memory(look: Look) -> tuple[str, str] | None:
    last = look.last_rows(Table.DEVICES, ("used_bytes", "total_bytes", "time_ns"), 1).to_pylist()
    if not last or not last[0]["used_bytes"] or not last[0]["total_bytes"]:
        return None
    text = f"{bytes_text(last[0]['used_bytes'])} of {bytes_text(last[0]['total_bytes'])}"
    late_ms = (look.last_time_ns - (last[0]["time_ns"] or 0)) / 1e6
    late = f", {duration_text(late_ms)} before the last row" if late_ms > _LATE_MS else ""
    return text, late
