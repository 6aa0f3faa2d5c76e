"""The fleet: which faults occurred in the published runs, how often, when, whose, at what cost."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import address
import browser_component
import compare_loader
import published_places
import run_list
import server_options
import streamlit as st
from address import FLEET_GROUPS, FLEET_SINCE, WEEK, FleetView, fleet_view_in
from html_text import age_text, rate_text, said, shortened
from page_parts import guarded, show_as_text
from published_places import PlaceState
from run_list import Origin

from ampwatch.diagnosis import RULES
from ampwatch.diagnosis.value_text import count_text, duration_text
from ampwatch.fleet.summary import (
    UNKNOWN,
    Tally,
    by_code,
    by_setting,
    by_week,
    setting_names,
    total,
    values_of,
    worst,
)
from ampwatch.fleet.summary import week_of as week
from ampwatch.fleet.verdicts import RunVerdict
from ampwatch.report.painter import VERDICT_COLOR

_EVERY_S = 5.0
_KEY, _GROUP, _SINCE = "fleet parts", "fleet group", "fleet since"
_TIMES = {"": "all time", "7": "7 days", "30": "30 days", "90": "90 days"}


def show() -> None:
    """Draw the Fleet page and keep it up to date."""
    st.html('<p class="aw-title" role="heading" aria-level="1">Fleet</p>')
    if not server_options.shown_places():
        _explain_publishing()
        return
    st.fragment(_draw_fleet, run_every=_EVERY_S)()


@guarded
def _draw_fleet() -> None:
    places = published_places.place_states()
    for place in places:
        if place.trouble:
            st.html(f'<div class="aw-problem">{said(place.trouble)}</div>')
    verdicts = tuple(one for place in places for one in place.verdicts)
    runs = sum(len(place.runs) for place in places)
    for sentence in _how_to_judge(places):
        st.html(f'<div class="aw-muted">{sentence}</div>')
    if verdicts:
        _choose(verdicts)
        fleet = Fleet(
            fleet_view_in(address.read().fleet), verdicts, dt.datetime.now(dt.timezone.utc)
        )
        _draw_tables(fleet, runs - len(verdicts))
    address.switch_if_asked()


def _draw_tables(fleet: Fleet, unjudged: int) -> None:
    listed = run_list.current_list().from_origin(Origin.PUBLISHED)
    names = {choice.run.id: choice.name for choice in listed}
    picked = _picked()
    text = (
        summary_html(fleet, unjudged)
        + filters_html(fleet.view)
        + f'<div class="aw-fleet-bars">{findings_table(fleet)}'
        + f"{groups_table(fleet)}</div>"
        + _compare(picked)
        + runs_table(fleet, names, picked)
    )
    browser_component.html(text, key=_KEY, acts={"go": _act_on_click})
    show_as_text(text)


def _choose(verdicts: Sequence[RunVerdict]) -> None:
    view = fleet_view_in(address.read().fleet)
    names = [*FLEET_GROUPS, *setting_names(verdicts)]
    st.session_state[_SINCE] = view.since
    st.session_state[_GROUP] = view.group if view.group in names else WEEK
    with st.container(horizontal=True):
        st.selectbox("Started within", FLEET_SINCE, key=_SINCE, format_func=_TIMES.__getitem__,
                     on_change=_chosen, width=160)  # fmt: skip
        st.selectbox("Group by", names, key=_GROUP, on_change=_chosen, width=220)


def _chosen() -> None:
    view = fleet_view_in(address.read().fleet)
    group = str(st.session_state[_GROUP])
    only = view.only if group == view.group else None
    since = str(st.session_state[_SINCE])
    address.change(fleet=replace(view, since=since, group=group, only=only).text())


def _compare(picked: Sequence[str]) -> str:
    if len(picked) < 2:
        return ""
    words = f"Compare {count_text(len(picked), 'run')}"
    return (
        '<div class="aw-bar aw-chosen-bar"><button type="button" class="aw-do-it" '
        f'data-go="compare" data-key="compare">{words}</button>'
        '<button type="button" data-go="clear" data-key="clear">Clear</button></div>'
    )


# --- what a reader does --------------------------------------------------------------------------


def _act_on_click(told: object) -> None:
    what, has_value, value = str(told).partition("=")
    view = fleet_view_in(address.read().fleet)
    if what == "run":
        address.ask_for_page("Overview", address.read().of_run(value))
    elif what == "compare":
        address.ask_for_page("Compare")
    elif what == "code":
        address.change(fleet=replace(view, code="" if value == view.code else value).text())
    elif what == "only":
        is_back = not has_value or value == view.only
        address.change(fleet=replace(view, only=None if is_back else value).text())
    elif what in {"pick", "clear"}:
        _pick(value)


def _picked() -> list[str]:
    text = address.read().runs
    return address.names_in(text) if text else []


def _pick(name: str) -> None:
    """Choose a run on the Fleet page to compare, or no longer; without a name, choose none."""
    others = [one for one in _picked() if one != name] if name else []
    is_new = bool(name) and name not in _picked() and len(others) < compare_loader.MOST
    names = [*others, name] if is_new else others
    address.change(runs=address.names_text(names) if names else None)


# --- where there is nothing ----------------------------------------------------------------------


def _how_to_judge(places: Sequence[PlaceState]) -> list[str]:
    """For the Fleet page: the command that judges the runs of each place not judged yet."""
    found = []
    for place in places:
        left = len(place.runs) - len(place.verdicts)
        if place.runs and left > 0:
            count = f"{left:,} of {count_text(len(place.runs), 'run')}"
            command = f"ampwatch fleet {place.address}"
            found.append(
                f"{count} in {said(place.address)} not judged yet: <code>{said(command)}</code> "
                "judges them; this page then shows them by itself."
            )
    return found


def _explain_publishing() -> None:
    st.html(
        '<div class="aw-muted">What broke in the runs of a whole team, how often, and what it '
        "cost. This dashboard shows no place to which runs are published.</div>"
    )
    st.markdown("Publish runs to a bucket or a shared folder, judge them, and open it:")
    st.code(
        "pip install -e '.[fleet]'\n"
        "ampwatch publish ampwatch-runs s3://team/runs\n"
        "ampwatch fleet s3://team/runs\n"
        "ampwatch dashboard s3://team/runs",
        language=None,  # the colours of shell words are too pale for AA
    )


# --- the tables as HTML ---------------------------------------------------------------------------


MOST_ROWS = 25  # of a table of bars
MOST_RUNS = 100
_NAMES = {rule.code: rule.name for rule in RULES}
_PARTS = ("failing", "warning", "incomplete", "healthy")
_RUN_COLUMNS = ("", "verdict", "run", "what broke", "layer", "rate", "steps lost", "started")
_CHOSEN = '<span class="aw-aloud">chosen</span>'
_KEY_LETTERS = 44
_HEAD_LETTERS = 110


@dataclass(frozen=True, slots=True)
class Fleet:
    """The verdicts that the Fleet page shows; each table ignores the filter that it sets itself."""

    view: FleetView
    verdicts: tuple[RunVerdict, ...]
    now: dt.datetime

    def chosen(self) -> list[RunVerdict]:
        """The verdicts of the fleet that match all filters of the page."""
        return [one for one in self._of_group(self._in_time()) if self._has_code(one)]

    def findings(self) -> list[Tally]:
        """The fleet's runs counted by finding."""
        return by_code(self._of_group(self._in_time()))

    def groups(self) -> list[Tally]:
        """The fleet's runs counted by week, or by the setting that the page groups by."""
        some = [one for one in self._in_time() if self._has_code(one)]
        return by_week(some) if self.view.group == WEEK else by_setting(some, self.view.group)

    def _in_time(self) -> list[RunVerdict]:
        if not self.view.since:
            return list(self.verdicts)
        first = self.now - dt.timedelta(days=int(self.view.since))
        return [one for one in self.verdicts if one.started >= first]

    def _of_group(self, some: Sequence[RunVerdict]) -> list[RunVerdict]:
        only, group = self.view.only, self.view.group
        if only is None:
            return list(some)
        return [o for o in some if only in ((week(o),) if group == WEEK else values_of(o, group))]

    def _has_code(self, one: RunVerdict) -> bool:
        return not self.view.code or self.view.code in one.codes


# --- the numbers at the top -----------------------------------------------------------------------


def summary_html(fleet: Fleet, unjudged: int) -> str:
    """The numbers at the top of the Fleet page as HTML: runs, their verdicts, what was lost."""
    sums = total(fleet.chosen())
    cells = [("runs judged", f"{sums.runs:,}")]
    cells += [(name, f"{getattr(sums, name):,}") for name in _PARTS]
    cells.append(("steps lost", _of(sums.lost_steps, sums.steps)))
    cells.append(("time lost", f"{_time(sums.lost_hours)} of {_time(sums.hours)}"))
    if unjudged:
        cells.append(("not judged", f"{unjudged:,}"))
    shown = "".join(
        f'<div class="aw-number"><span>{said(name)}</span><b>{said(text)}</b></div>'
        for name, text in cells
    )
    return f'<div class="aw-strip">{shown}</div>'


def filters_html(view: FleetView) -> str:
    """The chosen filters of the Fleet page as HTML; a click removes one."""
    parts = []
    if view.code:
        parts.append(("code=", f"only {view.code} {_NAMES.get(view.code, '')}"))
    if view.only is not None:
        parts.append(("only", f"only {view.group} {_key_text(view.only, view.group)}"))
    chips = "".join(
        f'<button type="button" class="aw-choice" aria-pressed="true" data-go="{go}" '
        f'data-key="{go}">{said(words)} <span aria-hidden="true">✕</span>'
        '<span class="aw-aloud">, take back</span></button>'
        for go, words in parts
    )
    return f'<div class="aw-bar">{chips}</div>' if chips else ""


# --- bars -----------------------------------------------------------------------------------------


def findings_table(fleet: Fleet) -> str:
    """The fleet's findings as an HTML table: in how many runs each occurred, and its cost."""
    found = fleet.findings()
    if not found:
        return '<p class="aw-muted">No warning and no error in these runs.</p>'
    rows = [(f"code={t.key}", f"{t.key} {_NAMES.get(t.key, '')}", t) for t in found]
    return _table("Findings", "finding", rows, f"code={fleet.view.code}")


def groups_table(fleet: Fleet) -> str:
    """The fleet's runs by week, or by another group, as an HTML table with bars."""
    group = fleet.view.group
    rows = [(f"only={t.key}", _key_text(t.key, group), t) for t in fleet.groups()]
    rows = rows[::-1] if group == WEEK else rows  # the newest week first
    return _table(f"By {group}", group, rows, f"only={fleet.view.only}")


def _table(title: str, what: str, rows: Sequence[tuple[str, str, Tally]], chosen: str) -> str:
    most = max((tally.runs for _, _, tally in rows), default=1)
    body = "".join(_bar_row(go, words, tally, most, go == chosen) for go, words, tally in
                   rows[:MOST_ROWS])  # fmt: skip
    more = len(rows) - MOST_ROWS
    rest = f'<p class="aw-muted">{more:,} more with fewer runs.</p>' if more > 0 else ""
    return (
        f'<section class="aw-fleet"><h2 class="aw-section">{said(title)}</h2>'
        f'<div class="aw-scroll" tabindex="0" role="region" aria-label="{said(title)}">'
        f'<table class="aw-runs"><thead><tr><th scope="col">{said(what)}</th>'
        '<th scope="col"><span class="aw-aloud">share by verdict</span></th>'
        '<th scope="col" class="aw-num">runs</th><th scope="col" class="aw-num">failing</th>'
        '<th scope="col" class="aw-num">steps lost</th><th scope="col" class="aw-num">time lost'
        f"</th></tr></thead><tbody>{body}</tbody></table></div>{rest}</section>"
    )


def _bar_row(go: str, words: str, tally: Tally, most: int, is_chosen: bool) -> str:  # noqa: FBT001
    target, name = html.escape(go, quote=True), said(shortened(words, _KEY_LETTERS))
    mark = ' class="aw-chosen"' if is_chosen else ""
    return (
        f'<tr{mark}><td><button type="button" class="aw-plain" data-go="{target}" '
        f'data-key="{target}" aria-pressed="{str(is_chosen).lower()}"><bdi>{name}</bdi></button>'
        f'</td><td data-go="{target}">{_bar(tally, most)}</td>'
        f'<td class="aw-num">{tally.runs:,}</td><td class="aw-num">{tally.failing:,}</td>'
        f'<td class="aw-num">{tally.lost_steps:,}</td>'
        f'<td class="aw-num">{_time(tally.lost_hours)}</td></tr>'
    )


def _bar(tally: Tally, most: int) -> str:
    counts = {name: getattr(tally, name) for name in _PARTS}
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    parts = "".join(
        f'<i style="flex:{count};background:var(--aw-{VERDICT_COLOR[name]})"></i>'
        for name, count in counts.items()
        if count
    )
    width = 100 * tally.runs / max(1, most)
    return f'<div class="aw-bars" title="{told}" style="width:{width:.1f}%">{parts}</div>'


def _key_text(key: str, group: str) -> str:
    if key == UNKNOWN:
        return f"no {group} told"
    return f"from {key}" if group == WEEK else key


# --- runs -----------------------------------------------------------------------------------------


def runs_table(fleet: Fleet, names: Mapping[str, str], picked: Sequence[str]) -> str:
    """The fleet's matching runs as an HTML table, the gravest first; `names` are links by id."""
    chosen = fleet.chosen()
    bad = worst(chosen, MOST_RUNS)
    held = {one.run_id for one in bad}
    shown = [*bad, *(one for one in chosen if one.run_id not in held)][:MOST_RUNS]
    rows = "".join(_run_row(one, names.get(one.run_id), picked, fleet.now) for one in shown)
    more = len(chosen) - len(shown)
    rest = f'<p class="aw-muted">{more:,} more; the Runs page lists all.</p>' if more else ""
    head = "".join(f'<th scope="col"{_align(name)}>{name or _CHOSEN}</th>' for name in _RUN_COLUMNS)
    return (
        '<section class="aw-fleet"><h2 class="aw-section">Runs</h2>'
        '<div class="aw-scroll" tabindex="0" role="region" aria-label="Runs">'
        f'<table class="aw-runs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"{rest}</section>"
    )


def _align(name: str) -> str:
    return ' class="aw-num"' if name in {"rate", "steps lost"} else ""


def _run_row(one: RunVerdict, name: str | None, picked: Sequence[str], now: dt.datetime) -> str:
    tone = VERDICT_COLOR[one.verdict]
    rate = one.learning_rate.get("current")
    title = said(shortened(one.name, _KEY_LETTERS))
    box, shown = "", f"<bdi>{title}</bdi>"
    if name is not None:
        target, is_picked = html.escape(name, quote=True), name in picked
        link = html.escape(address.link("", address.read().of_run(name)))
        shown = f'<a href="{link}" data-go="run={target}" data-key="run={target}">{shown}</a>'
        box = (
            f'<button type="button" class="aw-tick" data-go="pick={target}" '
            f'data-key="pick={target}" aria-pressed="{str(is_picked).lower()}" '
            f'aria-label="choose {html.escape(one.name)}">{"☑" if is_picked else "☐"}</button>'
        )
    head = said(shortened(one.headline, _HEAD_LETTERS))
    return (
        f'<tr><td>{box}</td><td><span class="aw-chip" style="--aw-tone:var(--aw-{tone})">'
        f"{one.verdict}</span></td><td>{shown}</td>"
        f'<td class="aw-wrap" title="{html.escape(one.headline)}">{head}</td>'
        f"<td><bdi>{said(one.layer or '')}</bdi></td>"
        f'<td class="aw-num">{rate_text(rate) if rate else ""}</td>'
        f'<td class="aw-num">{one.lost_steps:,}</td>'
        f"<td>{age_text((now - one.started).total_seconds())} ago</td></tr>"
    )


def _of(part: int, whole: int) -> str:
    return f"{part:,} · {100 * part / whole:.1f} %" if whole and part else f"{part:,}"


def _time(hours: float) -> str:
    return duration_text(hours * 3.6e6) if hours else "0"
