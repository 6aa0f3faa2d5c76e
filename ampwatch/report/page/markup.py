"""The letter as HTML: the very texts that the terminal is given, in their order, and no others.

Every text is escaped: names are data, and a run's name may be an attack.
"""

from __future__ import annotations

import html
import io
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.report.letter import STYLES
from ampwatch.report.palette import SEVERITY_COLOR, VERDICT_COLOR


def markup(shown: RenderableType) -> str:
    """What the letter is made of (texts, insets, rows beside labels), as HTML."""
    if isinstance(shown, Group):
        return "".join(markup(part) for part in shown.renderables)
    if isinstance(shown, Padding):
        inset = f'<div style="margin-left:{shown.left / 2}em">'
        return f"{inset}{markup(shown.renderable)}</div>"
    if isinstance(shown, Grid):
        return _rows(shown)
    assert isinstance(shown, Text), "the letter is made of nothing else"
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
        said = f'<span style="color:var(--{tone})">{said}</span>'
    return f"<b>{said}</b>" if style.bold else said


def _tones() -> dict[object, str]:
    """The palette's name of each colour that the letter uses."""
    names = {**VERDICT_COLOR, **SEVERITY_COLOR}
    return {Style.parse(style).color: names[word] for word, style in STYLES.items()}
