"""A comparison as one HTML file: the terminal's tables, and the runs' courses over one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ampwatch.report.facts import powers
from ampwatch.report.page import course_chart, document
from ampwatch.report.page.curves import Curves, curves_of
from ampwatch.report.page.figure import TITLE, Figure
from ampwatch.report.page.markup import markup
from ampwatch.report.page.panels import PANELS, Panel
from ampwatch.report.side_by_side import LETTERS, told
from ampwatch.report.thinning import Line
from ampwatch.text import printable

if TYPE_CHECKING:
    from ampwatch.report.comparison import Comparison
    from ampwatch.store import Run

_COLORS = ("scale", "skip", "norm", "rate", "advice", "time", "ink", "muted")


def html_comparison(runs: Sequence[Run], comparison: Comparison) -> str:
    """The whole file; raises ReportError where plotly or tsdownsample is not installed."""
    tables = markup(told(comparison, lambda text: powers(printable(text))))
    title = " and ".join(comparison.names[:3])
    return document(title, f'<section class="wide">{tables}</section>{_charts(runs)}')


def _charts(runs: Sequence[Run]) -> str:
    curves = {letter: made for letter, run in zip(LETTERS, runs, strict=False)
              if (made := curves_of(run)) is not None}  # fmt: skip
    drawn = _figure(curves)
    return "" if drawn is None else course_chart(drawn)


def _figure(curves: dict[str, Curves]) -> dict[str, Any] | None:
    """One panel a quantity that any run tells, one colour a run."""
    panels = [(panel, lines) for panel in PANELS if (lines := list(_lines(panel, curves)))]
    if not panels:
        return None
    made, top = Figure(sum(TITLE + panel.height for panel, _ in panels)), 0
    for number, (panel, lines) in enumerate(panels):
        words = tuple((f" {mine.name}", mine.color) for mine, _ in lines)
        titled = replace(panel, title=((_plain(panel), "muted"), *words))
        made.add_together(number, titled, lines, top)
        top += TITLE + panel.height
    ends = [one.ends for one in curves.values()]
    return made.finished((min(a for a, _ in ends), max(b for _, b in ends)), ())


def _plain(panel: Panel) -> str:
    return "".join(text for text, _ in panel.title)


def _lines(panel: Panel, curves: dict[str, Curves]) -> Iterator[tuple[Panel, Line]]:
    for number, (letter, one) in enumerate(curves.items()):
        line = one.lines.get(panel.column)
        if line is not None:
            color = _COLORS[number % len(_COLORS)]
            yield replace(panel, name=letter, color=color), line
