"""A run, or several compared, as one HTML file that needs no network.

The text comes first, then the dashboard's charts, the layers and all details. Nothing of a run is
interpreted: texts are escaped, data is in blocks of its own, and the page's policy allows no script
but ours.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.errors import ReportError
from ampwatch.printable_text import printable
from ampwatch.report.comparison_text import comparison_text, letter
from ampwatch.report.facts import powers
from ampwatch.report.html_sections import (
    assumed_note,
    findings_in_full,
    layers_table,
    markup,
    reading_notes,
    settings_table,
)
from ampwatch.report.layer_views import NAMES, Wanted, offered, view_message
from ampwatch.report.overview_chart import compared_panels, curves_of, overview_of
from ampwatch.report.painter import VERDICT_COLOR, bundled, style_sheet
from ampwatch.report.painter.message import Arrays, Picture, still_message
from ampwatch.report.scale_windows import telling_step
from ampwatch.report.settings import assumed_settings, settings_of
from ampwatch.report.sweep import besides_text
from ampwatch.report.sweep_chart import parallel_html, sweep_html
from ampwatch.report.terminal_report import report_text

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis
    from ampwatch.report.comparison import Comparison
    from ampwatch.store import Run

_STYLE = Path(__file__).with_name("report.css")


def html_report(run: Run, diagnosis: Diagnosis, level: float | None) -> str:
    """The whole file; `level` is the scale that the run had established.

    Raises ReportError where tsdownsample is not installed.
    """
    _require_thinning()
    step = telling_step(diagnosis)
    tone = VERDICT_COLOR[diagnosis.verdict.value]
    layers = layers_table(run, step)
    text = markup(report_text(run.info.name, run, diagnosis, fancy=True, curves=False))
    parts = (
        f'<section class="verdict" style="--tone:var(--aw-{tone})">{text}</section>',
        _course(run, diagnosis, level),
        _section("Layers", *_views(run, diagnosis, level), layers),
        findings_in_full(diagnosis.findings),
        settings_table(settings_of(run)),
        assumed_note(run.info.source, assumed_settings(run.info)),
        reading_notes(run.notes),
        _origin(diagnosis),
    )
    return _document(run.info.name, "".join(parts))


def html_comparison(runs: Sequence[Run], comparison: Comparison) -> str:
    """The terminal's tables as a file, and the runs' curves over one another.

    Raises ReportError where tsdownsample is not installed.
    """
    _require_thinning()
    tables = markup(comparison_text(comparison, lambda text: powers(printable(text))))
    title = " and ".join(comparison.names[:3])
    body = f'<section class="wide">{tables}</section>{_sweep(comparison)}{_courses(runs)}'
    return _document(title, body)


_LEAST_SWEPT = 3  # runs: two points show no course


def _sweep(comparison: Comparison) -> str:
    """The runs over the setting that differs, and all such settings side by side."""
    sweep, names = comparison.sweep, comparison.names
    if sweep is None or len(names) < _LEAST_SWEPT:
        return ""
    charts = (
        sweep_html(sweep, names, _focusable),
        parallel_html(comparison.swept_by, sweep, names, _focusable),
    )
    if not any(charts):
        return ""
    words = html.escape(printable(f"{sweep.sentence} {besides_text(sweep)}".strip()))
    return _section("Sweep", f"<p>{words}</p>", *charts)


def _focusable(_run: int) -> str:
    """A file has no page to lead to; its marks can be read by key all the same."""
    return 'tabindex="0" role="img"'


# --- charts --------------------------------------------------------------------------------------


def _course(run: Run, diagnosis: Diagnosis, level: float | None) -> str:
    curves = curves_of(run)
    if curves is None or not (curves.lines or curves.skipped):
        return ""
    return _section("Course", _drawn(still_message(*overview_of(curves, diagnosis, level))))


def _views(run: Run, diagnosis: Diagnosis, level: float | None) -> list[str]:
    """The layers in each view that the run has: the one that fits, the others folded."""
    views = offered(run)
    drawn = [
        _drawn(view_message(run, views, Wanted(view), diagnosis, level, switch=False))
        for view in views
    ]
    folded = [
        f"<details><summary>The layers in another view: {NAMES[view]}</summary>{part}</details>"
        for view, part in zip(views[1:], drawn[1:], strict=True)
        if part
    ]
    return [*drawn[:1], *folded]


def _courses(runs: Sequence[Run]) -> str:
    """One panel a quantity that any run has, one line a run."""
    curves = [curves_of(run) for run in runs]
    ends = [one.ends for one in curves if one is not None]
    labels = [letter(number) for number in range(len(runs))]
    present = [one.lines if one else () for one in curves]
    panels = list(compared_panels(labels, present))
    if not panels:
        return ""
    arrays: Arrays = {}
    for number, one in enumerate(curves):
        arrays |= {} if one is None else one.arrays(f"{number}.")
    picture = Picture(
        name="runs", panels=panels, ends=(min(a for a, _ in ends), max(b for _, b in ends)),
        rows=sum(one.rows for one in curves if one), reports=False,
    )  # fmt: skip
    return _section("Course", _drawn(still_message(picture, arrays)))


def _section(title: str, *parts: str) -> str:
    """A heading with its parts; empty if they are."""
    return f"<h2>{title}</h2>{''.join(parts)}" if any(parts) else ""


def _drawn(message: bytes | None) -> str:
    """A message; report.js draws the chart in its place."""
    if message is None:
        return ""
    data = base64.b64encode(message).decode()
    return (
        '<noscript><p class="dim">This chart needs JavaScript.</p></noscript>'
        f'<script type="application/octet-stream" class="message">{data}</script>'
    )


# --- the file ------------------------------------------------------------------------------------


def _document(title: str, body: str) -> str:
    """The whole file around a body."""
    script = bundled("report")
    name = html.escape(printable(title))
    style = style_sheet() + _STYLE.read_text("utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name} · ampwatch report</title><style>{style}</style></head><body><main>"
        f"{body}</main><script>{script}</script></body></html>\n"
    )


def _policy(script: str) -> str:
    """Nothing may be loaded but what a chart makes of itself, and no script but this may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}"


def _origin(diagnosis: Diagnosis) -> str:
    facts = diagnosis.run
    parts = [f"run {facts.id}", f"read as {facts.source}"]
    parts += [f"started {facts.started}"] if facts.started else []
    parts += [f"ended {facts.ended}"] if facts.ended else []
    return (
        f'<footer class="dim">{html.escape(printable(", ".join(parts)))} · ampwatch report</footer>'
    )


def _require_thinning() -> None:
    if find_spec("tsdownsample") is None:
        raise ReportError(
            "The HTML report needs tsdownsample, which is not installed here: "
            "`pip install 'ampwatch[dashboard]'`, or print the report without --html."
        )
