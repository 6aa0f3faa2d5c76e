"""The sidebar: which run, which page, and whether to follow what is live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import address
import browser_component
import page_parts
import received_runs
import run_list
import streamlit as st
from address import runs_view_in
from html_text import said
from page_parts import guarded
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
    """Draw the sidebar: runs, ranks, pages, and the switch to follow what is live."""
    shown = run_list.find_run(address.read().run)
    st.session_state[_SHOWN] = None if shown is None else _page_state(shown)
    st.session_state[page_parts.PACE] = page_parts.note_tab()
    with st.sidebar:
        st.html('<div class="aw-brand">ampwatch</div>')
        st.fragment(_draw_runs, run_every=None if browser_component.is_tab_hidden() else _EVERY_S)()
        _choose_rank(shown)
        query = address.read().parameters()
        for page in pages.values():
            st.page_link(page, query_params=query)
        st.session_state[_FOLLOW] = address.read().follow
        st.toggle("Follow live", key=_FOLLOW, on_change=_follow_chosen)


def _follow_chosen() -> None:
    address.change(follow=bool(st.session_state[_FOLLOW]))


@guarded
def _draw_runs() -> None:
    """Draw the sidebar's runs; the page changes with the choice, and as a run begins or ends."""
    if page_parts.note_tab() != st.session_state.get(page_parts.PACE) and page_parts.follows_live():
        st.rerun()
    feed, listed = received_runs.server_feed(), run_list.current_list()
    state = f"{feed.state_text} · {listed.counts_text}" if listed.choices else feed.state_text
    st.html(f'<div class="aw-muted">{said(state)}</div>')
    if listed.choices:
        _draw_list(listed)
    for origin, words in _more_runs(listed).items():
        address.page_link(
            "Runs", words, list=replace(runs_view_in(address.read().list), origin=origin).text()
        )
    pace = st.session_state[page_parts.PACE]
    if pace > 1 and address.read().follow:
        count = page_parts.tabs_in_view().count
        words = f"{count} tabs are in view: each is refreshed every {pace:.0f} s."
        st.html(f'<div class="aw-muted aw-note">{words}</div>')
    for sentence in (*listed.problems[:NOTES_SHOWN], *feed.notes[-NOTES_SHOWN:]):
        st.html(f'<div class="aw-muted aw-note">{said(sentence)}</div>')


def _choose_rank(choice: run_list.ListedRun | None) -> None:
    """Let the reader choose one rank, or all over one another, in the sidebar."""
    ranks = () if choice is None else choice.run.ranks
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


def _draw_list(listed: run_list.RunList) -> None:
    chosen = listed.find(address.read().run)  # None if the named run is not there yet
    choices = _runs_in_sidebar(listed)
    if chosen is not None and chosen not in choices:
        choices.append(chosen)
    labels = {choice.path: choice.label for choice in choices}
    st.session_state[_RUN] = None if chosen is None else chosen.path
    st.radio(
        "Runs", list(labels), key=_RUN, index=None, on_change=_run_chosen,
        format_func=lambda path: labels.get(path, path), label_visibility="collapsed",
    )  # fmt: skip
    if (None if chosen is None else _page_state(chosen)) != st.session_state.get(_SHOWN):
        st.rerun()


def _runs_in_sidebar(listed: run_list.RunList) -> list[run_list.ListedRun]:
    """The runs for the sidebar: those of these folders, and of others as there is room."""
    own = listed.from_origin(Origin.HERE)[:LISTED]
    others = [choice for choice in listed.choices if choice.origin is not Origin.HERE]
    return own + others[: max(OTHERS, LISTED - len(own))]


def _more_runs(listed: run_list.RunList) -> dict[str, str]:
    """How many runs of each origin the sidebar does not list, in words."""
    shown = _runs_in_sidebar(listed)
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
    choice = next((one for one in run_list.current_list().choices if one.path == path), None)
    if choice is not None:
        address.write(address.read().of_run(choice.name))


def _page_state(choice: run_list.ListedRun) -> tuple[str, bool, int, tuple[int, ...]]:
    """The state of the chosen run; when it changes, the whole page is drawn anew."""
    return choice.path, choice.live, 0 if choice.live else choice.run.last_time_ns, choice.run.ranks
