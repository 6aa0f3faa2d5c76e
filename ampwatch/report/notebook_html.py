"""A run and a diagnosis as the output of a notebook's cell: the letter, and a small chart.

No script and nothing from the network, so it also shows where a notebook is only read. It follows
the notebook's theme where the notebook says which one it is, else that of the system.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ampwatch.diagnosis import Diagnosis
from ampwatch.diagnosis.column_arrays import Floats, Integers, integers, known, numbers
from ampwatch.diagnosis.rule import title_of
from ampwatch.diagnosis.value_text import count_text, powers, scale_text
from ampwatch.follow import diagnose
from ampwatch.printable_text import printable
from ampwatch.report.facts import course_text, rows_of_optimizer
from ampwatch.report.html_file import LETTER_STYLE, letter_html
from ampwatch.report.letter import letter_of
from ampwatch.report.painter import VERDICT_COLOR, palette_style
from ampwatch.report.terminal_report import advised

if TYPE_CHECKING:
    from ampwatch.store import Run

_WIDTH, _HEIGHT, _ROOM = 420, 64, 4  # pixels of a line's panel
_CELLS = 140  # across: of the values in each the lowest and the highest are drawn
# Jupyter, VS Code, Colab and others say which theme they have; a page of another kind does not.
_DARK = (
    '[data-jp-theme-light="false"]', '[data-theme="dark"]', '[theme="dark"]', ".vscode-dark",
    ".vscode-high-contrast:not(.vscode-high-contrast-light)",
)  # fmt: skip
_LIGHT = (
    '[data-jp-theme-light="true"]', '[data-theme="light"]', '[theme="light"]', ".vscode-light",
)  # fmt: skip
_CELL_STYLE = """
 color-scheme: light; color: var(--aw-ink); background: var(--aw-page); max-width: 900px;
 font: 14px/1.45 system-ui, sans-serif; padding: 4px; border-radius: 4px;
 p, h1, h3 { color: inherit; font-weight: 600; line-height: 1.3; }
 p { margin: 0 0 4px; font-weight: 400; }
 .dim, th, summary { color: var(--aw-muted); }
 :is(tr, td, th, table) { background: none !important; border: 0 !important; }
 table { margin: 0; font-size: inherit; }
 :is(td, th) { text-align: left !important; vertical-align: top; font-size: inherit; }
 td { max-width: none; white-space: normal; }
 figure { display: inline-block; margin: 8px 16px 0 0; }
 figcaption { font-size: 12px; color: var(--aw-muted); }
 svg { display: block; max-width: 100%; overflow: visible; }
 details { margin-top: 8px; } summary { cursor: pointer; }
"""


def run_html(run: Run, diagnosis: Diagnosis | None = None) -> str:
    """A run: the letter, its loss and its loss scale; the rest of the letter is folded."""
    judged = diagnose(run) if diagnosis is None else diagnosis
    band, more = letter_html(letter_of(run.info.name, run, judged))
    return _cell(judged, band, "".join(_charts(run)), _folded("What happened, and more", more))


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """A diagnosis: its verdict, what to do first, and its other findings folded."""
    verdict, facts = diagnosis.verdict.value, diagnosis.run
    tone = VERDICT_COLOR[verdict]
    band = (
        f'<p><b class="mark {verdict}" style="color:var(--aw-{tone})">{verdict.upper()}</b>'
        f' <span class="dim">{count_text(facts.steps, "step")}</span></p>'
    )
    head = diagnosis.headline
    if diagnosis.calm is not None or head is None:
        band += f"<p>{_escaped(diagnosis.calm or '')}</p>"
    else:
        band += f'<h1>{_escaped(title_of(head))} <span class="dim">({head.code})</span></h1>'
        band += "".join(f"<p>{_escaped(text)}</p>" for text in (head.summary, head.action))
    advice = diagnosis.learning_rate
    why = "" if advice.recommended is None else f" {_escaped(advice.because)}"
    band += f"<p>Learning rate: {_escaped(advised(advice))}.{why}</p>"
    rows = "".join(
        f"<tr><th>{one.code}</th><td>{_escaped(one.name.replace('-', ' '))}, "
        f"{one.severity.value}: {_escaped(one.summary)}</td></tr>"
        for one in diagnosis.findings
        if one is not head
    )
    others = f'<table class="lines">{rows}</table>' if rows else ""
    return _cell(diagnosis, band, _folded("Other findings", others))


def _cell(diagnosis: Diagnosis, band: str, *parts: str) -> str:
    tone = VERDICT_COLOR[diagnosis.verdict.value]
    return (
        f'<div class="aw-cell"><style>{_style()}</style>'
        f'<section class="verdict" style="--tone:var(--aw-{tone})">{band}</section>'
        f"{''.join(parts)}</div>"
    )


@cache
def _style() -> str:
    """The style of a cell, which touches nothing outside of it."""
    letter = LETTER_STYLE.read_text("utf-8")
    dark, light = (f":is({', '.join(each)}) .aw-cell" for each in (_DARK, _LIGHT))
    return (
        f"{palette_style('.aw-cell')}.aw-cell{{{_CELL_STYLE}{letter}}}"
        "@media (prefers-color-scheme: dark){.aw-cell{color-scheme:dark}}"
        f"{dark}{{color-scheme:dark}}{light}{{color-scheme:light}}"
    )


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""


def _escaped(text: str) -> str:
    return html.escape(printable(text))


# --- the charts -----------------------------------------------------------------------------------


def _charts(run: Run) -> Iterator[str]:
    """The loss, and the loss scale by powers of two, each as a line of its lows and highs."""
    rows = rows_of_optimizer(run, ("step", "loss", "scale_after"))
    step, loss, scale = integers(rows, "step"), numbers(rows, "loss"), numbers(rows, "scale_after")
    told = known(rows, "loss")
    if told.any():
        yield _chart(step, loss, f"Loss: {course_text(loss[told], 'to')}", "ink")
    scale = np.where(scale > 0, scale, np.nan)
    there = scale[np.isfinite(scale)]
    if len(there):
        ends = f"{powers(scale_text(there[0]))} to {powers(scale_text(there[-1]))}"
        yield _chart(step, np.log2(scale), f"Loss scale: {ends}", "scale")


def _chart(step: Integers, values: Floats, words: str, tone: str) -> str:
    """One line over all steps of the run; empty of fewer than two values."""
    fine = np.isfinite(values)
    first, last = int(step.min()), int(step.max())
    if fine.sum() < 2 or first == last:
        return ""
    low, high = float(values[fine].min()), float(values[fine].max())
    across = _WIDTH * (step[fine] - first) / (last - first)
    down = _ROOM + (_HEIGHT - 2 * _ROOM) * (high - values[fine]) / ((high - low) or 1.0)
    points = " ".join(f"{x:.0f},{y:.1f}" for x, y in _outermost(across, down))
    return (
        f"<figure><figcaption>{words}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{words}"><polyline points="{points}" fill="none" '
        f'stroke="var(--aw-{tone})" stroke-width="1.5"/></svg></figure>'
    )


def _outermost(across: Floats, down: Floats) -> Iterator[Sequence[float]]:
    """Of each cell the lowest and the highest point, in the order of the log."""
    cell = (across * _CELLS / (_WIDTH + 1)).astype(np.int64)
    for part in np.split(np.arange(len(cell)), np.flatnonzero(np.diff(cell)) + 1):
        for at in sorted({int(part[np.argmin(down[part])]), int(part[np.argmax(down[part])])}):
            yield across[at], down[at]
