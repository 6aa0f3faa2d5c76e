"""The sidebar: which run, which page, and whether to follow what is live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import address
import browser_component
import navigate
import received_runs
import refresh_pace
import run_list
import streamlit as st
from address import runs_view_in
from formatting import said
from problems import guarded
from run_list import Origin

NOTES_SHOWN = 3
_EVERY_S = 3.0
LISTED = 9  # runs; the Runs page has the others
OTHERS = 3  # of other folders or received, below as many own ones
_MORE = {
    Origin.HERE: "{}",
    Origin.ELSEWHERE: "{} in other folders",
    Origin.RECEIVED: "received {}",
    Origin.PUBLISHED: "published {}",
}
_FOLLOW, _SHOWN, _RANK, _RUN = "follow", "shown", "rank", "chosen run"
_ALL = "all"


def show(pages: Mapping[str, Any]) -> None:
    """The whole sidebar."""
    shown = run_list.chosen(address.read().run)
    st.session_state[_SHOWN] = None if shown is None else _state(shown)
    st.session_state[refresh_pace.PACE] = refresh_pace.note_tab()
    with st.sidebar:
        st.html('<div class="aw-brand">ampwatch</div>')
        st.fragment(_choose, run_every=None if browser_component.is_tab_hidden() else _EVERY_S)()
        _choose_rank(shown)
        query = address.read().parameters()
        for page in pages.values():
            st.page_link(page, query_params=query)
        st.session_state[_FOLLOW] = address.read().follow
        st.toggle("Follow live", key=_FOLLOW, on_change=_follow_chosen)


def _follow_chosen() -> None:
    address.change(follow=bool(st.session_state[_FOLLOW]))


@guarded
def _choose() -> None:
    """The list of runs; the page changes with the choice, and when a run begins or ends."""
    if (
        refresh_pace.note_tab() != st.session_state.get(refresh_pace.PACE)
        and refresh_pace.follows()
    ):
        st.rerun()
    feed, listed = received_runs.feed(), run_list.current()
    state = f"{feed.state} · {listed.counts}" if listed.choices else feed.state
    st.html(f'<div class="aw-muted">{said(state)}</div>')
    if listed.choices:
        _list(listed)
    for origin, words in _more(listed).items():
        navigate.link(
            "Runs", words, list=replace(runs_view_in(address.read().list), origin=origin).text()
        )
    pace = st.session_state[refresh_pace.PACE]
    if pace > 1 and address.read().follow:
        count = refresh_pace.tabs_in_view().count
        words = f"{count} tabs are in view: each is refreshed every {pace:.0f} s."
        st.html(f'<div class="aw-muted aw-note">{words}</div>')
    for sentence in (*listed.problems[:NOTES_SHOWN], *feed.notes[-NOTES_SHOWN:]):
        st.html(f'<div class="aw-muted aw-note">{said(sentence)}</div>')


def _choose_rank(choice: run_list.Choice | None) -> None:
    """All ranks over one another, or one alone."""
    ranks = () if choice is None else choice.ranks
    if len(ranks) < 2:
        return
    chosen = address.read().rank
    st.session_state[_RANK] = chosen if chosen in ranks else _ALL
    st.selectbox(
        "Ranks", [_ALL, *ranks], key=_RANK, on_change=_rank_chosen,
        format_func=lambda one: f"all {len(ranks)} ranks" if one == _ALL else f"rank {one}",
    )  # fmt: skip


def _rank_chosen() -> None:
    rank = st.session_state[_RANK]
    address.change(rank=None if rank == _ALL else rank)


def _list(listed: run_list.RunList) -> None:
    chosen = listed.chosen(address.read().run)  # None if the named run is not there yet
    choices = _first(listed)
    if chosen is not None and chosen not in choices:
        choices.append(chosen)
    labels = {choice.path: choice.label for choice in choices}
    st.session_state[_RUN] = None if chosen is None else chosen.path
    st.radio(
        "Runs", list(labels), key=_RUN, index=None, on_change=_run_chosen,
        format_func=lambda path: labels.get(path, path), label_visibility="collapsed",
    )  # fmt: skip
    if (None if chosen is None else _state(chosen)) != st.session_state.get(_SHOWN):
        st.rerun()


def _first(listed: run_list.RunList) -> list[run_list.Choice]:
    """The runs of these folders, and of the others as many as there is room for."""
    own = listed.of(Origin.HERE)[:LISTED]
    others = [choice for choice in listed.choices if choice.origin is not Origin.HERE]
    return own + others[: max(OTHERS, LISTED - len(own))]


def _more(listed: run_list.RunList) -> dict[str, str]:
    """How many more there are, of each origin."""
    shown = _first(listed)
    found = {}
    for origin in Origin:
        count = sum(one.origin is origin for one in listed.choices)
        more = count - sum(one.origin is origin for one in shown)
        if more > 0:
            words = _MORE[origin].format("run" if more == 1 else "runs")
            found[origin.value] = f"{more:,} more {words}"
    return found


def _run_chosen() -> None:
    path = st.session_state[_RUN]
    choice = next((one for one in run_list.current().choices if one.path == path), None)
    if choice is not None:
        address.write(address.read().of_run(choice.name))


def _state(choice: run_list.Choice) -> tuple[str, bool, int, tuple[int, ...]]:
    """What the page depends on; it is drawn anew when this changes."""
    return choice.path, choice.live, 0 if choice.live else choice.last_time_ns, choice.ranks
