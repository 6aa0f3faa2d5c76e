"""The fleet: which faults occurred in the published runs, how often, when, whose, at what cost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

import address
import browser_component
import compare_loader
import fleet_tables
import navigate
import published_places
import run_list
import server_options
import streamlit as st
from address import FLEET_GROUPS, FLEET_SINCE, WEEK, fleet_view_in
from fleet_tables import Fleet
from html_text import said
from problems import guarded
from published_places import PlaceState
from run_list import Origin

from ampwatch.diagnosis.value_text import count_text
from ampwatch.fleet.summary import setting_names
from ampwatch.fleet.verdicts import RunVerdict

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
    navigate.switch_if_asked()


def _draw_tables(fleet: Fleet, unjudged: int) -> None:
    listed = run_list.current_list().from_origin(Origin.PUBLISHED)
    names = {choice.run.id: choice.name for choice in listed}
    picked = _picked()
    text = (
        fleet_tables.summary_html(fleet, unjudged)
        + fleet_tables.filters_html(fleet.view)
        + f'<div class="aw-fleet-bars">{fleet_tables.findings_table(fleet)}'
        + f"{fleet_tables.groups_table(fleet)}</div>"
        + _compare(picked)
        + fleet_tables.runs_table(fleet, names, picked)
    )
    browser_component.html(text, key=_KEY, acts={"go": _act_on_click})


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
        navigate.ask_for_page("Overview", address.read().of_run(value))
    elif what == "compare":
        navigate.ask_for_page("Compare")
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
