"""The findings: each with its evidence, cause, what it is not, and what to do."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import address
import browser_component
import open_runs
import small_charts
import streamlit as st
from html_text import exact_html, said, said_lines
from open_runs import RunSnapshot
from page_parts import agree_with_sidebar, guarded, refresh_run_part, show_as_text
from verdict_band import verdict_band

from ampwatch.diagnosis import (
    RULES,
    Advice,
    Diagnosis,
    Evidence,
    Finding,
    Severity,
)
from ampwatch.diagnosis.value_text import (
    against_text,
    label_of,
    list_text,
    value_text,
    when_text,
)
from ampwatch.report.overview_chart import SCALE, is_change
from ampwatch.report.painter import SEVERITY_COLOR
from ampwatch.rows import Table, column
from ampwatch.store import edit_tags, read_tags

_PAGES = {rule.code: rule.page for rule in RULES}
_EVERY_S = 2.0
# The column that shows a signal of the evidence.
_COLUMNS = {
    "scale": SCALE, "skipped": SCALE, "overflows": SCALE, "loss": "loss", "loss_peak": "loss",
    "loss since then": "loss",
    "gradient norm": "grad_norm", "grad_norm": "grad_norm", "lr": "lr",
    "step_time_ms": "step_time_ms",
}  # fmt: skip


def show(path: str) -> None:
    """Draw the Findings page, and keep it up to date while the run goes on."""
    refresh_run_part(_draw_findings, path, _EVERY_S, until_judged=True)
    _offer_to_mute(path)


@guarded
def _offer_to_mute(path: str) -> None:
    """Let the reader mute a finding that is known and no problem, with a reason; or undo it."""
    diagnosis = open_runs.snapshot(path).diagnosis
    codes = [] if diagnosis is None else [one.code for one in diagnosis.findings]
    if not codes:
        return
    with st.popover("Mute a finding"):
        code = st.selectbox("Finding", list(dict.fromkeys(codes)))
        reason = st.text_input("Why is it no problem?", max_chars=200)
        is_muted = code in dict(read_tags(Path(path)).muted)
        if st.button("Mute", disabled=not reason.strip(), type="primary"):
            edit_tags(Path(path), mute={code: reason})
            st.rerun()
        if is_muted and st.button("Mute it no longer"):
            edit_tags(Path(path), mute={code: None})
            st.rerun()


def _draw_findings(path: str) -> None:
    run = open_runs.snapshot(path)
    agree_with_sidebar(run)
    band, text = verdict_band(run), ""
    browser_component.html(band, key="band", acts={"go": lambda _code: None})  # it is here
    diagnosis = run.diagnosis_as_told()
    if diagnosis is not None:
        lesson = run.lesson()
        told = lesson.text if lesson else ""
        text = findings_html(run, diagnosis, told)
        browser_component.html(text, key="findings", acts={"go": _open_step})
    show_as_text(band, text)
    address.switch_if_asked()


def _open_step(step: object) -> None:
    address.ask_for_page("Overview", step=int(str(step)))


def findings_html(run: RunSnapshot, diagnosis: Diagnosis, lesson: str = "") -> str:
    """The Findings page as HTML: the headline's evidence, the others in a line each that opens.

    What to do about the headline stands in the band above: it is not said again.
    """
    findings = [one for one in diagnosis.findings if one.severity is not Severity.INFO]
    remarks = [one for one in diagnosis.findings if one.severity is Severity.INFO]
    noticed = [one for one in remarks if one.muted is None]
    muted = [one for one in remarks if one.muted is not None]
    head = "".join(_headline(run, one, diagnosis) for one in findings[:1])
    head = head or _rate_advice(diagnosis.learning_rate)
    if not diagnosis.findings:
        head += '<div class="aw-muted">There is nothing to report.</div>'
    rest = "".join(_folded(run, one) for one in findings[1:])
    also = "".join(_folded(run, one) for one in noticed)
    also = f'<h2 class="aw-section">Also noticed</h2>{also}' if also else ""
    if muted:
        folds = "".join(_folded(run, one) for one in muted)
        also += f'<h2 class="aw-section">Muted</h2>{folds}'
    return head + _lesson_html(lesson) + rest + also


def _lesson_html(lesson: str) -> str:
    return f'<p class="aw-muted">{said(lesson)}</p>' if lesson else ""


def _headline(run: RunSnapshot, finding: Finding, diagnosis: Diagnosis) -> str:
    letter = run.letter()
    is_said = (
        letter is not None and letter.blames_rate
    )  # at which step and rate, as the band has it
    told = replace(finding, summary="") if is_said else finding
    words = finding_html(told, has_ranks=len(run.ranks) > 1, is_told_above=True)
    words += _rate_advice(diagnosis.learning_rate)
    return _two_columns(run, finding, words)


def _two_columns(run: RunSnapshot, finding: Finding, words: str) -> str:
    """A finding's words beside its evidence, as HTML."""
    proof = _evidence_chart(run, finding) + _evidence_table(finding.evidence)
    tone = SEVERITY_COLOR[finding.severity.value]
    return (
        f'<section class="aw-two" style="--aw-tone:var(--aw-{tone})">'
        f"<div>{words}{_finding_page(finding.code)}</div><div>{proof}</div></section>"
    )


def _folded(run: RunSnapshot, finding: Finding) -> str:
    """A finding as one line of HTML that opens to the whole of it."""
    tone = SEVERITY_COLOR[finding.severity.value]
    why = "" if finding.muted is None else said(f" · muted: {finding.muted}")
    words = finding_html(finding, has_ranks=len(run.ranks) > 1)
    return (
        f'<details class="aw-fold" data-key="finding {finding.code} {finding.first_step}" '
        f'style="--aw-tone:var(--aw-{tone})"><summary>{_severity(finding)}'
        f'<b>{said(finding.summary)}</b> <span class="aw-where">{finding.code}{why}</span>'
        "</summary>"
        f"{_two_columns(run, finding, words)}</details>"
    )


def _severity(finding: Finding) -> str:
    word = finding.severity.value
    return f'<span class="aw-verdict {word}">{word.upper()}</span>'


def finding_html(finding: Finding, *, has_ranks: bool, is_told_above: bool = False) -> str:
    """One finding in words, as HTML: its code, places, summary, cause and action.

    `is_told_above`: what to do about it stands in the band.
    """
    tone = SEVERITY_COLOR[finding.severity.value]
    where = " · ".join(_places(finding, has_ranks=has_ranks))
    because = f" · because of {finding.because_of}" if finding.because_of else ""
    action = f'<div class="aw-why"><span>do</span><div>{_action_html(finding.action)}</div></div>'
    steps = _single_steps(finding.steps)
    steps = f'<div class="aw-why"><span>steps</span><div>{steps}</div></div>' if steps else ""
    head = f'<div class="aw-head" role="heading" aria-level="2">{said(finding.summary)}</div>'
    return (
        f'<div class="aw-finding" style="--aw-tone:var(--aw-{tone})">{_severity(finding)}'
        f'<span class="aw-where">{said(f"{finding.code} {finding.name}")}'
        f"{said(because)}{' · ' if where else ''}{where}</span>"
        f"{head if finding.summary else ''}"
        f'<div class="aw-why"><span>why</span><div>{said_lines(finding.cause)}</div></div>'
        f"{steps}{'' if is_told_above else action}</div>"
    )


def _single_steps(steps: Sequence[int]) -> str:
    """The single steps of a finding as links to them on the Overview, as HTML."""
    if len(steps) < 2:
        return ""
    where = address.read()
    return ", ".join(
        f'<a href="{html.escape(address.link("", replace(where, step=step)))}" '
        f'data-go="{step}">{step:,}</a>'
        for step in steps
    )


_MOST_CODE = 2  # lines that are shown without being asked for


def _action_html(action: str) -> str:
    """What to do about a finding, as HTML with a button that copies it; longer code is folded."""
    words, *code = action.split("\n")
    if len(code) <= _MOST_CODE:
        return f"{said_lines(action)} {_copy(action, 'what to do')}"
    lines = "\n".join(code)
    return (
        f"{said(words)} <details><summary>Code ({len(code)} lines)</summary>"
        f"{_copy(lines, 'the code')}<pre>{exact_html(lines)}</pre></details>"
    )


def _places(finding: Finding, *, has_ranks: bool) -> Iterator[str]:
    if finding.first_step is not None:
        first, last = finding.first_step, finding.last_step
        ends = finding.goes_on or last in {None, first}
        on = f"from step {first:,} on" if finding.goes_on else f"step {first:,}"
        yield on if ends else f"steps {first:,} to {last:,}"
    if finding.layer:
        yield f"<b>{said(finding.layer)}</b>"
    if len(finding.ranks) > 1:
        yield said(f"ranks {list_text([str(rank) for rank in finding.ranks], 8)}")
    elif has_ranks:
        yield said(f"rank {finding.ranks[0]}")


def _finding_page(code: str) -> str:
    """The page about a finding's code, as folded HTML."""
    page = _PAGES.get(code)
    if page is None:
        return ""
    rows = {
        "meaning": page.meaning, "looks": page.looks, "not to confuse": page.not_to_confuse,
        "do": page.do, "example": page.example,
    }  # fmt: skip
    lines = "".join(
        f'<div class="aw-why"><span>{name}</span>{said(text)}</div>' for name, text in rows.items()
    )
    return (
        f'<details data-key="{code}"><summary>About {code}: what it means, how it looks, what it '
        f"is not</summary>{lines}</details>"
    )


def _copy(text: str, what: str) -> str:
    return (
        f'<button type="button" class="aw-copy" aria-label="copy {what}" '
        f'data-copy="{html.escape(text)}">copy</button>'
    )


def _evidence_chart(run: RunSnapshot, finding: Finding) -> str:
    """A small chart, as HTML, of the curve that a finding's evidence is about."""
    if finding.first_step is None:
        return ""
    names = [_COLUMNS.get(piece.signal) for piece in finding.evidence]
    shown = next((name for name in names if name in run.curves.present), None)
    if shown is None:
        return ""
    last = finding.last_in(run.curves.ends[1])
    label = column(Table.STEPS, "scale" if shown == SCALE else shown).label
    drawn = small_charts.curve_sketch(run.curves, shown, finding.first_step, last, finding.steps)
    title = f'<div class="aw-chart-title"><b>{label}</b>shaded: {finding.code}</div>'
    return title + drawn if drawn else ""


def _evidence_table(evidence: tuple[Evidence, ...]) -> str:
    if not evidence:
        return ""
    rows = "".join(
        f"<tr><td>{said(label_of(piece.signal))}</td>"
        f"<td>{said(when_text(piece))}</td>"
        f"<td>{said(value_text(piece.signal, piece.value))}</td>"
        f"<td>{said(against_text(piece))}</td></tr>"
        for piece in evidence
    )
    head = "<tr><th>evidence</th><th>when</th><th>value</th><th>compared with</th></tr>"
    return f'<table class="aw-table">{head}{rows}</table>'


def _rate_advice(advice: Advice) -> str:
    """The advised learning rate as HTML: its interval in sight, how it was estimated folded."""
    if not is_change(advice) or advice.recommended is None:
        word = advice.action.value.replace("-", " ")
        return f'<p class="aw-muted">{said(f"Learning rate: {word}. {advice.because}")}</p>'
    picture = small_charts.interval_sketch(
        advice.current, advice.recommended, advice.low, advice.high
    )
    band = f"band: {advice.interval_name}" if advice.has_interval else ""
    more = "".join(f"<div>{said(text)}</div>" for text in _besides(advice))
    return (
        f'<div class="aw-chart-title"><b>Recommended learning rate</b>{band}</div>{picture}{more}'
        '<details data-key="estimate"><summary>How it was estimated</summary>'
        f"<div>{said_lines(advice.because)}</div></details>"
    )


def _besides(advice: Advice) -> Iterator[str]:
    """What else to do about the learning rate; after a leap the rate before it is all there is."""
    if advice.leapt_at_step is None and advice.warmup_steps is not None:
        yield f"Warm up over {advice.warmup_steps:,} steps."
    if advice.leapt_at_step is None and advice.clip is not None:
        yield (
            f"Clip the gradient norm at {advice.clip:.2g}, after scaler.unscale_(optimizer) and "
            "before scaler.step(optimizer)."
        )
