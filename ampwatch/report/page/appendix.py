"""What stands behind the letter: each finding in full, the settings, and how to read the charts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ampwatch.diagnosis.code_to_paste import words_and_lines
from ampwatch.diagnosis.words import scale_text, steps_text
from ampwatch.report.facts import powers
from ampwatch.text import printable

if TYPE_CHECKING:
    from ampwatch.diagnosis import Evidence, Finding

_MOST_SETTINGS, _MOST_LETTERS = 500, 120

HOW_TO_READ = """\
The loss scale is drawn as the steps were scaled, on an axis of powers of two: it holds and jumps.
Each tick below it is a skipped step; none is left out, and those closer than a pixel are one tick
that knows its count.

A line shows at most 2,000 points, chosen so that every peak keeps its height. It breaks where
values are absent or not finite. Drag to zoom, double-click to see all.

Gradient norms are unscaled and taken before clipping, unless the notes say otherwise.

A pale span is a finding's steps; the dashed line is the step to restart from. The dotted line
across the loss scale is the level that it had established; across the learning rate it is the
advised rate, and the band the 90 % interval of the highest
rate that would be stable."""


def said(text: str) -> str:
    """A text as HTML, nothing in it interpreted."""
    return html.escape(powers(printable(text)))


def findings_in_full(findings: Sequence[Finding]) -> str:
    """Every finding with its cause, remedy and evidence."""
    if not findings:
        return ""
    return "<h2>Findings in full</h2>" + "".join(_finding(finding) for finding in findings)


def _finding(finding: Finding) -> str:
    when = steps_text(finding.first_step, finding.last_step)
    where = [f"{finding.severity.value}", when, finding.layer and f"layer {finding.layer}"]
    where += [finding.because_of and f"because of {finding.because_of}"]
    told = said(", ".join(part for part in where if part))
    words, lines = words_and_lines(finding.action)
    code = "\n".join(html.escape(printable(line)) for line in lines.split("\n"))
    rows = [
        ("why", said(finding.cause)),
        ("do", said(words) + (f"<pre>{code}</pre>" if lines else "")),
    ]
    rows += [("evidence", "; ".join(map(_evidence, finding.evidence)))]
    return (
        f'<section class="finding"><h3>{finding.code} {said(finding.name)}'
        f' <span class="dim">{told}</span></h3>'
        f"<p>{said(finding.summary)}</p>{_labelled(rows)}</section>"
    )


def _evidence(evidence: Evidence) -> str:
    at = "" if evidence.step is None else f" at step {evidence.step:,}"
    value, against = (_value(evidence.signal, v) for v in (evidence.value, evidence.against))
    compared = "" if evidence.against is None else f" against {against}"
    return said(f"{evidence.signal}{at}: {value}{compared}")


def _value(signal: str, value: float | str | None) -> str:
    if not isinstance(value, float):
        return str(value)
    return scale_text(value) if signal.startswith("scale") else f"{value:.4g}"


def _labelled(rows: Sequence[tuple[str, str]]) -> str:
    """Labels beside what is HTML already; a row that says nothing is left out."""
    shown = "".join(f"<tr><th>{label}</th><td>{text}</td></tr>" for label, text in rows if text)
    return f'<table class="labelled">{shown}</table>'


def settings_table(settings: Mapping[str, str]) -> str:
    """Names and values as the record tells them."""
    if not settings:
        return ""
    rows = [(said(_cut(name)), said(text)) for name, text in settings.items()][:_MOST_SETTINGS]
    hidden = len(settings) - len(rows)
    more = f'<p class="dim">{hidden:,} more settings are in run.json.</p>' if hidden > 0 else ""
    return f'<h2>Settings</h2><div class="settings">{_labelled(rows)}</div>{more}'


def assumed_note(source: str, settings: Mapping[str, str]) -> str:
    """The framework's defaults that the scale was read against: the log does not tell them."""
    if not settings:
        return ""
    told = ", ".join(f"{name.split('.')[-1]} {text}" for name, text in settings.items())
    return (
        f'<p class="dim">Not told by the log, read as {said(source)} sets them: {said(told)}.</p>'
    )


def _cut(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[:_MOST_LETTERS]}…"


def reading_notes(notes: Sequence[str]) -> str:
    """What the record lacks, and how to read the charts."""
    told = "".join(f"<li>{said(note)}</li>" for note in notes)
    lacks = f"<h2>Notes on the record</h2><ul>{told}</ul>" if notes else ""
    parts = (" ".join(part.split()) for part in HOW_TO_READ.split("\n\n"))
    guide = "".join(f"<p>{said(part)}</p>" for part in parts)
    return f'{lacks}<h2>How to read this</h2><div class="dim">{guide}</div>'
