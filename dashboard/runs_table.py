"""The runs table as its reader asked for it: its columns, what is searched, grouped, as HTML.

`ampwatch.search` is the language of the search: sweep verdict:failing -tag:bad rate>0.01 age<2d
"""

from __future__ import annotations

import html
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import address
import numpy as np
import small_charts
from address import RUNS_GROUPS, RunsView
from html_text import age_text, rate_text, said, shortened
from run_list import ListedRun, MadeEntry, Origin, RunList, all_entries

from ampwatch import search
from ampwatch.diagnosis.value_text import duration_text, scale_text, share_text
from ampwatch.errors import SearchError
from ampwatch.follow import ListEntry
from ampwatch.report.painter import VERDICT_COLOR
from ampwatch.search import Search
from ampwatch.store import OWN_SOURCE

WINDOW = 120  # rows that are sent to the browser at once
MARGIN = 40  # of them before the first in view
_ALL = "all"
_ORIGINS = {
    Origin.HERE: "this folder",
    Origin.ELSEWHERE: "other folders",
    Origin.RECEIVED: "received",
    Origin.PUBLISHED: "published",
}
_OF_ENTRIES = {"verdict", "loss", "model", "rate", "scale", "skipped", "step"}
_READ_ALL = 2000  # runs; of more, only those are judged that are seen, sorted or looked for


# --- columns --------------------------------------------------------------------------------------


_GRAVEST_FIRST = ("failing", "warning", "cut off", "incomplete", "healthy")
_DIGITS = re.compile(r"(\d+)")
_MODEL_LENGTH = 24
_NAME_LENGTH = 32
_TAGS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of the runs table; its entry is missing until it is made."""

    choice: ListedRun
    made: MadeEntry | None

    @property
    def entry(self) -> ListEntry | None:
        """The entry that was made from the row's run: verdict, figures, model."""
        return None if self.made is None else self.made.entry

    @property
    def state(self) -> str:
        """The state of the row's run in a word: live, cut off, ended or imported."""
        choice = self.choice
        if choice.live or choice.cut_off:
            return "live" if choice.live else "cut off"
        return "ended" if choice.run.ended else "imported"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the runs table: its heading, what it is sorted by, and a cell as HTML."""

    key: str
    label: str
    order: Callable[[RunRow], Any]  # None goes last, whichever way it is sorted
    cell: Callable[[RunRow], str]
    hint: str = ""
    is_number: bool = False


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """The key by which the runs table sorts names: run 9 comes before run 10."""
    parts = _DIGITS.split(text.casefold())
    return [(0, int(one[:18]), "") if one.isdecimal() else (1, 0, one) for one in parts if one]


def _verdict_order(row: RunRow) -> int | None:
    if row.entry is None or row.entry.verdict not in _GRAVEST_FIRST:
        return None
    return _GRAVEST_FIRST.index(row.entry.verdict)


def _verdict(row: RunRow) -> str:
    if row.entry is None and row.made is not None:
        return '<span class="aw-muted" title="ampwatch fleet PLACE judges it">not judged</span>'
    if row.entry is None:
        return '<span class="aw-muted">reading</span>'
    verdict = row.entry.verdict
    tone = VERDICT_COLOR[verdict]
    return f'<span class="aw-chip" style="--aw-tone:var(--aw-{tone})">{verdict}</span>'


def _run(row: RunRow) -> str:
    choice, entry = row.choice, row.entry
    name = html.escape(choice.name)
    below = (row.made.problem if row.made else "") or (entry.finding if entry else "")
    badges = "".join(_badges(row))
    full = html.escape(
        choice.title if choice.title == choice.name else f"{choice.title}: {choice.name}"
    )
    return (
        f'<div class="aw-name"><a href="@LINK@" data-act="go" data-value="{name}" '
        f'data-key="go {name}" title="{full}"><bdi>'
        f"{said(shortened(choice.title, _NAME_LENGTH))}</bdi></a>{badges}</div>"
        f'<div class="aw-muted aw-below">{said(below)}</div>'
    )


def _badges(row: RunRow) -> list[str]:
    """What is to be said beside a run's name: that it is live or cut off, and where it is."""
    found = []
    if row.choice.run.is_pinned:
        found.append('<span class="aw-badge" title="pinned: first in lists">★</span>')
    if row.choice.live:
        found.append('<span class="aw-live">live</span>')
    elif row.choice.cut_off and (row.entry is None or row.entry.verdict != "cut off"):
        found.append('<span class="aw-cut">cut off</span>')
    if row.choice.place:
        where = html.escape(str(row.choice.run.path.parent))
        found.append(f'<span class="aw-badge" title="{where}">{said(row.choice.place)}</span>')
    return found


def _tags(row: RunRow) -> str:
    tags, note = row.choice.run.tags, row.choice.run.note
    shown = "".join(f'<span class="aw-tag">{said(tag)}</span>' for tag in tags[:_TAGS_SHOWN])
    more = f" +{len(tags) - _TAGS_SHOWN}" if len(tags) > _TAGS_SHOWN else ""
    words = f'<div class="aw-muted aw-below" title="{html.escape(note)}">{said(note)}</div>'
    every = html.escape(" ".join(tags))
    return f'<div class="aw-tags" title="{every}">{shown}{more}</div>{words if note else ""}'


def _rate(row: RunRow) -> str:
    rate = row.entry.highest_rate if row.entry else None
    return "" if rate is None else rate_text(rate)


def _scale(row: RunRow) -> str:
    entry = row.entry
    if entry is None:
        return ""
    last = "" if entry.final_scale is None else said(scale_text(entry.final_scale))
    return _with_course(last, _numbers_of(entry.course), "scale")  # powers of two already


def _loss(row: RunRow) -> str:
    entry = row.entry
    if entry is None or entry.loss is None:
        return ""
    course = _numbers_of(entry.loss_course)
    if len(course) and min(course) > 0:
        course = np.log10(course)
    last = "NaN" if np.isnan(entry.loss) else f"{entry.loss:.4g}"
    tone = "skip" if np.isnan(entry.loss) else "ink"
    return _with_course(f'<b style="color:var(--aw-{tone})">{last}</b>', course, "ink")


def _numbers_of(course: str) -> np.ndarray:
    return np.array([float(word) for word in course.split()])


def _with_course(last: str, course: np.ndarray, tone: str) -> str:
    """The last value beside a small curve of all, as HTML."""
    path = small_charts.sparkline_path(course, width=70, height=20)
    spark = (  # empty too: the values stay in one column
        f'<svg viewBox="0 0 70 20" width="70" height="20" aria-hidden="true"><path d="{path}" '
        f'fill="none" stroke="var(--aw-{tone})" stroke-width="1.4"/></svg>'
    )
    return f'<div class="aw-course"><span>{last}</span>{spark}</div>'


def _skipped(row: RunRow) -> str:
    entry = row.entry
    if entry is None or (entry.final_scale is None and not entry.skipped):
        return ""
    return share_text(entry.skipped, entry.steps) if entry.skipped else "0"


def _duration_ms(row: RunRow) -> float | None:
    run = row.choice.run
    if run.source != OWN_SOURCE or not run.added_ns or run.last_time_ns <= run.added_ns:
        return None
    return (run.last_time_ns - run.added_ns) / 1e6


def _skipped_order(row: RunRow) -> float | None:
    entry = row.entry
    return entry.skipped / entry.steps if entry and entry.steps else None


def _age(row: RunRow) -> str:
    if row.choice.live:
        return "now"
    activity_ns = row.choice.last_activity_ns
    return age_text(max(10.0, (time.time_ns() - activity_ns) / 1e9)) if activity_ns else ""


COLUMNS = (
    Column("verdict", "verdict", _verdict_order, _verdict),
    Column("run", "run", lambda row: natural_key(row.choice.title), _run),
    Column(
        "loss", "loss", lambda row: row.entry.loss if row.entry else None, _loss,
        hint="the last one, and its course", is_number=True,
    ),
    Column(
        "scale", "loss scale", lambda row: row.entry.final_scale if row.entry else None, _scale,
        hint="the last one, and its course in powers of two", is_number=True,
    ),
    Column("skipped", "skipped", _skipped_order, _skipped, hint="steps", is_number=True),
    Column(
        "step", "steps", lambda row: row.entry.steps if row.entry else None,
        lambda row: f"{row.entry.steps:,}" if row.entry else "", is_number=True,
    ),
    Column(
        "duration", "duration", _duration_ms,
        lambda row: duration_text(ms) if (ms := _duration_ms(row)) else "", is_number=True,
    ),
    Column(
        "age", "updated", lambda row: (not row.choice.live, -row.choice.last_activity_ns), _age,
        hint="how long ago it was last written, or imported", is_number=True,
    ),
    Column("tags", "tags", lambda row: row.choice.run.tags or None, _tags),
    Column(
        "rate", "learning rate", lambda row: row.entry.highest_rate if row.entry else None, _rate,
        hint="the highest of the run", is_number=True,
    ),
    Column(
        "model", "model",
        lambda row: (row.entry.model.casefold() if row.entry else "") or None,
        lambda row: said(shortened(row.entry.model, _MODEL_LENGTH)) if row.entry else "",
    ),
    Column("source", "source", lambda r: r.choice.run.source, lambda r: said(r.choice.run.source)),
)  # fmt: skip
_USUALLY_LEFT_OUT = frozenset(("rate", "model"))
BY_KEY = {column.key: column for column in COLUMNS}


def in_order(rows: list[RunRow], sort: str) -> list[RunRow]:
    """The rows of the runs table in the order of a column; those without a value come last."""
    column = BY_KEY.get(sort.removeprefix("-"))
    if column is None:
        return rows
    keyed = [(column.order(row), row) for row in rows]
    known = [pair for pair in keyed if pair[0] is not None and pair[0] == pair[0]]  # nor NaN
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in known] + [row for key, row in keyed if key is None or key != key]


def groups_of(row: RunRow, group: str) -> tuple[str, ...]:
    """The groups of the runs table in which a row stands: of tags as many as it has."""
    entry, run = row.entry, row.choice.run
    if group == "tag":
        return run.tags or ("no tag",)
    if group == "day":
        if not run.added_ns:
            return ("day unknown",)
        return (f"{datetime.fromtimestamp(run.added_ns / 1e9):%Y-%m-%d}",)
    if entry is None:
        return ("not judged" if row.made else "reading",)
    if group == "verdict":
        return (entry.verdict,)
    if group == "finding":
        return (entry.finding or "no finding",)
    return (entry.model or "model unknown",)


# --- the fields of the search ---------------------------------------------------------------------


_TEXTS: dict[str, Callable[[RunRow], str]] = {
    "verdict": lambda row: row.entry.words if row.entry else "",
    "finding": lambda row: row.entry.finding if row.entry else "",
    "model": lambda row: row.entry.model if row.entry else "",
    "run": lambda row: f"{row.choice.title} {row.choice.name}",
    "tag": lambda row: " ".join(row.choice.run.tags),
    "note": lambda row: row.choice.run.note,
    "source": lambda row: row.choice.run.source,
    "host": lambda row: row.choice.run.host,
    "state": lambda row: row.state,
}
_NUMBERS: dict[str, Callable[[RunRow], float | None]] = {
    "loss": lambda row: row.entry.loss if row.entry else None,
    "rate": lambda row: row.entry.highest_rate if row.entry else None,
    "scale": lambda row: row.entry.final_scale if row.entry else None,
    "skipped": lambda row: row.entry.skipped if row.entry else None,
    "steps": lambda row: row.entry.steps if row.entry else None,
    "step": lambda row: row.entry.last_step if row.entry else None,
    "ranks": lambda row: len(row.choice.run.ranks),
    "age": lambda row: (time.time_ns() - row.choice.run.last_time_ns) / 1e9,
}
_NEED_ENTRIES = {
    "",
    "verdict",
    "finding",
    "model",
    "loss",
    "rate",
    "scale",
    "skipped",
    "steps",
    "step",
}


def parse_search(text: str) -> Search[RunRow]:
    """The conditions in the text typed to search the runs table; SearchError if not understood."""
    return search.search_for(text, FIELDS)


def text_of_row(row: RunRow) -> str:
    """All text of a row of the runs table, in which the search looks for words."""
    parts = (_TEXTS[name](row) for name in ("run", "verdict", "finding", "model", "tag", "note"))
    return " ".join([*parts, row.choice.run.source, row.state])


FIELDS = search.Fields(
    _TEXTS, _NUMBERS, text_of_row, whole=frozenset({"tag"}), judged=frozenset(_NEED_ENTRIES)
)


# --- contents -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunGroup:
    """A group's heading among the rows of the runs table."""

    name: str
    count: int
    is_folded: bool


Item = RunGroup | RunRow


@dataclass(frozen=True, slots=True)
class TableContents:
    """The rows and headings of the runs table in their order, and what is said about them."""

    items: tuple[Item, ...]
    runs: int  # that are shown
    of: int  # that are there
    unread: int
    wanted: tuple[ListedRun, ...]  # whose entries this order, search or grouping depends on
    counts: dict[Origin, int]
    origin: str
    columns: tuple[str, ...]
    trouble: str = ""


class RunsTable:
    """Makes the contents of the runs table for a view; the same while nothing has changed."""

    def __init__(self) -> None:
        self._key: object = None
        self._shown: TableContents | None = None

    def contents(self, listed: RunList, view: RunsView) -> TableContents:
        """The contents of the runs table in a view; entries that it lacks are requested."""
        entries = all_entries()
        key = (id(listed), entries.version, view)
        if self._shown is None or key != self._key:
            self._shown, self._key, self._listed = _contents(listed, view), key, listed
        return self._shown


def _contents(listed: RunList, view: RunsView) -> TableContents:
    entries = all_entries()
    counts = Counter(choice.origin for choice in listed.choices)
    origin = _shown_origin(view, counts)
    choices = [one for one in listed.choices if origin in (_ALL, one.origin.value)]
    rows = [RunRow(choice, entries.entry_of(choice)) for choice in choices]
    search, trouble = _search(view.find)
    found = in_order([row for row in rows if search.finds(row)], view.sort)
    wants_all = len(rows) <= _READ_ALL or _depends_on_entries(view, search)
    return TableContents(
        items=_grouped(found, view) if view.group else tuple(found),
        runs=len(found),
        of=len(rows),
        unread=sum(row.made is None for row in rows) if wants_all else 0,
        wanted=tuple(choices) if wants_all else (),
        counts=dict(counts),
        origin=origin,
        columns=_shown_columns(rows, view),
        trouble=trouble,
    )


def _search(text: str) -> tuple[Search[RunRow], str]:
    """The search of the runs table; if it is not understood, one that finds all, and why."""
    try:
        return parse_search(text), ""
    except SearchError as error:
        return Search(), str(error)


def _depends_on_entries(view: RunsView, search: Search[RunRow]) -> bool:
    if search.needs_entries or view.group in ("verdict", "finding", "model"):
        return True
    return view.sort.removeprefix("-") in _OF_ENTRIES


def _shown_origin(view: RunsView, counts: Counter[Origin]) -> str:
    """The origin whose runs the table shows: as chosen, else this folder, or all if it has none."""
    if view.origin == _ALL or view.origin in {origin.value for origin in counts}:
        return view.origin
    return Origin.HERE.value if counts[Origin.HERE] else _ALL


def _grouped(rows: Iterable[RunRow], view: RunsView) -> tuple[Item, ...]:
    groups: defaultdict[str, list[RunRow]] = defaultdict(list)
    for row in rows:
        for name in groups_of(row, view.group):
            groups[name].append(row)
    items: list[Item] = []
    for name in sorted(groups, key=_group_order) if view.group == "verdict" else groups:
        inside = groups[name]
        is_folded = name in view.folded
        items.append(RunGroup(name, len(inside), is_folded))
        items += [] if is_folded else inside
    return tuple(items)


def _group_order(verdict: str) -> int:
    """The gravest verdict first; what is not judged yet comes last."""
    known = verdict in _GRAVEST_FIRST
    return _GRAVEST_FIRST.index(verdict) if known else len(_GRAVEST_FIRST)


def _shown_columns(rows: Sequence[RunRow], view: RunsView) -> tuple[str, ...]:
    """The columns that the reader chose, in that order; else the usual ones that are not empty."""
    chosen = tuple(dict.fromkeys(key for key in view.columns if key in BY_KEY))
    if chosen:
        return chosen
    return tuple(key for key in _used_columns(rows) if key not in _USUALLY_LEFT_OUT)


def _used_columns(rows: Sequence[RunRow]) -> tuple[str, ...]:
    """The columns of the runs table that are not empty for all runs."""
    unused = set()
    if all(row.choice.run.source == OWN_SOURCE for row in rows):
        unused.add("source")
    if not any(row.choice.run.tags or row.choice.run.note for row in rows):
        unused.add("tags")
    if all(row.choice.origin is Origin.PUBLISHED for row in rows):
        unused |= {"loss", "skipped", "scale", "duration"}  # verdicts do not tell them
    return tuple(column.key for column in COLUMNS if column.key not in unused)


# --- as HTML -------------------------------------------------------------------------------------


def head_html(view: RunsView, columns: Sequence[str]) -> str:
    """The headings of the runs table as HTML: each sorts, and says whether it does."""
    cells = []
    for key in columns:
        column = BY_KEY[key]
        now = {key: "ascending", f"-{key}": "descending"}.get(view.sort, "none")
        mark = {"ascending": " ▲", "descending": " ▼", "none": ""}[now]
        mark = f'<i aria-hidden="true">{mark}</i>'
        hint = f'<span class="aw-aloud"> {column.hint}</span>' if column.hint else ""
        cells.append(
            f'<th scope="col" aria-sort="{now}"{_align(column.is_number)} title="{column.hint}">'
            f'<button type="button" data-act="sort" data-value="{_next_sort(view.sort, key)}" '
            f'data-key="sort {key}">{column.label}{hint}{mark}</button></th>'
        )
    return f'<tr><th scope="col"><span class="aw-aloud">chosen</span></th>{"".join(cells)}</tr>'


def _next_sort(sort: str, key: str) -> str:
    """The order after a click on a heading of the runs table: a third click ends it."""
    first, second = (f"-{key}", key) if BY_KEY[key].is_number and key != "age" else (key, f"-{key}")
    return {first: second, second: ""}.get(sort, first)


def _align(is_number: bool) -> str:  # noqa: FBT001
    return ' class="aw-num"' if is_number else ""


def body_html(items: Sequence[Item], first: int, columns: Sequence[str], chosen: set[str]) -> str:
    """The rows of the runs table in a window, from item number `first` on, as HTML."""
    where = address.read()
    rows = []
    for number, item in enumerate(items, start=first):
        if isinstance(item, RunGroup):
            rows.append(_group(item, number, len(columns)))
            continue
        link = address.link("", where.of_run(item.choice.name))
        rows.append(_row(item, number, columns, item.choice.name in chosen, html.escape(link)))
    return "".join(rows)


def _group(group: RunGroup, number: int, columns: int) -> str:
    name, unit = html.escape(group.name), "run" if group.count == 1 else "runs"
    return (
        f'<tr class="aw-group" aria-rowindex="{number + 2}">'
        f'<th colspan="{columns + 1}" scope="rowgroup">'
        f'<button type="button" data-act="fold" data-value="{name}" data-key="fold {name}" '
        f'aria-expanded="{"false" if group.is_folded else "true"}">{said(group.name)} '
        f'<span class="aw-muted">{group.count:,} {unit}</span></button></th></tr>'
    )


def _row(row: RunRow, number: int, columns: Sequence[str], is_chosen: bool, link: str) -> str:  # noqa: FBT001
    name = html.escape(row.choice.name)
    box = (
        f'<input type="checkbox" data-act="pick" data-value="{name}" data-key="pick {name}" '
        f'aria-label="choose {html.escape(row.choice.title)}"{" checked" if is_chosen else ""}>'
    )
    cells = "".join(
        f"<td{_align(BY_KEY[key].is_number)}>{BY_KEY[key].cell(row)}</td>" for key in columns
    ).replace("@LINK@", link, 1)
    mark = ' class="aw-chosen"' if is_chosen else ""
    return f'<tr data-go="{name}" aria-rowindex="{number + 2}"{mark}><td>{box}</td>{cells}</tr>'


def bar_html(shown: TableContents, view: RunsView) -> str:
    """The bar above the runs table as HTML: whose runs, in which groups, how many."""
    parts = []
    if len(shown.counts) > 1:
        chips = [_chip(origin.value, _ORIGINS[origin], shown) for origin in shown.counts]
        chips.append(_chip(_ALL, "all", shown))
        parts.append(f'<span role="group" aria-label="Whose runs">{"".join(chips)}</span>')
    options = "".join(
        f'<option value="{group}"{" selected" if group == view.group else ""}>'
        f"{group or 'nothing'}</option>"
        for group in ("", *RUNS_GROUPS)
    )
    parts.append(
        f'<label>group by <select data-act="group" data-key="group">{options}</select></label>'
    )
    parts.append(_columns_html(shown.columns))
    parts.append(f'<span class="aw-muted" role="status">{_count(shown)}</span>')
    if shown.trouble:
        parts.append(f'<span class="aw-cut" role="alert">{said(shown.trouble)}</span>')
    return "".join(parts)


def _columns_html(shown: Sequence[str]) -> str:
    """The choice of columns and of their order as HTML."""
    keys = [*shown, *(key for key in BY_KEY if key not in shown)]
    lines = "".join(
        f'<div><label><input type="checkbox" data-act="column" data-value="{key}" '
        f'data-key="column {key}"{" checked" if key in shown else ""}> {BY_KEY[key].label}</label>'
        + (
            f'<button type="button" data-act="raise" data-value="{key}" data-key="raise {key}" '
            f'aria-label="move {BY_KEY[key].label} to the left">←</button>'
            if key in shown[1:]
            else ""
        )
        + "</div>"
        for key in keys
    )
    return (
        '<details class="aw-columns" data-key="columns"><summary>Columns</summary>'
        f'<div class="aw-column-list">{lines}</div></details>'
    )


def columns_after(what: str, key: str, shown: Sequence[str]) -> tuple[str, ...]:
    """The columns once one is taken in or left out (`column`), or moved to the left (`raise`)."""
    columns = list(shown)
    if what == "column":
        kept = [one for one in columns if one != key]
        return tuple(kept or columns) if key in columns else (*columns, key)
    at = columns.index(key) if key in columns else 0
    if at:
        columns[at - 1], columns[at] = columns[at], columns[at - 1]
    return tuple(columns)


def _count(shown: TableContents) -> str:
    count = f"{shown.of:,} runs" if shown.of != 1 else "1 run"
    if shown.runs != shown.of:
        count = f"{shown.runs:,} of {count}"
    reading = f"; reading {shown.unread:,}" if shown.unread else ""
    return count + reading


def _chip(value: str, words: str, shown: TableContents) -> str:
    count = sum(shown.counts.values()) if value == _ALL else shown.counts[Origin(value)]
    is_on = "true" if shown.origin == value else "false"
    return (
        f'<button type="button" class="aw-choice" data-act="from" data-value="{value}" '
        f'data-key="from {value}" aria-pressed="{is_on}">{words} {count:,}</button>'
    )


def chosen_html(chosen: Sequence[ListedRun], gone: int, most: int, *, can_keep: bool) -> str:
    """The bar of chosen runs as HTML: compare, tag, delete, keep."""
    if not chosen and not gone:
        return ""
    where = address.read()
    link = html.escape(address.link("compare", where))
    can_compare = 2 <= len(chosen) <= most
    why = "" if can_compare else f"Compare takes two to {most} runs"
    compare = (
        f'<a class="aw-do-it" href="{link}" data-act="compare" data-key="compare">Compare</a>'
        if can_compare
        else f'<span class="aw-muted">{why}</span>'
    )
    there = (
        '<button type="button" data-act="ask-tags" data-key="ask-tags">Tags and note</button>'
        '<button type="button" data-act="ask-delete" data-key="ask-delete">Delete</button>'
        if chosen
        else ""
    )
    if can_keep:
        there += (
            '<button type="button" data-act="keep" data-key="keep" title="Move the received runs '
            'to this folder; else they go when this server ends">Keep</button>'
        )
    missing = f'<span class="aw-muted">{gone:,} of them gone</span>' if gone else ""
    return (
        f"<b>{len(chosen) + gone:,} chosen</b>{missing}{compare}{there}"
        '<button type="button" data-act="clear" data-key="clear">Choose none</button>'
    )
