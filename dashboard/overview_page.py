"""The overview: verdict, current numbers and charts, in the order of the reader's questions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import address
import browser_component
import control_panel
import layer_choices
import numpy as np
import open_runs
import page_parts
import run_chart
import share_menu
import small_charts
import streamlit as st
from html_text import rate_text, said, short_dtype
from open_runs import RunSnapshot
from page_parts import agree_with_sidebar, guarded
from verdict_band import verdict_band

from ampwatch.diagnosis.value_text import (
    bytes_text,
    duration_text,
    scale_text,
    share_text,
    time_text,
)
from ampwatch.report.facts import age_text
from ampwatch.report.overview_chart import SCALE, rank_column
from ampwatch.rows import Table, column

_RECENT = 100  # steps whose median is the step time
_LATE_MS = 60_000  # memory is sampled each second
_EXPONENTS = re.compile(r"[\d.]+e-\d+")  # which a browser breaks at the hyphen
_GROUPED, _EXPONENT = 1e4, 1e7  # between these a number is written out; a longer one has no room
_LAYERS = "layer view"
_SHOWN = ("loss", "grad_norm", "lr")


def show(path: str) -> None:
    """Draw the Overview page of a run; while it goes on, only its live part is refreshed."""
    browser_component.forget_base(run_chart.KEY)
    share_menu.show_dialog_if_asked(path)
    run = open_runs.snapshot(path)
    waits = run.is_live or not run.is_judged
    every_s = page_parts.refresh_interval_s(1.0) if waits and page_parts.follows_live() else None
    st.fragment(_draw_overview, run_every=every_s)(path, goes_on=waits)
    if hint := control_panel.hint_to_allow(run):
        st.html(f'<div class="aw-muted">{said(hint)}</div>')


@guarded
def _draw_overview(path: str, *, goes_on: bool) -> None:
    run = open_runs.snapshot(path)
    agree_with_sidebar(run)
    address.switch_if_asked()
    # All is made before any is drawn: band, figures and chart tell of the same step.
    band, numbers = verdict_band(run), run.once("numbers", lambda: numbers_html(run))
    chart = run_chart.drawing(run, share_menu.acts())
    layers = layer_choices.telling_view_message(run)
    browser_component.html(band, key="band", acts={"go": _open_findings})
    control_panel.show(run)
    st.html(numbers)
    wide, narrow = st.columns([2.7, 1], gap="medium") if layers else (st.container(), None)
    with wide:
        chart()
        share_menu.draw_page_if_asked()
        run_chart.choose_values(run)
    if layers and narrow:
        with narrow:
            browser_component.draw(layers, key=_LAYERS, acts={"layer": _open_layer})
    told = () if run.verdict is None else run.verdict.notes
    notes = [f'<div class="aw-muted">{said(note)}</div>' for note in told]
    for note in notes:
        st.html(note)
    page_parts.show_as_text(band, numbers, *notes)
    if goes_on and not run.is_live and run.is_judged:
        st.rerun()  # it has ended: stop refreshing


def _open_findings(_: object) -> None:
    address.ask_for_page("Findings")


def _open_layer(layer: object) -> None:
    address.ask_for_page("Layers", layer=str(layer))


# --- the line of numbers --------------------------------------------------------------------------


def numbers_html(run: RunSnapshot) -> str:
    """The row of current numbers at the top of a run as HTML: scale, skips, loss, rate, memory."""
    cells = [_figure_html(run, figure) for figure in _current_figures(run)]
    return f'<div class="aw-strip">{"".join(cells)}</div>'


@dataclass(frozen=True, slots=True)
class _Figure:
    """One current number of a run; `column` is the curve that it ends."""

    label: str
    text: str
    remark: str = ""
    column: str = ""


def _figure_html(run: RunSnapshot, figure: _Figure) -> str:
    curve = small_charts.sparkline(run.curves, figure.column) if figure.column else ""
    words = _EXPONENTS.sub(r'<span class="aw-unbroken">\g<0></span>', said(figure.remark))
    remark = f"<small>{words}</small>" if figure.remark else ""
    label, text = said(figure.label), said(figure.text)
    return f'<div class="aw-number"><span>{label}</span><b>{text}</b>{remark}{curve}</div>'


def _current_figures(run: RunSnapshot) -> Iterator[_Figure]:
    curves = run.curves
    if run.diagnosis is not None:
        yield from _scale(run)
    else:
        yield _Figure("steps", f"{curves.step_count:,}")
    for name in _SHOWN:
        if name in curves.present:
            differs = any(rank_column(name, rank) in curves.present for rank in run.shown)
            who = f", rank {run.shown[0]}" if differs else ""
            yield _Figure(column(Table.STEPS, name).label + who, *_latest(run, name), name)
    times = curves.columns["step_time_ms"][-_RECENT:]
    if np.isfinite(times).any():
        median = time_text(float(np.nanmedian(times)))
        yield _Figure("median step time", median, column="step_time_ms")
    memory = _memory(run)
    if memory:
        yield _Figure("GPU memory", *memory)
    if curves.autocast_dtype:
        yield _Figure("autocast", short_dtype(curves.autocast_dtype))


def _scale(run: RunSnapshot) -> Iterator[_Figure]:
    assert run.diagnosis is not None
    facts, curves = run.diagnosis.run, run.curves
    # As the chart beside has them: another thread may have judged later rows by now. A log of
    # another tool may name more steps than it has rows.
    steps = curves.step_count if facts.source == "ampwatch" else facts.steps
    if facts.final_scale is None:
        yield _Figure("steps", f"{steps:,}")
        return
    power, rows_since = curves.latest(SCALE)  # as the chart ends; a skip has halved it since
    scale = facts.final_scale if power is None or rows_since else 2.0**power
    text, written = _power_texts(scale)
    yield _Figure("loss scale", text, written + _next_scale(run, scale), SCALE)
    share = share_text(curves.skip_count, steps) if curves.skip_count else ""
    yield _Figure("skipped", f"{curves.skip_count:,} of {steps:,}", share)


def _next_scale(run: RunSnapshot, scale: float) -> str:
    """The loss scale that the last step left for the next one, which is what findings name."""
    last = run.last_rows(Table.STEPS, ("scale", "scale_after"), 1).to_pylist()
    after = last[0]["scale_after"] if last and last[0]["scale"] == scale else None
    return "" if after in (None, scale) else f"; next {scale_text(after)}"


def _power_texts(scale: float) -> tuple[str, str]:
    """A loss scale as its power of two, as its chart has it, and as a program prints it."""
    text, power = scale_text(scale), math.log2(scale) if 0 < scale < math.inf else math.nan
    written = text if scale >= 1 else f"{scale:.4g}"
    return (f"2^{power:.0f}", f"= {written}") if power.is_integer() else (text, "")


def _latest(run: RunSnapshot, name: str) -> tuple[str, str]:
    value, _ = run.curves.latest(name)
    if value is None:
        return "never finite", ""
    age = run.curves.age(name)
    text = rate_text(value) if name == "lr" else number_text(value)
    return text, age_text(age.step, is_broken=age.is_broken)


def number_text(value: float) -> str:
    """A number with four significant digits: `1.961`, `28,420`, `4.098e-08`."""
    if _GROUPED <= abs(value) < _EXPONENT:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.4g}"


def _memory(run: RunSnapshot) -> tuple[str, str] | None:
    last = run.last_rows(Table.DEVICES, ("used_bytes", "total_bytes", "time_ns"), 1).to_pylist()
    if not last or not last[0]["used_bytes"] or not last[0]["total_bytes"]:
        return None
    text = f"{bytes_text(last[0]['used_bytes'])} of {bytes_text(last[0]['total_bytes'])}"
    late_ms = (run.last_time_ns - (last[0]["time_ns"] or 0)) / 1e6
    late = f", {duration_text(late_ms)} before the last row" if late_ms > _LATE_MS else ""
    return text, late
