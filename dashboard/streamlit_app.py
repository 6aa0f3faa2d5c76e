"""The dashboard: choose a run; is it all right, what broke, what to do, show me.

Start it by `streamlit run dashboard` or `ampwatch dashboard`.
"""

from __future__ import annotations

import html
import subprocess
import sys
import time
from collections.abc import Iterator

import charts
import runs
import streamlit as st

from ampwatch import diagnose, open_run
from ampwatch.diagnosis import Diagnosis, Finding, Severity
from ampwatch.errors import AmpwatchError
from ampwatch.report import Fact, facts_of, powers
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
YET = "Nothing can be judged yet."
NOTES_SHOWN = 3
SEVERITY_INK = {
    Severity.ERROR: charts.SKIP,
    Severity.WARNING: "#C98A00",
    Severity.INFO: charts.MUTED,
}
BAND = """<div style="border-left:5px solid {ink};background:{paper};padding:.9rem 1.2rem;
border-radius:4px"><span style="color:{ink};font-weight:700;letter-spacing:.04em">{verdict}</span>
<span style="color:#6B7280">&nbsp; {where}</span>{body}</div>"""
FINDING = """<div style="margin-bottom:.8rem"><div style="color:{ink};font-size:.85rem">{title}
</div><div style="font-weight:600">{summary}</div><div>{cause}</div></div>"""
NUMBER = """<div><div style="color:#6B7280;font-size:.8rem">{label}</div>
<div style="font-size:1.05rem;font-weight:600;font-variant-numeric:tabular-nums">{text}</div>
</div>"""


def main() -> None:
    st.set_page_config(page_title="ampwatch", page_icon="📉", layout="wide")
    st.html("<style>.block-container{padding-top:2.4rem}</style>")
    with st.sidebar:
        st.markdown("### ampwatch")
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
    """The list of runs; another choice, and a run that begins or ends, change the page."""
    feed, shelf = runs.feed(), runs.shelf()
    st.caption(f"{feed.state} · {shelf.counts}" if shelf.choices else feed.state)
    if shelf.choices:
        labels = {choice.path: choice.label for choice in shelf.choices}
        before = st.session_state.get("run")
        chosen = st.radio(
            "Runs", list(labels), format_func=lambda path: labels.get(path, path),
            index=list(labels).index(before) if before in labels else 0,
            label_visibility="collapsed",
        )  # fmt: skip
        live = next(choice.live for choice in shelf.choices if choice.path == chosen)
        if (chosen, live) != (before, st.session_state.get("live")):
            st.session_state["run"], st.session_state["live"] = chosen, live
            st.rerun()
    for sentence in (*shelf.problems[:NOTES_SHOWN], *feed.notes[-NOTES_SHOWN:]):
        st.html(muted(sentence))


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
        st.session_state["demo"] = subprocess.Popen(
            [sys.executable, "-m", "ampwatch", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    if "demo" in st.session_state:
        st.caption("The demo is starting; it appears here in a few seconds.")


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
    show_findings(diagnosis)
    for note in run.notes:
        st.html(muted(note))
    if was_live and run.clean_end:
        st.rerun()  # it has ended: the page needs no clock any more


def show_findings(diagnosis: Diagnosis) -> None:
    """What was found beside the headline: one click away, or in calm a muted line each."""
    found = diagnosis.findings
    if diagnosis.verdict.value in CALM:
        for finding in found:
            st.html(muted(powers(f"{finding.code} {finding.name}: {finding.summary}")))
    elif len(found) > 1:
        with st.expander(f"All {len(found)} findings"):
            st.html("".join(FINDING.format(**finding_words(finding)) for finding in found))


def finding_words(finding: Finding) -> dict[str, str]:
    since = "" if finding.first_step is None else f" · since step {finding.first_step}"
    return {
        "ink": SEVERITY_INK[finding.severity],
        "title": said(f"{finding.severity.value} · {finding.code} {finding.name}{since}"),
        "summary": said(finding.summary),
        "cause": said(f"{finding.cause} {finding.action}"),
    }


def band(run: Run, diagnosis: Diagnosis) -> str:
    """Is it all right? What broke, since when? What do I do?"""
    verdict, head = diagnosis.verdict.value, diagnosis.headline
    ink, paper = COLORS[verdict]
    where = html.escape(run.info.name)
    live = runs.is_live(run.last_time_ns, ended=run.clean_end)
    if live:
        where += f" · live, {max(0.0, (time.time_ns() - run.last_time_ns) / 1e9):.1f} s ago"
    if verdict in CALM or head is None:
        calm = YET if live and verdict == "incomplete" else CALM.get(verdict, "")
        return BAND.format(
            ink=ink, paper=paper, verdict=verdict.upper(), where=where,
            body=f'<span style="color:{charts.INK}">&nbsp; {calm}</span>',
        )  # fmt: skip
    since = "" if head.first_step is None else f" · since step {head.first_step}"
    where += f"{since} · {head.code} {head.name}"
    text = " ".join((head.cause, head.action, *others(diagnosis, head)))
    body = (
        f'<div style="font-size:1.25rem;font-weight:600;margin:.35rem 0">{said(head.summary)}</div>'
        f"<div>{said(text)}</div>"
    )
    return BAND.format(ink=ink, paper=paper, verdict=verdict.upper(), where=where, body=body)


def others(diagnosis: Diagnosis, head: Finding) -> Iterator[str]:
    """What else is grave: the headline's consequences, and what stands beside it."""
    rest = [f for f in diagnosis.findings if f is not head and f.severity is not Severity.INFO]
    follows = [f"{f.code} {f.name}" for f in rest if f.because_of == head.code]
    beside = [f"{f.code} {f.name}" for f in rest if f.because_of != head.code]
    if follows:
        yield f"Its consequence: {', '.join(follows)}."
    if beside:
        yield f"Also found: {', '.join(beside)}."


def strip(run: Run, diagnosis: Diagnosis) -> str:
    """The current numbers in one line."""
    facts = [fact for fact in facts_of(run, diagnosis) if fact.label != "note"]
    if diagnosis.run.first_scale is None:  # else `skipped` tells of how many
        facts.insert(0, Fact("steps", f"{diagnosis.run.steps:,}"))
    cells = [NUMBER.format(label=said(fact.label), text=said(fact.now)) for fact in facts]
    return f'<div style="display:flex;gap:.3rem 1.7rem;flex-wrap:wrap">{"".join(cells)}</div>'


def muted(text: str) -> str:
    return f'<div style="color:{charts.MUTED};font-size:.85rem">{html.escape(text)}</div>'


def said(text: str) -> str:
    """Text as the page may show it: names are data."""
    return html.escape(powers(text))


main()
