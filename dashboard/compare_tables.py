"""The tables of a comparison as HTML: where runs diverge, their figures, settings that differ."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence, Set

import address
from html_text import said, shortened

from ampwatch.diagnosis.value_text import count_text
from ampwatch.printable_text import printable
from ampwatch.report.comparison import BEST, END, Comparison
from ampwatch.report.comparison_text import grouped_partings, parting_parts, parting_sentences
from ampwatch.report.overview_chart import group_of
from ampwatch.report.painter import VERDICT_COLOR, line_style
from ampwatch.report.sweep import RATE

_BORDERS = {"solid": "solid", "dot": "dotted", "dash": "dashed"}
_NAME_LETTERS = 40
_MOST_NAMED = 8  # runs in a line that is folded; unfolded it names all
_MOST_BESIDE = 6  # settings in the table of runs
_IN_ITS_OWN_WAY = frozenset({"verdict", "headline"})
_NOT_LOGGED = '<span class="aw-muted">not logged</span>'


def run_attributes(name: str) -> str:
    """The HTML attributes of an element that leads to a compared run and is lit with it."""
    target = html.escape(address.link("", address.read().of_run(name)))
    return f'href="{target}" data-go="{_attribute(name)}" {lit(name)}'


def lit(name: str) -> str:
    """The HTML attribute of an element that is lit with a compared run."""
    return f'data-light="{_attribute(group_of(name))}"'


def _attribute(text: str) -> str:
    return html.escape(text, quote=True)


# --- where they part -----------------------------------------------------------------------------


def divergences_html(comparison: Comparison, unparted: int) -> str:
    """The divergences of compared runs in words, as HTML: where each parts and by what."""
    first, *others = comparison.names
    if unparted:
        words = f"Looking for the step where {count_text(unparted, 'run')} part from {first}."
        return f'<section class="aw-partings"><p role="status">{said(words)}</p></section>'
    each = [
        list(parting_sentences(one, first, name))
        for one, name in zip(comparison.partings, others, strict=True)
    ]
    if len(others) == 1:
        head, *more = parting_parts(comparison.partings[0], first, others[0])
        rest = [" ".join(more), " ".join(each[0][1:])]
        told = f"<p><b>{said(head)}</b></p>" + "".join(f"<p>{said(t)}</p>" for t in rest if t)
    else:
        told = _divergence_groups(comparison, each)
    about = f'<p class="aw-muted">{said(_about(comparison))}</p>' if comparison.uncounted else ""
    return f'<section class="aw-partings" aria-label="Where they part">{told}{about}</section>'


def _divergence_groups(comparison: Comparison, each: Sequence[Sequence[str]]) -> str:
    """Compared runs that part alike in one line as HTML; each run's own sentences are folded."""
    names = comparison.names
    parts = []
    for text, numbers in grouped_partings(comparison.partings):
        runs = ", ".join(_named(names[number]) for number in numbers[:_MOST_NAMED])
        more = len(numbers) - _MOST_NAMED
        runs += f" and {more:,} more" if more > 0 else ""
        full = "".join(
            f"<dt>{_named(names[number])}</dt><dd>{said(' '.join(each[number - 1]))}</dd>"
            for number in numbers
        )
        parts.append(
            f'<details data-key="{_attribute(text)}"><summary><b>'
            f"{count_text(len(numbers), 'run')}: {said(text)}</b> ({runs})</summary>"
            '<div class="aw-each" tabindex="0" role="region" aria-label="Each of them">'
            f"<dl>{full}</dl></div></details>"
        )
    return f"<p>Compared with {_named(names[0])}:</p>{''.join(parts)}"


def _named(name: str) -> str:
    short = said(shortened(name, _NAME_LETTERS))
    return f'<bdi class="aw-named" title="{_attribute(printable(name))}" {lit(name)}>{short}</bdi>'


def _about(comparison: Comparison) -> str:
    return f"The steps of {', '.join(comparison.uncounted)} are counted: their log has no numbers."


# --- figures -------------------------------------------------------------------------------------


def runs_html(
    comparison: Comparison, styles: Mapping[str, int], live: Set[str], order: str | None = None
) -> str:
    """The table of compared runs as HTML, the best loss first; numbers with their difference.

    `order` is the column by which they are sorted instead; "-" before it is from the end.
    """
    names = sorted(
        (name for name in comparison.figures if name not in _IN_ITS_OWN_WAY),
        key=lambda name: (END, BEST, name).index(name),
    )
    settings = comparison.settings if _table_has_settings(comparison) else {}
    if any(name == RATE or name.endswith(".lr") for name in settings):
        names = [name for name in names if name != RATE]  # it stands there already
    columns = ("run", "verdict", *settings, *names)
    chosen = order if order is not None and order.removeprefix("-") in columns else None
    heads = "".join(_heading(name, chosen) for name in columns)
    rows = "".join(
        f"<tr {lit(comparison.names[run])}>{''.join(_cells(comparison, run, names, styles, live))}"
        "</tr>"
        for run in _in_order(comparison, chosen)
    )
    how = "by the loss at the end, the best first" if END in comparison.numbers else "as chosen"
    if chosen is not None:
        how = f"by {chosen.removeprefix('-')}"
        how += ", the greatest first" if chosen.startswith("-") else ""
    base = _named(comparison.names[0])
    return (
        f'<p class="aw-muted aw-order">Sorted {said(how)}; differences are to {base}.</p>'
        '<div class="aw-compared" tabindex="0" role="region" '
        f'aria-label="Runs, {_attribute(printable(how))}">'
        f'<table class="aw-runs"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _heading(name: str, order: str | None) -> str:
    """A heading of the table of compared runs; clicks sort up, then down, then as before."""
    now = {name: "ascending", f"-{name}": "descending"}.get(order or "", "none")
    after = {"none": name, "ascending": f"-{name}", "descending": ""}[now]
    mark = {"none": "", "ascending": " ▲", "descending": " ▼"}[now]
    return (
        f'<th scope="col" aria-sort="{now}"><button type="button" data-sort="{_attribute(after)}" '
        f'data-key="sort {_attribute(name)}">{said(name)}{mark}</button></th>'
    )


def _in_order(comparison: Comparison, order: str | None) -> list[int]:
    """The compared runs in the order of a column; those without a value come last, either way."""
    by_outcome = comparison.by_outcome
    if order is None:
        return by_outcome
    values = _column_values(comparison, order.removeprefix("-"))
    known = [run for run in by_outcome if values[run] not in (None, "")]
    rest = [run for run in by_outcome if run not in known]
    return (
        sorted(known, key=lambda run: _sort_key(values[run]), reverse=order.startswith("-")) + rest
    )


def _column_values(comparison: Comparison, column: str) -> Sequence[str | float | None]:
    """What a column of the comparison holds for each run: numbers where it has them."""
    if column == "run":
        return comparison.names
    if column in comparison.numbers:
        return comparison.numbers[column]
    return comparison.figures.get(column) or comparison.settings[column]


def _sort_key(value: str | float | None) -> tuple[int, float, str]:
    """By what cells of the comparison are sorted: numbers, then nan, then words by the alphabet."""
    try:
        number = float(value or 0.0)
    except ValueError:
        return 2, 0.0, str(value).casefold()
    return (1, 0.0, "") if math.isnan(number) else (0, number, "")


def _table_has_settings(comparison: Comparison) -> bool:
    """Whether the table of compared runs has columns for the settings that differ: they are few."""
    return len(comparison.settings) <= min(len(comparison.names), _MOST_BESIDE)


def _cells(
    comparison: Comparison,
    run: int,
    names: Sequence[str],
    styles: Mapping[str, int],
    live: Set[str],
) -> Iterator[str]:
    name = comparison.names[run]
    badge = ' <span class="aw-live">live</span>' if name in live else ""
    short = said(shortened(name, _NAME_LETTERS))
    yield (
        f"<td>{line_key(styles[name])}<a {run_attributes(name)} "
        f'title="{_attribute(printable(name))}"><bdi>{short}</bdi></a>{badge}</td>'
    )
    verdict = comparison.figures["verdict"][run]
    tone = VERDICT_COLOR.get(verdict.partition(",")[0], "muted")
    head = comparison.figures.get("headline", ("",) * len(comparison.names))[run]
    yield (
        f'<td><span class="aw-chip" style="--aw-tone:var(--aw-{tone})">{said(verdict)}</span> '
        f'<span class="aw-muted">{said(head)}</span></td>'
    )
    if _table_has_settings(comparison):
        for row in comparison.settings.values():  # a command may be long; the loss stays in sight
            title = _attribute(printable(row[run] or ""))
            yield f'<td class="aw-set"><span title="{title}">{_value(row[run])}</span></td>'
    for figure in names:
        apart = comparison.differences.get(figure, ())
        more = f' <span class="aw-muted">{said(apart[run])}</span>' if run and apart else ""
        text = comparison.figures[figure][run]
        yield f"<td>{said(text) + more if text else _NOT_LOGGED}</td>"


def line_key(number: int) -> str:
    """A small sample of a compared run's line in the chart, as HTML: its colour and dashes."""
    color, dash = line_style(number)
    return f'<i class="aw-key" style="border-top:3px {_BORDERS[dash]} var(--aw-{color})"></i>'


# --- settings ------------------------------------------------------------------------------------


def settings_html(comparison: Comparison, styles: Mapping[str, int]) -> str:
    """The settings of compared runs as HTML; those that are the same in all are folded."""
    title = '<h2 class="aw-part">Settings that differ</h2>'
    differ = (
        "" if _table_has_settings(comparison) else title + _differing_settings(comparison, styles)
    )
    if not comparison.settings:
        differ = '<p class="aw-muted">No recorded setting differs.</p>'
    same = ""
    if comparison.same_settings:
        rows = "".join(
            f"<tr><th>{said(name)}</th><td>{said(text)}</td></tr>"
            for name, text in comparison.same_settings.items()
        )
        count = count_text(len(comparison.same_settings), "setting")
        verb = "is" if len(comparison.same_settings) == 1 else "are"
        same = (
            f'<details data-key="same"><summary>{count} {verb} the same in all</summary>'
            f'<div class="aw-compared"><table class="aw-runs aw-settings">{rows}</table></div>'
            "</details>"
        )
    return f'<section aria-label="Settings">{differ}{same}</section>'


def _differing_settings(comparison: Comparison, styles: Mapping[str, int]) -> str:
    """The table of settings in which compared runs differ: a row a setting, or a row a run."""
    runs = [f"{line_key(styles[name])}{_named(name)}" for name in comparison.names]
    names = [said(name) for name in comparison.settings]
    values = [[_value(value) for value in row] for row in comparison.settings.values()]
    if len(runs) > len(names):
        heads, labels, cells = names, runs, [list(row) for row in zip(*values, strict=True)]
        marks = [f" {lit(name)}" for name in comparison.names]
    else:
        heads, labels, cells, marks = runs, names, values, [""] * len(names)
    head = "".join(f"<th>{text}</th>" for text in ("", *heads))
    body = "".join(
        f"<tr{mark}><th>{label}</th>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for mark, label, row in zip(marks, labels, cells, strict=True)
    )
    return (
        '<div class="aw-compared" tabindex="0" role="region" aria-label="Settings that differ">'
        f'<table class="aw-runs aw-settings"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def _value(text: str | None) -> str:
    return '<span class="aw-muted">-</span>' if text is None else said(text)
