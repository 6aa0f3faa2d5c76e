"""A run as one HTML file that needs no network: the letter first, then charts, layers, appendix.

plotly's own script is put in from the installed plotly package, whose Python code is not loaded.
Nothing of a run is interpreted: texts are escaped, data is JSON in a block of its own, and the
page's policy lets no script run but the two that are ours.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.errors import ReportError
from ampwatch.report.letter import letter
from ampwatch.report.page.appendix import (
    assumed_note,
    findings_in_full,
    reading_notes,
    settings_table,
)
from ampwatch.report.page.curves import curves_of
from ampwatch.report.page.figure import figure
from ampwatch.report.page.layers import layers_table, windows_chart
from ampwatch.report.page.markup import markup
from ampwatch.report.palette import DARK, LIGHT, VERDICT_COLOR
from ampwatch.report.settings import assumed_settings, settings_of
from ampwatch.report.windows import telling_step
from ampwatch.text import printable

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis
    from ampwatch.store import Run

_HERE = Path(__file__).parent


def html_report(run: Run, diagnosis: Diagnosis, level: float | None) -> str:
    """The whole file; `level` is the scale that the run had established.

    Raises ReportError where plotly or tsdownsample is not installed.
    """
    return document(run.info.name, _body(run, diagnosis, level))


def document(title: str, body: str) -> str:
    """A page of its own around a body; raises ReportError without plotly or tsdownsample."""
    library = _plotly_script()
    page_script = (_HERE / "page.js").read_text("utf-8")
    name = html.escape(printable(title))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(library, page_script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name} · ampwatch report</title><style>{_style()}</style></head><body><main>"
        f"{body}</main>"
        f"{_data('palette', {'light': LIGHT, 'dark': DARK})}"
        f"<script>{library}</script><script>{page_script}</script></body></html>\n"
    )


def _body(run: Run, diagnosis: Diagnosis, level: float | None) -> str:
    step = telling_step(diagnosis)
    tone = VERDICT_COLOR[diagnosis.verdict.value]
    told = markup(letter(run.info.name, run, diagnosis, fancy=True, curves=False))
    parts = (
        f'<section class="letter" style="--tone:var(--{tone})">{told}</section>',
        _charts(run, diagnosis, level),
        windows_chart(run, step, level, diagnosis.run.final_scale),
        layers_table(run, step),
        findings_in_full(diagnosis.findings),
        settings_table(settings_of(run)),
        assumed_note(run.info.source, assumed_settings(run)),
        reading_notes(run.notes),
        _origin(diagnosis),
    )
    return "".join(parts)


def _charts(run: Run, diagnosis: Diagnosis, level: float | None) -> str:
    curves = curves_of(run)
    if curves is None or not (curves.lines or curves.skipped):
        return ""
    return course_chart(figure(curves, diagnosis, level))


def course_chart(drawn: dict[str, Any]) -> str:
    """The place of a figure, and its data."""
    height = drawn["layout"]["height"]
    return (
        f'<h2>Course</h2><div id="charts" style="height:{height}px"></div>'
        '<noscript><p class="dim">The charts need JavaScript.</p></noscript>'
        f"{_data('figure', drawn)}"
    )


def _origin(diagnosis: Diagnosis) -> str:
    facts = diagnosis.run
    parts = [f"run {facts.id}", f"read as {facts.source}"]
    parts += [f"started {facts.started}"] if facts.started else []
    parts += [f"ended {facts.ended}"] if facts.ended else []
    return (
        f'<footer class="dim">{html.escape(printable(", ".join(parts)))} · ampwatch report</footer>'
    )


# --- what the file is put together from ----------------------------------------------------------


def _plotly_script() -> str:
    for part in ("plotly", "tsdownsample"):
        found = find_spec(part)
        if found is None or found.origin is None:
            raise ReportError(
                f"The HTML report draws with {part}, which is not installed here: "
                "`pip install 'ampwatch[dashboard]'`, or read the letter without --html."
            )
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text("utf-8")


def _policy(*scripts: str) -> str:
    """No address may be asked for anything, and no script but these may run."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:"
    )


def _data(name: str, value: dict[str, Any]) -> str:
    """JSON that no HTML parser takes for anything else."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _style() -> str:
    """The palette as variables that follow the theme; on paper always the light one."""
    light, dark = (
        "".join(f"--{name}:{color};" for name, color in palette.items())
        for palette in (LIGHT, DARK)
    )
    themes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return themes + (_HERE / "page.css").read_text("utf-8")
