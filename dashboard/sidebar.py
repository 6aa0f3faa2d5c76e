"""The sidebar: which run, which page, and whether to follow what is live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import address
import browser_component
import navigate
import run_list
import streamlit as st
from formatting import said
from list_view import view_in
from problems import guarded
from refresh_pace import TabsInView
from run_list import Origin
from streamlit.runtime.scriptrunner import get_script_run_ctx

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
_PACE = "refreshed every"
_ALL = "all"


def show(pages: Mapping[str, Any]) -> None:
    """The whole sidebar."""
    shown = run_list.chosen(address.read().run)
    st.session_state[_SHOWN] = None if shown is None else _state(shown)
    st.session_state[_PACE] = _note_tab()
    with st.sidebar:
        st.html('<div class="aw-brand">ampwatch</div>')
        st.fragment(_choose, run_every=None if browser_component.rests() else _EVERY_S)()
        _choose_rank(shown)
        query = address.read().parameters()
        for page in pages.values():
            st.page_link(page, query_params=query)
        st.session_state[_FOLLOW] = address.read().follow
        st.toggle("Follow live", key=_FOLLOW, on_change=_follow_chosen)


def follows() -> bool:
    """Whether a live run is to be followed: not in a tab that nobody sees."""
    return address.read().follow and not browser_component.rests()


def every_s(usual: float) -> float:
    """Seconds between two refreshes of this tab: the page's usual ones, or more with many tabs."""
    return max(usual, st.session_state.get(_PACE, usual))


@st.cache_resource(show_spinner=False)
def _tabs() -> TabsInView:
    return TabsInView()


def _note_tab() -> float:
    """Note whether this tab is in view; how often it is to be refreshed."""
    context = get_script_run_ctx()
    if context is not None:
        note = _tabs().leave if browser_component.rests() else _tabs().hear
        note(context.session_id)
    return _tabs().every_s


def _follow_chosen() -> None:
    address.change(follow=bool(st.session_state[_FOLLOW]))


@guarded
def _choose() -> None:
    """The list of runs; the page changes with the choice, and when a run begins or ends."""
    if _note_tab() != st.session_state.get(_PACE) and follows():
        st.rerun()
    feed, listed = run_list.feed(), run_list.current()
    state = f"{feed.state} · {listed.counts}" if listed.choices else feed.state
    st.html(f'<div class="aw-muted">{said(state)}</div>')
    if listed.choices:
        _list(listed)
    for origin, words in _more(listed).items():
        navigate.link(
            "Runs", words, list=replace(view_in(address.read().list), origin=origin).text()
        )
    pace = st.session_state[_PACE]
    if pace > 1 and address.read().follow:
        words = f"{_tabs().count} tabs are in view: each is refreshed every {pace:.0f} s."
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
