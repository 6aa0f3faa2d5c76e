"""The parts of the HTML report: its text, each finding in full, layers, settings, notes.

Every text is escaped: names are data, and a run's name may be an attack.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.code_to_paste import words_and_lines
from ampwatch.diagnosis.evidence_text import evidence_text
from ampwatch.diagnosis.words import steps_text
from ampwatch.printable_text import printable
from ampwatch.report.facts import powers
from ampwatch.report.last_known import Readable, last_known
from ampwatch.report.number_format_text import FORMAT_FACTS, formats_text
from ampwatch.report.painter import SEVERITY_COLOR, VERDICT_COLOR
from ampwatch.report.terminal_report import STYLES
from ampwatch.rows import Table, column

if TYPE_CHECKING:
    from ampwatch.diagnosis import Finding

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

A shaded span marks a finding's steps; the dashed line is the step to restart from. The dotted line
across the loss scale is its established level. Across the learning rate, the dotted line is the
recommended rate and the band what its title says: the 90 % interval of the highest stable rate, or,
where reruns were made, what they have shown of it."""


def said(text: str) -> str:
    """A text as HTML, nothing in it interpreted."""
    return html.escape(powers(printable(text)))


# --- the terminal's text -------------------------------------------------------------------------


def markup(shown: RenderableType) -> str:
    """The terminal's report (texts, insets, rows beside labels) as HTML, word for word."""
    if isinstance(shown, Group):
        return "".join(markup(part) for part in shown.renderables)
    if isinstance(shown, Padding):
        inset = f'<div style="margin-left:{shown.left / 2}em">'
        return f"{inset}{markup(shown.renderable)}</div>"
    if isinstance(shown, Grid):
        return _rows(shown)
    assert isinstance(shown, Text), "the report is made of nothing else"
    if not shown.plain:
        return '<div class="gap"></div>'
    tag = "pre" if shown.no_wrap else "p"
    return f"<{tag}>{_inline(shown)}</{tag}>"


def _rows(grid: Grid) -> str:
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
    rows += [("evidence", "; ".join(said(evidence_text(piece)) for piece in finding.evidence))]
    return (
        f'<section class="finding"><h3>{finding.code} {said(finding.name)}'
        f' <span class="dim">{told}</span></h3>'
        f"<p>{said(finding.summary)}</p>{_labelled(rows)}</section>"
    )


def _labelled(rows: Sequence[tuple[str, str]]) -> str:
    """Labels beside what is HTML already; empty rows are left out."""
    shown = "".join(f"<tr><th>{label}</th><td>{text}</td></tr>" for label, text in rows if text)
    return f'<table class="labelled">{shown}</table>'


def settings_table(settings: Mapping[str, str]) -> str:
    """Names and values as the record has them."""
    if not settings:
        return ""
    rows = [(said(_cut(name)), said(text)) for name, text in settings.items()][:_MOST_SETTINGS]
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


def _cut(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[:_MOST_LETTERS]}…"


def reading_notes(notes: Sequence[str]) -> str:
    """What the record lacks, and how to read the charts."""
    told = "".join(f"<li>{said(note)}</li>" for note in notes)
    lacks = f"<h2>Notes on the record</h2><ul>{told}</ul>" if notes else ""
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
_SHORT_DTYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


def layers_table(run: Readable, step: int | None) -> str:
    """Each layer's last numbers at a step, in forward order; empty without layer rows."""
    names = (
        *_FACTS,
        *FORMAT_FACTS,
        "order",
        "scale_low",
        "scale_high",
        *(one.name for one in _COLUMNS),
    )
    found = [(name, facts) for name, facts in last_known(run, names, step).items() if name]
    if not found:
        return ""
    found.sort(key=lambda one: (one[1].get("order", 0), one[0]))
    columns = [one for one in _COLUMNS if any(one.name in facts for _, facts in found)]
    narrow = ("multiplies in",) if any(formats_text(facts) for _, facts in found) else ()
    heads = (
        "layer",
        *_FACTS.values(),
        *narrow,
        *(one.axis for one in columns),
        "usable loss scales",
    )
    head = "".join(f"<th>{name}</th>" for name in heads)
    rows = ""
    for name, facts in found[:_MOST_LAYERS]:
        numbers = [one.text(facts.get(one.name)) for one in columns]
        cast = [printable(formats_text(facts))] if narrow else []
        rows += _layer_row(printable(name), facts, cast, numbers)
    at = "at the end of the record" if step is None else f"up to step {step:,}"
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
    cells += [f"<td>{html.escape(_word(facts.get(fact)))}</td>" for fact in _FACTS]
    cells += [f"<td>{html.escape(text)}</td>" for text in cast]
    cells += [f'<td class="number">{text}</td>' for text in (*numbers, _scales(facts))]
    return f'<tr data-layer="{title}">{"".join(cells)}</tr>'


def shortened(name: str, most: int) -> str:
    """A layer's name, shortened in the middle: its ends tell layers apart."""
    if len(name) <= most:
        return name
    tail = (most - 1) * 2 // 3
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"


def short_dtype(name: str) -> str:
    """A data type as people write it: fp16, bf16."""
    return _SHORT_DTYPES.get(name, name)


def _word(value: Any) -> str:
    return printable(short_dtype(str(value))) if value else ""


def _scales(facts: Mapping[str, Any]) -> str:
    """The layer's usable loss scales, in whole powers of two."""
    low, high = facts.get("scale_low"), facts.get("scale_high")
    if not high or not 0 < high < math.inf:
        return ""
    top = f"2^{math.floor(math.log2(high))}"
    if not low or low <= 0:
        return powers(f"up to {top}")
    if low > high:
        return "none"
    return powers(f"2^{math.ceil(math.log2(low))} to {top}")
