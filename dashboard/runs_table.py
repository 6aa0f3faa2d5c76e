"""The runs table as its reader asked for it: filtered, grouped, as HTML."""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import address
from address import RUNS_GROUPS, RunsView
from html_text import said
from run_list import ListedRun, Origin, RunList
from runs_columns import BY_KEY, COLUMNS, RunRow, groups_of, in_order
from runs_entries import all_entries
from runs_search import Search, SearchError, parse_search

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
_OF_ENTRIES = {"verdict", "model", "rate", "scale", "skipped", "step"}
_READ_ALL = 2000  # runs; of more, only those are judged that are seen, sorted or looked for


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
        columns=_used_columns(rows),
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
    for name, inside in groups.items():
        is_folded = name in view.folded
        items.append(RunGroup(name, len(inside), is_folded))
        items += [] if is_folded else inside
    return tuple(items)


def _used_columns(rows: Sequence[RunRow]) -> tuple[str, ...]:
    """The columns of the runs table that are not empty for all runs."""
    unused = set()
    if all(row.choice.run.source == OWN_SOURCE for row in rows):
        unused.add("source")
    if not any(row.choice.run.tags or row.choice.run.note for row in rows):
        unused.add("tags")
    if not any(row.entry and row.entry.model for row in rows):
        unused.add("model")
    if all(row.choice.origin is Origin.PUBLISHED for row in rows):
        unused |= {"skipped", "scale"}  # verdicts do not tell them
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
    options = (
        "".join(
            f'<option value="{group}"{" selected" if group == view.group else ""}>{group}</option>'
            for group in ("", *RUNS_GROUPS)
        )
        .replace('value=""></option>', 'value="">nothing</option>')
        .replace('value="" selected></option>', 'value="" selected>nothing</option>')
    )
    parts.append(
        f'<label>group by <select data-act="group" data-key="group">{options}</select></label>'
    )
    parts.append(f'<span class="aw-muted" role="status">{_count(shown)}</span>')
    if shown.trouble:
        parts.append(f'<span class="aw-cut" role="alert">{said(shown.trouble)}</span>')
    return "".join(parts)


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
