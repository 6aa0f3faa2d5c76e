"""The columns of the runs table: each cell's HTML, what it is sorted and grouped by."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import small_charts
from html_text import age_text, rate_text, said, shortened
from run_list import ListedRun, Origin
from runs_entries import MadeEntry

from ampwatch.diagnosis.value_text import scale_text, share_text
from ampwatch.follow import ListEntry
from ampwatch.report.painter import VERDICT_COLOR
from ampwatch.store import OWN_SOURCE

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
    full = html.escape(choice.title)
    return (
        f'<div class="aw-name"><a href="@LINK@" data-act="go" data-value="{name}" '
        f'data-key="go {name}" title="{full}"><bdi>'
        f"{said(shortened(choice.title, _NAME_LENGTH))}</bdi></a>{badges}</div>"
        f'<div class="aw-muted aw-below">{said(below)}</div>'
    )


def _badges(row: RunRow) -> list[str]:
    found = []
    if row.choice.live:
        found.append('<span class="aw-live">live</span>')
    elif row.choice.cut_off:
        found.append('<span class="aw-cut">cut off</span>')
    else:
        found.append(f'<span class="aw-badge">{row.state}</span>')
    if row.choice.origin is not Origin.HERE:
        words = "other folder" if row.choice.origin is Origin.ELSEWHERE else row.choice.origin.value
        where = html.escape(str(row.choice.run.path.parent))
        found.append(f'<span class="aw-badge" title="{where}">{words}</span>')
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
    powers = [float(word) for word in entry.course.split()]
    path = small_charts.sparkline_path(np.exp2(powers), width=70, height=20)
    spark = (
        f'<svg viewBox="0 0 70 20" width="70" height="20" aria-hidden="true"><path d="{path}" '
        'fill="none" stroke="var(--aw-scale)" stroke-width="1.4"/></svg>'
        if path
        else ""
    )
    last = "" if entry.final_scale is None else said(scale_text(entry.final_scale))
    return f'<div class="aw-course"><span>{last}</span>{spark}</div>'


def _skipped(row: RunRow) -> str:
    entry = row.entry
    if entry is None or (entry.final_scale is None and not entry.skipped):
        return ""
    return share_text(entry.skipped, entry.steps)


def _skipped_order(row: RunRow) -> float | None:
    entry = row.entry
    return entry.skipped / entry.steps if entry and entry.steps else None


def _age(row: RunRow) -> str:
    last_ns, run = row.choice.last_time_ns, row.choice.run
    last = f"{_ago(last_ns)} ago" if last_ns else ""
    if run.source == OWN_SOURCE or not run.added_ns:
        return last
    below = f'<div class="aw-muted aw-below">its last row {last}</div>' if last else ""
    return f"imported {_ago(run.added_ns)} ago{below}"


def _ago(time_ns: int) -> str:
    return age_text((time.time_ns() - time_ns) / 1e9)


COLUMNS = (
    Column("verdict", "verdict", _verdict_order, _verdict),
    Column("run", "run", lambda row: natural_key(row.choice.title), _run),
    Column(
        "age", "last row",
        lambda row: -max(row.choice.last_time_ns, _added_if_foreign(row)), _age,
        hint="how long ago", is_number=True,
    ),
    Column("tags", "tags", lambda row: row.choice.run.tags or None, _tags),
    Column(
        "rate", "learning rate", lambda row: row.entry.highest_rate if row.entry else None, _rate,
        hint="the highest of the run", is_number=True,
    ),
    Column("skipped", "skipped", _skipped_order, _skipped, hint="steps", is_number=True),
    Column(
        "scale", "loss scale", lambda row: row.entry.final_scale if row.entry else None, _scale,
        hint="the last one, and its course", is_number=True,
    ),
    Column(
        "step", "last step", lambda row: row.entry.last_step if row.entry else None,
        lambda row: f"{row.entry.last_step:,}" if row.entry else "", is_number=True,
    ),
    Column(
        "model", "model",
        lambda row: (row.entry.model.casefold() if row.entry else "") or None,
        lambda row: said(shortened(row.entry.model, _MODEL_LENGTH)) if row.entry else "",
    ),
    Column("source", "source", lambda r: r.choice.run.source, lambda r: said(r.choice.run.source)),
)  # fmt: skip
BY_KEY = {column.key: column for column in COLUMNS}


def _added_if_foreign(row: RunRow) -> int:
    return 0 if row.choice.run.source == OWN_SOURCE else row.choice.run.added_ns


def in_order(rows: list[RunRow], sort: str) -> list[RunRow]:
    """The rows of the runs table in the order of a column; those without a value come last."""
    column = BY_KEY.get(sort.removeprefix("-"))
    if column is None:
        return rows
    keyed = [(column.order(row), row) for row in rows]
    known = [pair for pair in keyed if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in known] + [row for key, row in keyed if key is None]


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
