"""The findings: each with its evidence, cause, what it is not, and what to do."""

from __future__ import annotations

import html
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import browser_component
import open_runs
import small_charts
import streamlit as st
from html_text import said, said_lines
from open_runs import RunSnapshot
from page_parts import refresh_run_part
from verdict_band import verdict_band

from ampwatch.diagnosis import (
    RULES,
    Advice,
    Diagnosis,
    Evidence,
    Finding,
)
from ampwatch.diagnosis.rules.rate import how_to_change_rate
from ampwatch.diagnosis.value_text import (
    against_text,
    label_of,
    list_text,
    value_text,
    when_text,
)
from ampwatch.recovery.proved_advice import judge
from ampwatch.report import html_report
from ampwatch.report.overview_chart import SCALE, is_change
from ampwatch.report.painter import SEVERITY_COLOR
from ampwatch.rows import Table, column
from ampwatch.store import open_run

_PAGES = {rule.code: rule.page for rule in RULES}
_EVERY_S = 2.0
# The column that shows a signal of the evidence.
_COLUMNS = {
    "scale": SCALE, "skipped": SCALE, "overflows": SCALE, "loss": "loss", "loss_peak": "loss",
    "gradient norm": "grad_norm", "grad_norm": "grad_norm", "lr": "lr",
    "step_time_ms": "step_time_ms",
}  # fmt: skip


def show(path: str) -> None:
    """Draw the Findings page, and keep it up to date while the run goes on."""
    refresh_run_part(_draw_findings, path, _EVERY_S, until_judged=True)
    st.download_button(
        "Download HTML report", partial(_report_file, path), f"{Path(path).name}.html",
        "text/html", on_click="ignore", help="One file: findings, charts, layers and settings",
    )  # fmt: skip


def _report_file(path: str) -> str:
    """The HTML report to download, as `ampwatch report --html` writes it, made on demand."""
    run = open_run(path)
    judged = judge(run)
    return html_report(run, judged.diagnosis, judged.established_scale)


def _draw_findings(path: str) -> None:
    run = open_runs.snapshot(path)
    st.html(verdict_band(run))
    if run.diagnosis is not None:
        lesson = run.lesson()
        told = lesson.text if lesson else ""
        browser_component.html(findings_html(run, run.diagnosis, told), key="findings")


def findings_html(run: RunSnapshot, diagnosis: Diagnosis, lesson: str = "") -> str:
    """The Findings page as HTML: the advice on the rate, what earlier runs teach, every finding."""
    found = [_finding(run, finding) for finding in diagnosis.findings]
    if not found:
        found = ['<div class="aw-muted">There is nothing to report.</div>']
    told = f'<p class="aw-muted">{said(lesson)}</p>' if lesson else ""
    return _rate_advice(diagnosis.learning_rate) + told + "".join(found)


def _finding(run: RunSnapshot, finding: Finding) -> str:
    proof = _evidence_chart(run, finding) + _evidence_table(finding.evidence)
    words = finding_html(finding, has_ranks=len(run.ranks) > 1)
    return (
        f'<section class="aw-two"><div>{words}{_finding_page(finding.code)}</div>'
        f"<div>{proof}</div></section>"
    )


def finding_html(finding: Finding, *, has_ranks: bool) -> str:
    """One finding in words, as HTML: its code, places, summary, cause and action."""
    tone = SEVERITY_COLOR[finding.severity.value]
    where = " · ".join(_places(finding, has_ranks=has_ranks))
    because = f" · because of {finding.because_of}" if finding.because_of else ""
    return (
        f'<div class="aw-finding" style="--aw-tone:var(--aw-{tone})">'
        f'<span class="aw-verdict {finding.severity.value}">{finding.severity.value.upper()}</span>'
        f'<span class="aw-where">{said(f"{finding.code} {finding.name}")}'
        f"{said(because)}{' · ' if where else ''}{where}</span>"
        f'<div class="aw-head" role="heading" aria-level="2">{said(finding.summary)}</div>'
        f'<div class="aw-why"><span>why</span>{said_lines(finding.cause)}</div>'
        f'<div class="aw-why"><span>do</span><div>{_action_html(finding.action)}</div></div></div>'
    )


def _action_html(action: str) -> str:
    """What to do about a finding, as HTML with a button that copies it."""
    return f"{said(action)} {_copy(action, 'what to do')}"


def _places(finding: Finding, *, has_ranks: bool) -> Iterator[str]:
    if finding.first_step is not None:
        last = finding.last_step
        to = "" if last in {None, finding.first_step} else f" to {last:,}"
        yield f"step{'s' if to else ''} {finding.first_step:,}{to}"
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
    last = run.curves.ends[1] if finding.last_step is None else finding.last_step
    label = column(Table.STEPS, "scale" if shown == SCALE else shown).label
    drawn = small_charts.curve_sketch(run.curves, shown, finding.first_step, last)
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
    """The advised learning rate on the Findings page as HTML: interval, reason, what to do.

    Neither interval nor steps after a leap: the rate before it is known, and the finding says what
    to undo.
    """
    if not is_change(advice) or advice.recommended is None:
        word = advice.action.value.replace("-", " ")
        return f'<p class="aw-muted">{said(f"Learning rate: {word}. {advice.because}")}</p>'
    picture = small_charts.interval_sketch(
        advice.current, advice.recommended, advice.low, advice.high
    )
    band = f"band: {advice.interval_name}" if advice.has_interval else ""
    shown = (
        '<div><div class="aw-chart-title"><b>Recommended learning rate</b>'
        f'{band}</div>{picture}<div class="aw-muted">{said_lines(advice.because)}</div></div>'
    )
    if advice.leapt_at_step is not None:
        return f'<section class="aw-two">{shown}</section>'
    steps = "".join(f"<li>{said(text)}</li>" for text in _steps(advice))
    return (
        f'<section class="aw-two">{shown}'
        f'<div><div class="aw-chart-title"><b>To do</b></div><ol>{steps}</ol></div></section>'
    )


def _steps(advice: Advice) -> Iterator[str]:
    """What to do about the learning rate, a sentence a step."""
    yield how_to_change_rate(advice)
    if advice.warmup_steps is not None:
        yield f"Warm up over {advice.warmup_steps:,} steps."
    if advice.clip is not None:
        yield (
            f"Clip the gradient norm at {advice.clip:.2g}, after scaler.unscale_(optimizer) and "
            "before scaler.step(optimizer)."
        )
