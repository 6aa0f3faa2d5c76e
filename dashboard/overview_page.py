"""The overview: verdict, current numbers and charts, in the order of the reader's questions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import address
import browser_component
import control_panel
import layer_choices
import numpy as np
import open_runs
import page_parts
import run_chart
import streamlit as st
from html_text import rate_text, said, short_dtype
from open_runs import RunSnapshot
from page_parts import guarded
from step_curves import rank_column
from verdict_band import verdict_band

from ampwatch.diagnosis.value_text import (
    bytes_text,
    duration_text,
    scale_text,
    share_text,
    time_text,
)
from ampwatch.report.facts import age_text
from ampwatch.rows import Table, column
from ampwatch.store import open_run

_RECENT = 100  # steps whose median is the step time
_LATE_MS = 60_000  # memory is sampled each second
_LAYERS = "layer view"
_SHOWN = ("loss", "grad_norm", "lr")


def show(path: str) -> None:
    """Draw the Overview page of a run; while it goes on, only its live part is refreshed."""
    browser_component.forget_base(run_chart.KEY)
    run = open_runs.snapshot(path)
    waits = run.is_live or not run.is_judged
    every_s = page_parts.refresh_interval_s(1.0) if waits and page_parts.follows_live() else None
    st.fragment(_draw_overview, run_every=every_s)(path, goes_on=waits)
    if len(run.curves) and st.button("Open in Plotly", help="The chart to change and to save"):
        _in_plotly(path)
    if hint := control_panel.hint_to_allow(run):
        st.html(f'<div class="aw-muted">{said(hint)}</div>')


@st.dialog("The run in Plotly", width="large")
@guarded
def _in_plotly(path: str) -> None:
    st.plotly_chart(open_run(path).figure(), width="stretch", theme=None)


@guarded
def _draw_overview(path: str, *, goes_on: bool) -> None:
    run = open_runs.snapshot(path)
    st.html(verdict_band(run))
    control_panel.show(run)
    st.html(run.once("numbers", lambda: numbers_html(run)))
    _draw_charts(run)
    for note in () if run.verdict is None else run.verdict.notes:
        st.html(f'<div class="aw-muted">{said(note)}</div>')
    if goes_on and not run.is_live and run.is_judged:
        st.rerun()  # it has ended: stop refreshing


def _draw_charts(run: RunSnapshot) -> None:
    layers = layer_choices.layer_view_message(run, replace(address.read(), layer=None))
    if layers is None:
        run_chart.show(run)
        run_chart.choose_values(run)
        return
    wide, narrow = st.columns([2.7, 1], gap="medium")
    with wide:
        run_chart.show(run)
        run_chart.choose_values(run)
    with narrow:
        browser_component.draw(
            layers,
            key=_LAYERS,
            acts={
                "layer": _open_layer,
                "view": layer_choices.keep_view,
                "role": layer_choices.keep_role,
            },
        )
    address.switch_if_asked()


def _open_layer(layer: object) -> None:
    address.ask_for_page("Layers", layer=str(layer))


# --- the line of numbers --------------------------------------------------------------------------


def numbers_html(run: RunSnapshot) -> str:
    """The row of current numbers at the top of a run as HTML: scale, skips, loss, rate, memory."""
    cells = [
        f'<div class="aw-number"><span>{said(label)}</span><b>{said(text)}</b>{_aside(more)}</div>'
        for label, text, more in _current_numbers(run)
    ]
    return f'<div class="aw-strip">{"".join(cells)}</div>'


def _aside(text: str) -> str:
    return f"<small>{said(text)}</small>" if text else ""


def _current_numbers(run: RunSnapshot) -> Iterator[tuple[str, str, str]]:
    """The current numbers of a run: name, text and remark of each."""
    curves = run.curves
    if run.diagnosis is not None:
        yield from _scale(run)
    else:
        yield "steps", f"{len(curves):,}", ""
    for name in _SHOWN:
        if name in curves.present:
            differs = any(rank_column(name, rank) in curves.present for rank in run.shown)
            who = f", rank {run.shown[0]}" if differs else ""
            yield column(Table.STEPS, name).label + who, *_latest(run, name)
    times = curves.columns["step_time_ms"][-_RECENT:]
    if np.isfinite(times).any():
        yield "step time", time_text(float(np.nanmedian(times))), ""
    memory = _memory(run)
    if memory:
        yield "GPU memory", *memory
    if curves.autocast_dtype:
        yield "autocast", short_dtype(curves.autocast_dtype), ""


def _scale(run: RunSnapshot) -> Iterator[tuple[str, str, str]]:
    assert run.diagnosis is not None
    facts = run.diagnosis.run
    if facts.final_scale is None:
        yield "steps", f"{facts.steps:,}", ""
        return
    scale = scale_text(facts.final_scale)
    small = scale.startswith("2^") and abs(int(scale[2:])) <= 4
    yield "loss scale", f"{scale} = {facts.final_scale:.4g}" if small else scale, ""
    share = f" · {share_text(facts.skipped, facts.steps)}" if facts.skipped else ""
    yield "skipped", f"{facts.skipped:,} of {facts.steps:,}{share}", ""


def _latest(run: RunSnapshot, name: str) -> tuple[str, str]:
    value, _ = run.curves.latest(name)
    if value is None:
        return "never finite", ""
    age = run.curves.age(name)
    text = rate_text(value) if name == "lr" else f"{value:.4g}"
    return text, age_text(age.step, is_broken=age.is_broken)


def _memory(run: RunSnapshot) -> tuple[str, str] | None:
    last = run.last_rows(Table.DEVICES, ("used_bytes", "total_bytes", "time_ns"), 1).to_pylist()
    if not last or not last[0]["used_bytes"] or not last[0]["total_bytes"]:
        return None
    text = f"{bytes_text(last[0]['used_bytes'])} of {bytes_text(last[0]['total_bytes'])}"
    late_ms = (run.last_time_ns - (last[0]["time_ns"] or 0)) / 1e6
    late = f", {duration_text(late_ms)} before the last row" if late_ms > _LATE_MS else ""
    return text, late
