"""A run, or several compared, as one HTML file that needs no network.

The text comes first, then the dashboard's charts, the layers and all details. Nothing of a run is
interpreted: every text is escaped, because names are data and a run's name may be an attack. Data
is in blocks of its own, and the page's policy allows no script but ours.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.scale_history import EstablishedScale
from ampwatch.diagnosis.value_text import evidence_text, powers, short_dtype, shortened, steps_text
from ampwatch.errors import ReportError
from ampwatch.printable_text import cut, printable
from ampwatch.report.comparison_text import comparison_text, letter
from ampwatch.report.facts import facts_of, telling_step
from ampwatch.report.format_losses import formats_text
from ampwatch.report.last_layer_values import FORMAT_FACTS, Readable, last_known
from ampwatch.report.layer_views import NAMES, WHAT_IF, Wanted, offered, view_message
from ampwatch.report.letter import Letter, begun_as_told, letter_of
from ampwatch.report.overview_chart import (
    compared_panels,
    curves_of,
    overview_of,
    ranks_to_draw,
)
from ampwatch.report.painter import SEVERITY_COLOR, VERDICT_COLOR, bundled, style_sheet
from ampwatch.report.painter.message import Arrays, Picture, still_message
from ampwatch.report.scale_windows import range_text, windows_at
from ampwatch.report.settings import assumed_settings, settings_of
from ampwatch.report.step_notes import step_notes_of
from ampwatch.report.sweep import besides_text, parallel_html, sweep_html
from ampwatch.report.terminal_report import STYLES, LetterPart, advice_rows, first_line, parts_of
from ampwatch.rows import Table, column

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis, Finding
    from ampwatch.report.comparison import Comparison
    from ampwatch.store import Run

_STYLE = Path(__file__).with_name("report.css")
LETTER_STYLE = _STYLE.with_name("letter.css")


def html_report(run: Run, diagnosis: Diagnosis, established: EstablishedScale | None) -> str:
    """A run's report as one HTML file.

    Raises ReportError where tsdownsample is not installed.
    """
    _require_thinning()
    step = telling_step(diagnosis)
    tone = VERDICT_COLOR[diagnosis.verdict.value]
    layers = layers_table(run, step)
    told = letter_of(run.info.name, run, diagnosis)
    band, more = letter_html(told)
    parts = (
        f'<section class="verdict" style="--tone:var(--aw-{tone})">{band}</section>',
        _course(run, begun_as_told(diagnosis, told), established),
        more,
        _section("Layers", *_views(run, diagnosis), layers),
        findings_in_full(diagnosis.findings),
        advice_in_full(run, diagnosis),
        settings_table(settings_of(run)),
        assumed_note(run.info.source, assumed_settings(run.info)),
        reading_notes(run.notes),
        _origin(diagnosis),
    )
    return _document(run.info.name, "".join(parts))


def html_comparison(runs: Sequence[Run], comparison: Comparison) -> str:
    """A comparison as one HTML file: the terminal's tables, and the runs' curves together.

    Raises ReportError where tsdownsample is not installed.
    """
    _require_thinning()
    tables = report_as_html(comparison_text(comparison, lambda text: powers(printable(text))))
    title = " and ".join(comparison.names[:3])
    body = f'<section class="wide">{tables}</section>{_sweep(comparison)}{_courses(runs)}'
    return _document(title, body)


_LEAST_SWEPT = 3  # runs: two points show no course


def _sweep(comparison: Comparison) -> str:
    """The HTML of a sweep: runs over the setting that differs, and all such settings."""
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


# --- the letter ----------------------------------------------------------------------------------


_IN_THE_BAND = frozenset(("What to do", "How sure"))


def letter_html(letter: Letter) -> tuple[str, str]:
    """The letter as HTML, word for word: its band, as on the page, and what stands below charts."""
    verdict, name, about = first_line(letter)
    tone = VERDICT_COLOR[letter.verdict]
    head = (
        f'<p><b class="mark {letter.verdict}" style="color:var(--aw-{tone})">{verdict}</b> '
        f"&ensp;<b>{_escaped(name)}</b> &ensp;"
        f'<span class="dim">{_escaped(about)}</span></p>'
    )
    title = f"<h1>{_escaped(letter.title)} {_codes(letter.codes)}</h1>" if letter.title else ""
    opening = "".join(f"<p>{_escaped(str(one))}</p>" for one in letter.opening)
    told = {part.heading: _letter_part(part) for part in parts_of(letter)}
    band = "".join(told.pop(heading) for heading in list(told) if heading in _IN_THE_BAND)
    more = "".join(told.values())
    return head + title + opening + band, f'<section class="more">{more}</section>'


def _codes(codes: Sequence[str]) -> str:
    return f'<span class="dim">({" ".join(codes)})</span>'


def _letter_part(part: LetterPart) -> str:
    if not part.lines:
        return ""
    rows = "".join(
        f"<tr><th>{_escaped(left)}</th><td>{_escaped(text)}</td></tr>"
        if left
        else f'<tr><td colspan="2">{_escaped(text)}</td></tr>'
        for left, text in part.lines
    )
    return f'<h3>{part.heading}</h3><table class="lines">{rows}</table>'


# --- charts --------------------------------------------------------------------------------------


def _course(run: Run, diagnosis: Diagnosis, established: EstablishedScale | None) -> str:
    curves = curves_of(run, ranks_to_draw(sorted(run.ranks), diagnosis))
    if curves is None or not (curves.lines or curves.skipped):
        return ""
    scene = overview_of(curves, diagnosis, established, run.info.name, step_notes_of(run))
    return _section("Course", _drawn(still_message(*scene)))


def _views(run: Run, diagnosis: Diagnosis) -> list[str]:
    """The HTML of each view of the layers: the one that fits, the others folded.

    What if is folded too in a run with trouble: another format is no answer to it.
    """
    views = offered(run)
    drawn = [_drawn(view_message(run, views, Wanted(view), diagnosis)) for view in views]
    is_open = views[:1] != (WHAT_IF,) or diagnosis.calm is not None
    folded = [
        f"<details><summary>The layers in another view: {NAMES[view]}</summary>{part}</details>"
        for view, part in list(zip(views, drawn, strict=True))[is_open:]
        if part
    ]
    return [*drawn[:is_open], *folded]


def _courses(runs: Sequence[Run]) -> str:
    """The HTML of compared runs' curves: one panel a quantity, one line a run."""
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
    """The HTML of a heading with its parts; empty if they are."""
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
    """The whole HTML file around a body."""
    script = bundled("report")
    name = html.escape(printable(title))
    style = style_sheet() + LETTER_STYLE.read_text("utf-8") + _STYLE.read_text("utf-8")
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
            "`pip install -e '.[dashboard]'`, or write the report as text."
        )


_MOST_SETTINGS, _MOST_LETTERS, _MOST_LAYERS = 500, 120, 400
_NAME_LETTERS = 34

HOW_TO_READ = """\
The loss scale is drawn on an axis of powers of two, each step with the scale that its gradients
had. Each tick below it is a skipped step. No skipped step is left out; ticks closer than a pixel
are drawn as one.

A line has at most 2,000 points, chosen so that every peak keeps its height. It breaks where values
are missing or not finite. Point at a chart to read its values. Drag to zoom, double-click to see
the whole run.

Gradient norms are unscaled and taken before clipping, unless the notes say otherwise.

A shaded span marks a finding's steps; the dashed line is the checkpoint to restart from. The dotted
line across the loss scale is its established level. Across the learning rate, the dotted line is
the recommended one and the band what its title says: the estimated range of the highest stable
learning rate, or, where reruns were made, what they have shown of it."""


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def said(text: str) -> str:
    """A text as HTML, nothing in it interpreted."""
    return html.escape(powers(printable(text)))


# --- the terminal's text -------------------------------------------------------------------------


def report_as_html(shown: RenderableType) -> str:
    """The terminal's report (texts, insets, rows beside labels) as HTML, word for word."""
    if isinstance(shown, Group):
        return "".join(report_as_html(part) for part in shown.renderables)
    if isinstance(shown, Padding):
        inset = f'<div style="margin-left:{shown.left / 2}em">'
        return f"{inset}{report_as_html(shown.renderable)}</div>"
    if isinstance(shown, Grid):
        return _table_rows(shown)
    assert isinstance(shown, Text), "the report is made of nothing else"
    if not shown.plain:
        return '<div class="gap"></div>'
    tag = "pre" if shown.no_wrap else "p"
    return f"<{tag}>{_inline(shown)}</{tag}>"


def _table_rows(grid: Grid) -> str:
    columns = [[*column.cells] for column in grid.columns]
    wide = ' class="labelled"' if grid.columns[0].no_wrap else ""
    rows = "".join(f"<tr>{_cells(cells)}</tr>" for cells in zip(*columns, strict=True))
    return f"<table{wide}>{rows}</table>"


def _cells(cells: Sequence[RenderableType]) -> str:
    texts = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells]
    head, *rest = (_inline(text) for text in texts)
    return f"<th>{head}</th>" + "".join(f"<td>{text}</td>" for text in rest)


def _inline(text: Text) -> str:
    console = Console(file=io.StringIO(), color_system="truecolor", emoji=False, markup=False)
    whole = text.copy()
    whole.stylize_before(text.style)  # rich leaves it out where nothing else is styled
    return "".join(_styled(part.text, part.style) for part in whole.render(console))


def _styled(text: str, style: Style | None) -> str:
    said = html.escape(text)
    if style is None:
        return said
    if style.dim:
        said = f'<span class="dim">{said}</span>'
    tone = None if style.color is None else _tones().get(style.color)
    if tone:
        said = f'<span style="color:var(--aw-{tone})">{said}</span>'
    return f"<b>{said}</b>" if style.bold else said


def _tones() -> dict[object, str]:
    """The palette's name of each colour that the terminal uses."""
    names = {**VERDICT_COLOR, **SEVERITY_COLOR}
    return {Style.parse(style).color: names[word] for word, style in STYLES.items()}


# --- findings and settings -----------------------------------------------------------------------


def findings_in_full(findings: Sequence[Finding]) -> str:
    """The HTML of every finding with its cause, remedy and evidence."""
    if not findings:
        return ""
    return "<h2>Findings in full</h2>" + "".join(_finding(finding) for finding in findings)


def _finding(finding: Finding) -> str:
    when = steps_text(finding.first_step, finding.last_step)
    where = [f"{finding.severity.value}", when, finding.layer and f"layer {finding.layer}"]
    where += [finding.because_of and f"because of {finding.because_of}"]
    told = said(", ".join(part for part in where if part))
    rows = [("muted", said(finding.muted or "")), ("why", said(finding.cause))]
    rows += [("do", said(finding.action))]
    rows += [("evidence", "; ".join(said(evidence_text(piece)) for piece in finding.evidence))]
    return (
        f'<section class="finding"><h3>{finding.code} {said(finding.name)}'
        f' <span class="dim">{told}</span></h3>'
        f"<p>{said(finding.summary)}</p>{_labelled(rows)}</section>"
    )


def advice_in_full(run: Run, diagnosis: Diagnosis) -> str:
    """The HTML of the advice on the learning rate and the scaler, with its reasons; the facts."""
    rows = [(label, said(text)) for label, text in advice_rows(run, diagnosis)]
    facts = [(fact.label, said(fact.text)) for fact in facts_of(run, diagnosis)]
    return f"<h2>Learning rate and facts</h2>{_labelled([*rows, *facts])}"


def _labelled(rows: Sequence[tuple[str, str]]) -> str:
    """Labels beside what is HTML already; empty rows are left out."""
    shown = "".join(f"<tr><th>{label}</th><td>{text}</td></tr>" for label, text in rows if text)
    return f'<table class="labelled">{shown}</table>'


def settings_table(settings: Mapping[str, str]) -> str:
    """The HTML of the settings: names and values as the record has them."""
    if not settings:
        return ""
    rows = [(said(cut(name, _MOST_LETTERS)), said(text)) for name, text in settings.items()][
        :_MOST_SETTINGS
    ]
    hidden = len(settings) - len(rows)
    more = f'<p class="dim">{hidden:,} more settings are in run.json.</p>' if hidden > 0 else ""
    return f'<h2>Settings</h2><div class="settings">{_labelled(rows)}</div>{more}'


def assumed_note(source: str, settings: Mapping[str, str]) -> str:
    """The framework's defaults that the scale was read against: the log does not state them."""
    if not settings:
        return ""
    texts = ", ".join(f"{name.split('.')[-1]} {text}" for name, text in settings.items())
    sentence = f"Not stated in the log, read as {source} sets them: {texts}."
    return f'<p class="dim">{said(sentence)}</p>'


def reading_notes(notes: Sequence[str]) -> str:
    """The HTML of what the record lacks, and of how to read the charts."""
    told = "".join(f"<li>{said(note)}</li>" for note in notes)
    lacks = f"<h2>Notes on the log</h2><ul>{told}</ul>" if notes else ""
    parts = (" ".join(part.split()) for part in HOW_TO_READ.split("\n\n"))
    guide = "".join(f"<p>{said(part)}</p>" for part in parts)
    return f'{lacks}<h2>How to read this</h2><div class="dim">{guide}</div>'


# --- layers --------------------------------------------------------------------------------------

_FACTS = {"kind": "kind", "param_dtype": "weights", "output_dtype": "output"}
_COLUMNS = tuple(
    column(Table.LAYERS, name)
    for name in ("grad_norm", "act_amax", "log2_headroom", "underflow_share", "update_ratio",
                 "moment_ratio")
)  # fmt: skip


def layers_table(run: Readable, step: int | None) -> str:
    """The HTML of each layer's last numbers, in forward order; empty without layer rows."""
    shown = (one.name for one in _COLUMNS)
    names = (*_FACTS, *FORMAT_FACTS, "order", *shown)
    found = [(name, facts) for name, facts in last_known(run, names, step).items() if name]
    if not found:
        return ""
    found.sort(key=lambda one: (one[1].get("order", 0), one[0]))
    columns = [one for one in _COLUMNS if any(one.name in facts for _, facts in found)]
    narrow = ("multiplies in",) if any(formats_text(facts) for _, facts in found) else ()
    axes = (one.axis for one in columns)
    heads = ("layer", *_FACTS.values(), *narrow, *axes, "usable loss scales")
    head = "".join(f"<th>{name}</th>" for name in heads)
    rows = ""
    sample = windows_at(run, step)
    windows = {one.layer: range_text(one) for one in sample.windows} if sample else {}
    for name, facts in found[:_MOST_LAYERS]:
        numbers = [one.text(facts.get(one.name)) for one in columns]
        numbers.append(powers(windows.get(name, "")))
        cast = [printable(formats_text(facts))] if narrow else []
        rows += _layer_row(printable(name), facts, cast, numbers)
    at = "at the end of the log" if step is None else f"up to step {step:,}"
    hidden = len(found) - _MOST_LAYERS
    more = f" {hidden} more layers are not shown; `ampwatch export` has all." if hidden > 0 else ""
    return (
        f'<p class="dim layers">In forward order, as last sampled {at}.{more}</p>'
        f'<div class="wide"><table class="rows"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _layer_row(
    name: str, facts: Mapping[str, Any], cast: Sequence[str], numbers: Sequence[str]
) -> str:
    title, shown = html.escape(name), html.escape(shortened(name, _NAME_LETTERS))
    cells = [f'<td title="{title}">{shown}</td>']
    words = (short_dtype(str(facts.get(fact) or "")) for fact in _FACTS)
    cells += [f"<td>{html.escape(printable(word))}</td>" for word in words]
    cells += [f"<td>{html.escape(text)}</td>" for text in cast]
    cells += [f'<td class="number">{text}</td>' for text in numbers]
    return f'<tr data-layer="{title}">{"".join(cells)}</tr>'
