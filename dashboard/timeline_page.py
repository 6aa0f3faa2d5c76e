"""The timeline: attempts, findings, skips, checkpoints and changes, in one rug and in words."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from zoneinfo import ZoneInfo

import address
import browser_component
import numpy as np
import open_runs
import run_list
import streamlit as st
from html_text import said
from open_runs import RunSnapshot
from page_parts import refresh_run_part, show_as_text

from ampwatch.diagnosis.column_arrays import steps_of
from ampwatch.diagnosis.value_text import duration_text
from ampwatch.report.thinning import Rug
from ampwatch.report.timeline import Entry, Kind, Timeline, timeline_of
from ampwatch.rows import Table

_EVERY_S = 2.0
_KEY, _KINDS = "timeline", "timeline kinds"
_EVENTS = ("step", "time_ns", "rank", "kind", "detail")
_COLORS = {
    Kind.ATTEMPT: "muted", Kind.FINDING: "skip", Kind.SKIP: "skip", Kind.CHECKPOINT: "healthy",
    Kind.CHANGE: "rate", Kind.GUARD: "advice", Kind.ERROR: "skip", Kind.GAP: "advice",
}  # fmt: skip
_MARK_COLORS = {
    "clean": "healthy", "suspect": "advice", "poisoned": "skip",
    "error": "skip", "warning": "advice", "info": "muted",
}  # fmt: skip
_AROUND = 0.6  # of what is looked at, shown before and after it
_LEAST_AROUND = 20  # steps
_AXIS_LABELS = 5
_OVERLAPPING = {Kind.FINDING, Kind.ATTEMPT}
_MOST_LEVELS = 5  # of entries that overlap, one under another
_EDGE = 4.0  # per cent of the axis
_NAMED_WIDTH = 12.0  # per cent of a lane that a name needs, on a phone too
_FEWEST_FOLDED = 3  # stretches of skips that become one line
_LONG_S = 86_400.0  # a run that takes longer shows the day beside the time
_CELLS = 1000  # of a lane's ticks


def show(path: str) -> None:
    """Draw the Timeline page, and keep it up to date while the run goes on."""
    refresh_run_part(_draw_timeline, path, _EVERY_S, until_judged=True)


def _draw_timeline(path: str) -> None:
    run, where = open_runs.snapshot(path), address.read()
    told = run_timeline(run, where.span)
    wanted = _choose_kinds(where.kinds, {one.kind for one in told.entries})
    text = timeline_html(run, told, wanted, where)
    browser_component.html(text, key=_KEY, acts={"go": _show_whole})
    show_as_text(text)


def run_timeline(run: RunSnapshot, span: tuple[int, int] | None) -> Timeline:
    """The timeline of a run as it stands; of a span of its steps in more detail."""
    events, curves = run.read_table(Table.EVENTS, _EVENTS), run.curves
    if span is not None:
        step = steps_of(events)
        events = events.filter((step >= span[0]) & (step <= span[1]))
        curves = curves.within(span)
    skips = curves.rug(*(span or curves.ends))
    told = timeline_of(events, skips, run.attempts(), run.diagnosis_as_told(), run.curves.ends)
    if span is None:
        return told
    inside = (one for one in told.entries if one.last >= span[0] and one.first <= span[1])
    return replace(told, entries=tuple(inside))


# --- what is shown --------------------------------------------------------------------------------


def _choose_kinds(text: str | None, present: Set[Kind]) -> set[Kind]:
    """Draw a button for each kind of event that happened; without a choice all are shown."""
    named = [] if text is None else address.names_in(text)
    chosen = [kind for kind in Kind if _kind_name(kind) in named]
    st.session_state[_KINDS] = [_kind_name(kind) for kind in chosen]
    labels = {_kind_name(k): k.value for k in Kind if k in present or k in chosen}
    st.pills(
        "Show only", list(labels), key=_KINDS, selection_mode="multi", on_change=_kinds_chosen,
        format_func=lambda name: labels.get(name, name),
    )  # fmt: skip
    return set(chosen or Kind)


def _kind_name(kind: Kind) -> str:
    """The name of a kind of event in the page's address."""
    return kind.name.lower()


def _kinds_chosen() -> None:
    chosen = st.session_state[_KINDS]
    address.change(kinds=address.names_text(chosen) if chosen else None)


def _show_whole(_: object) -> None:
    address.change(span=None)


# --- as HTML --------------------------------------------------------------------------------------


def timeline_html(
    run: RunSnapshot, told: Timeline, wanted: set[Kind], where: address.Address
) -> str:
    """The timeline as HTML: its lanes of marks and, under them, each entry in words."""
    whole = "" if where.span is None else _whole(where, where.span)
    there = replace(where, run=run_list.name_of(run.path))
    links = [(one, _link(one, there, run.curves.ends)) for one in told.entries]
    shown = [(one, link) for one, link in links if one.kind in wanted]
    if not shown:
        words = "Nothing of this kind happened." if links else "Nothing has happened yet."
        return f'{whole}<p class="aw-muted aw-lanes">{words}</p>'
    span = where.span or _axis(told, run.curves.ends)
    lanes = "".join(
        _lane(kind, several, told.ticks.get(kind), span)
        for kind in Kind
        if (several := [(one, link) for one, link in shown if one.kind is kind])
    )
    rug = f'<div class="aw-lanes">{lanes}{_axis_labels(span)}</div>'
    return f"{whole}{rug}{_table(run, shown)}"


def _axis(told: Timeline, ends: tuple[int, int]) -> tuple[int, int]:
    """The first and last step of the timeline's axis; a checkpoint may follow the last step."""
    low = min(ends[0], *(one.first for one in told.entries))
    return low, max(ends[1], low + 1, *(one.last for one in told.entries))


def _whole(where: address.Address, span: tuple[int, int]) -> str:
    link = html.escape(address.link("timeline", replace(where, span=None)))
    return (
        f'<p class="aw-muted">Only steps {span[0]:,} to {span[1]:,}. '
        f'<a href="{link}" data-go="whole">Show the whole run</a></p>'
    )


# --- the rug --------------------------------------------------------------------------------------


def _lane(
    kind: Kind, links: Sequence[tuple[Entry, str]], ticks: Rug | None, span: tuple[int, int]
) -> str:
    """One lane of the timeline as HTML: events of a kind as ticks, entries as places to click.

    For the mouse and fingers; the table holds the same for keys and readers of screens.
    """
    levels = _levels([one for one, _ in links]) if kind in _OVERLAPPING else [0] * len(links)
    height = max(levels) + 1
    marks = "".join(
        _mark(one, link, (level, height), span)
        for (one, link), level in zip(links, levels, strict=True)
    )
    count = sum(one.count for one, _ in links)
    drawn = _lane_ticks(ticks, span) if ticks is not None else ""
    bare = " bare" if ticks is not None and kind is not Kind.CHECKPOINT else ""
    return (
        f'<div class="aw-lane" style="--aw-tone:var(--aw-{_COLORS[kind]})">'
        f'<span class="aw-lane-name">{kind.value} <b>{count:,}</b></span>'
        f'<div class="aw-lane-track{bare}" aria-hidden="true" style="--aw-levels:{height}">'
        f"{drawn}{marks}</div></div>"
    )


def _levels(entries: Iterable[Entry]) -> list[int]:
    """The level in its lane for each entry of the timeline, so that none hides another."""
    taken: list[int] = []
    found = []
    for one in entries:
        free = (level for level, last in enumerate(taken) if last < one.first)
        level = next(free, len(taken))
        if level == len(taken) and level < _MOST_LEVELS:
            taken.append(one.last)
        level = min(level, _MOST_LEVELS - 1)
        taken[level] = max(taken[level], one.last)
        found.append(level)
    return found


def _mark(one: Entry, link: str, place: tuple[int, int], span: tuple[int, int]) -> str:
    left, right = _percent(one.first, span), _percent(one.last + 1, span)
    level, height = place
    tone = f"--aw-tone:var(--aw-{_MARK_COLORS[one.mark]});" if one.mark in _MARK_COLORS else ""
    words = f"{_steps(one)}: {one.title}: {one.words}"
    style = f"left:{left:.2f}%;width:{right - left:.2f}%;{tone}"
    if height > 1:
        style += f"top:{100 * level / height:.1f}%;height:{100 / height:.1f}%"
    return (
        f'<a class="aw-mark {one.mark}{" single" * (one.count == 1)}" style="{style}" '
        f'title="{said(words)}" tabindex="-1" href="{link}" target="_self">'
        f"{_name_in_lane(one, right - left)}</a>"
    )


def _name_in_lane(one: Entry, width: float) -> str:
    """The first word of an entry's title, if its mark in the lane has room for it."""
    if one.kind not in _OVERLAPPING or width < _NAMED_WIDTH:
        return ""
    word = one.title.split()[0] if one.kind is Kind.FINDING else one.title
    return f"<span>{said(word)}</span>"


def _percent(step: int, span: tuple[int, int]) -> float:
    """Where a step begins on the page's axis, in per cent."""
    share = (step - span[0]) / (span[1] + 1 - span[0])
    return 100 * min(1.0, max(0.0, share))


def _lane_ticks(rug: Rug, span: tuple[int, int]) -> str:
    """The single events of a lane of the timeline as SVG ticks, at most one for each pixel."""
    width = span[1] + 1 - span[0]
    steps = np.concatenate([rug.first, rug.last])
    steps = steps[(steps >= span[0]) & (steps <= span[1])]
    cells = np.unique(((steps - span[0] + 0.5) / width * _CELLS).round(1))
    path = "".join(f"M{x:g},0V10" for x in cells.tolist())
    return (
        f'<svg viewBox="0 0 {_CELLS} 10" preserveAspectRatio="none"><path d="{path}" '
        'vector-effect="non-scaling-stroke" stroke-width="1.2" stroke="var(--aw-tone)"/></svg>'
    )


def _axis_labels(span: tuple[int, int]) -> str:
    """The labels of the timeline's axis as HTML: steps at round numbers."""
    rough = max(1.0, (span[1] - span[0]) / _AXIS_LABELS)
    size = 10 ** int(np.floor(np.log10(rough)))
    every = next(int(size * m) for m in (1, 2, 5, 10) if size * m >= rough)
    first = -(-span[0] // every) * every
    labels = "".join(
        f'<span class="{_label_side(place)}" style="left:{place:.2f}%">{step:,}</span>'
        for step in range(first, span[1] + 1, every)
        for place in (_percent(step, span),)
    )
    return f'<div class="aw-lane-axis" aria-hidden="true">{labels}</div>'


def _label_side(place: float) -> str:
    """At which end of the timeline's axis a label must be shifted to stay within it."""
    return "early" if place < _EDGE else "late" if place > 100 - _EDGE else ""


# --- the table ------------------------------------------------------------------------------------


def _table(run: RunSnapshot, links: Sequence[tuple[Entry, str]]) -> str:
    skips = [pair for pair in links if pair[0].kind is Kind.SKIP]
    folds = _FEWEST_FOLDED <= len(skips) < len(links)  # who asked for skips alone gets them all
    rows = [
        _folded_row(run, skips) if folds and one is skips[0][0] else _row(run, one, link)
        for one, link in links
        if not (folds and one.kind is Kind.SKIP) or one is skips[0][0]
    ]
    head = "".join(f'<th scope="col">{name}</th>' for name in ("step", "what", "in words", "at"))
    return (
        f'<table class="aw-happened"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _folded_row(run: RunSnapshot, links: Sequence[tuple[Entry, str]]) -> str:
    """All stretches of skips as one row of the timeline that opens."""
    entries = [one for one, _ in links]
    count = sum(one.count for one in entries)
    inside = "".join(
        f'<li><a href="{link}" target="_self">{_steps(one)}</a> <bdi>{said(one.words)}</bdi></li>'
        for one, link in links
    )
    words = f"{count:,} skips and overflows, in {len(entries):,} stretches"
    details = f'<details data-key="skips"><summary>{words}</summary><ul>{inside}</ul></details>'
    last = max(one.last for one in entries)
    whole = replace(entries[0], last=last, count=count, title="skipped")
    return _row_of(run, whole, links[0][1], details)


def _row(run: RunSnapshot, one: Entry, link: str) -> str:
    return _row_of(run, one, link, f"<bdi>{said(one.words)}</bdi>")


def _row_of(run: RunSnapshot, one: Entry, link: str, words: str) -> str:
    key = html.escape(f"{one.title} {one.first}")  # by which the keyboard's place is found again
    tone = _MARK_COLORS.get(one.mark, _COLORS[one.kind])
    look_of = (
        f'class="aw-what {one.mark or _kind_name(one.kind)}" style="--aw-tone:var(--aw-{tone})"'
    )
    cells = (
        f'<a href="{link}" target="_self" data-key="{key}">{_steps(one)}</a>',
        f"<span {look_of}>{said(one.title)}</span>",
        words,
        _time_html(run, one),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _steps(one: Entry) -> str:
    return f"{one.first:,}" if one.first == one.last else f"{one.first:,} to {one.last:,}"


def _time_html(run: RunSnapshot, one: Entry) -> str:
    """The time of day of an entry of the timeline, as its reader's clock shows it; "" if unknown.

    How long after the run's start it was is its title.
    """
    began = run.info.started_ns
    if not one.time_ns or not began or one.time_ns < began:
        return ""
    after = duration_text((one.time_ns - began) / 1e6)
    is_long = (run.last_time_ns - began) / 1e9 > _LONG_S
    when = dt.datetime.fromtimestamp(one.time_ns / 1e9, _reader_zone())
    text = f"{when:%d %b %H:%M}" if is_long else f"{when:%H:%M:%S}"
    return f'<span title="{said(f"{after} after the start")}">{text}</span>'


def _reader_zone() -> dt.tzinfo | None:
    """The time zone of this tab's browser; None is the server's own."""
    try:
        return ZoneInfo(st.context.timezone or "")
    except (KeyError, ValueError, OSError):
        return None


def _link(one: Entry, where: address.Address, ends: tuple[int, int]) -> str:
    """The link from an entry of the timeline to its steps on the overview."""
    there = replace(where, step=one.first, span=_span_around(one, ends))
    return html.escape(address.link("", there))


def _span_around(one: Entry, ends: tuple[int, int]) -> tuple[int, int]:
    """The span of steps that shows an entry of the timeline with what lies around it."""
    margin = max(_LEAST_AROUND, int((one.last - one.first) * _AROUND))
    low, high = max(ends[0], one.first - margin), min(ends[1], one.last + margin)
    return low, max(high, low + 1)
