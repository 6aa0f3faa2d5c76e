"""The dashboard: choose a run; is it all right, what broke, what to do, show me.

Start it by `streamlit run dashboard` or `ampwatch dashboard`.
"""

from __future__ import annotations

import html
import subprocess
import sys
import time

import charts
import runs
import streamlit as st

from ampwatch import diagnose, open_run
from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.errors import AmpwatchError
from ampwatch.report import facts_of, powers
from ampwatch.store import Run

COLORS = {
    "failing": (charts.SKIP, "#FBEEEA"),
    "warning": ("#C98A00", "#FBF4E2"),
    "healthy": (charts.NORM, "#EAF5F1"),
    "incomplete": (charts.MUTED, "#F3F4F2"),
}
CALM = {
    "healthy": "Nothing is wrong with this run.",
    "incomplete": "The record ends before anything could be judged.",
}
BAND = """<div style="border-left:5px solid {ink};background:{paper};padding:.9rem 1.2rem;
border-radius:4px"><span style="color:{ink};font-weight:700;letter-spacing:.04em">{verdict}</span>
<span style="color:#6B7280">&nbsp; {where}</span>{body}</div>"""
NUMBER = """<div><div style="color:#6B7280;font-size:.8rem">{label}</div>
<div style="font-size:1.05rem;font-weight:600;font-variant-numeric:tabular-nums">{text}</div>
</div>"""


def main() -> None:
    st.set_page_config(page_title="ampwatch", page_icon="📉", layout="wide")
    st.html("<style>.block-container{padding-top:2.4rem}</style>")
    with st.sidebar:
        st.markdown("### ampwatch")
        st.caption(runs.recorder()[1])
        choose()
    path = st.session_state.get("run")
    if path is None:
        show_nothing_yet()
        return
    run = opened(path)
    if run is None:
        return
    live = runs.is_live(run.last_time_ns, ended=run.clean_end)
    st.fragment(show_run, run_every=1.0 if live else None)(run)


@st.fragment(run_every=3.0)
def choose() -> None:
    """The list of runs; a run that appears, or another choice, changes the page."""
    found = runs.choices()
    st.session_state["known"] = len(found)
    if not found:
        return
    labels = {choice.path: choice.label for choice in found}
    before = st.session_state.get("run")
    chosen = st.radio(
        "Runs", list(labels), format_func=lambda path: labels.get(path, path),
        index=list(labels).index(before) if before in labels else 0, label_visibility="collapsed",
    )  # fmt: skip
    if chosen != before:
        st.session_state["run"] = chosen
        st.rerun()


def opened(path: str) -> Run | None:
    """The chosen run, kept open for this session so that a refresh costs only what is new."""
    held = st.session_state.get("opened")
    if held is not None and str(held.path) == path:
        return held
    try:
        st.session_state["opened"] = open_run(path)
    except AmpwatchError as error:
        st.error(str(error))
        return None
    return st.session_state["opened"]


def show_nothing_yet() -> None:
    st.markdown("#### No runs yet")
    st.markdown("Add one line to a training loop:")
    st.code("ampwatch.attach(scaler, model)", language="python")
    st.markdown("or see a small training go wrong, here and now:")
    if st.button("Run the demo"):
        options = ["demo", "--no-dashboard", "--dir", str(runs.folders()[0])]
        st.session_state["demo"] = subprocess.Popen([sys.executable, "-m", "ampwatch", *options])
        st.caption("It appears here in a few seconds.")


def show_run(run: Run) -> None:
    was_live = not run.clean_end
    run.refresh()
    diagnosis = diagnose(run)
    st.html(band(run, diagnosis))
    st.html(strip(run, diagnosis))
    spans = [
        charts.Span(f.first_step, f.last_step, f.code)
        for f in diagnosis.findings
        if f.severity is not Severity.INFO and None not in (f.first_step, f.last_step)
    ]
    st.markdown(
        "**Loss scale with its skips (red), loss, gradient norm and learning rate by step**"
    )
    figure = charts.overview(runs.course_of(run), spans[:1])
    st.plotly_chart(figure, width="stretch", key="overview", config={"displaylogo": False})
    for note in run.notes:
        st.caption(html.escape(note))
    if was_live and run.clean_end:
        st.rerun()  # it has ended: the page needs no clock any more


def band(run: Run, diagnosis: Diagnosis) -> str:
    """Is it all right? What broke, since when? What do I do?"""
    verdict, head = diagnosis.verdict.value, diagnosis.headline
    ink, paper = COLORS[verdict]
    where = html.escape(run.info.name)
    if runs.is_live(run.last_time_ns, ended=run.clean_end):
        where += f" · live, {(time.time_ns() - run.last_time_ns) / 1e9:.1f} s ago"
    if verdict in CALM or head is None:
        return BAND.format(
            ink=ink, paper=paper, verdict=verdict.upper(), where=where,
            body=f'<span style="color:#1B1F24">&nbsp; {CALM.get(verdict, "")}</span>',
        )  # fmt: skip
    since = "" if head.first_step is None else f" · since step {head.first_step}"
    where += f"{since} · {head.code} {head.name}"
    also = ", ".join(f"{f.code} {f.name}" for f in diagnosis.findings if f.because_of == head.code)
    text = f"{head.cause} {head.action}" + (f" Its consequence: {also}." if also else "")
    body = (
        f'<div style="font-size:1.25rem;font-weight:600;margin:.35rem 0">{said(head.summary)}</div>'
        f"<div>{said(text)}</div>"
    )
    return BAND.format(ink=ink, paper=paper, verdict=verdict.upper(), where=where, body=body)


def strip(run: Run, diagnosis: Diagnosis) -> str:
    """The current numbers in one line."""
    cells = [NUMBER.format(label="steps", text=f"{diagnosis.run.steps:,}")]
    cells += [
        NUMBER.format(label=said(fact.label), text=said(fact.text))
        for fact in facts_of(run, diagnosis)
        if fact.label != "note"
    ]
    return f'<div style="display:flex;gap:.3rem 1.7rem;flex-wrap:wrap">{"".join(cells)}</div>'


def said(text: str) -> str:
    """Text as the page may show it: names are data."""
    return html.escape(powers(text))


main()
