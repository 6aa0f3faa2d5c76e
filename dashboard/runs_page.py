"""All runs in a table: sorted, found, grouped, chosen; and other trainers' logs brought in."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import address
import browser_component
import compare_loader
import navigate
import run_list
import runs_dialogs
import runs_table
import streamlit as st
from address import RUNS_GROUPS, runs_view_in
from html_text import said
from log_upload import draw_log_upload
from problems import guarded
from run_list import ListedRun
from runs_columns import RunRow
from runs_entries import all_entries

from ampwatch.report.painter.message import pack

_EVERY_S = 2.0
_KEY, _TABLE = "runs table", "runs as wanted"
_FIRST = "first row in view"


def show() -> None:
    """Draw the Runs page and keep it up to date."""
    st.html('<p class="aw-title" role="heading" aria-level="1">Runs</p>')
    draw_log_upload()
    st.fragment(_draw_table, run_every=_EVERY_S)()


@guarded
def _draw_table() -> None:
    listed, entries = run_list.current_list(), all_entries()
    entries.forget_others({choice.path for choice in listed.choices})
    view = runs_view_in(address.read().list)
    shown = _table().contents(listed, view)
    first = _first_of_window(len(shown.items))
    window = shown.items[first : first + runs_table.WINDOW]
    entries.request([*(item.choice for item in window if isinstance(item, RunRow)), *shown.wanted])
    chosen, gone = _chosen_runs(listed)
    message = {
        "component": "runs",
        "find": view.find,
        "bar": runs_table.bar_html(shown, view),
        "chosen": runs_table.chosen_html(
            chosen, gone, compare_loader.MOST, can_keep=any(map(runs_dialogs.is_temporary, chosen))
        ),
        "head": runs_table.head_html(view, shown.columns),
        "rows": runs_table.body_html(
            window, first, shown.columns, {choice.name for choice in chosen}
        ),
        "first": first,
        "count": len(window),
        "total": len(shown.items),
        "begin": f"{view.find} {view.sort} {view.group} {shown.origin}",
        "dialog": runs_dialogs.dialog_html(),
    }
    browser_component.draw(pack(message, {}), _KEY, _acts())
    for sentence in listed.problems:
        st.html(f'<div class="aw-muted">{said(sentence)}</div>')
    navigate.switch_if_asked()


def _table() -> runs_table.RunsTable:
    made: runs_table.RunsTable = st.session_state.setdefault(_TABLE, runs_table.RunsTable())
    return made


def _first_of_window(total: int) -> int:
    first = int(st.session_state.get(_FIRST, 0))
    return max(0, min(first, total - runs_table.WINDOW))


def _chosen_runs(listed: run_list.RunList) -> tuple[list[ListedRun], int]:
    """The runs chosen in the table, and how many of them are gone; the address holds them."""
    text = address.read().runs
    names = dict.fromkeys(address.names_in(text)) if text else {}
    there = {choice.name: choice for choice in listed.choices if choice.name in names}
    return [there[name] for name in names if name in there], len(names) - len(there)


# --- what a reader does --------------------------------------------------------------------------


def _acts() -> browser_component.Acts:
    """What is done for each thing that a reader may do in the runs table."""
    dialogs = ("ask-tags", "ask-delete", "tags", "delete", "keep", "close")
    return {
        "go": lambda run: navigate.ask_for_page("Overview", address.read().of_run(str(run))),
        "compare": lambda _: navigate.ask_for_page("Compare"),
        "window": _scroll_to,
        **{what: partial(_choose, what) for what in ("pick", "unpick", "clear")},
        **{what: partial(_use_dialog, what) for what in dialogs},
        **{what: partial(_change_view, what) for what in ("find", "sort", "from", "group", "fold")},
    }


def _scroll_to(row: Any) -> None:
    st.session_state[_FIRST] = max(0, int(row) - runs_table.MARGIN)


def _use_dialog(what: str, value: Any) -> None:
    """Open a dialog of the Runs page, or do what the open one asked for."""
    match what:
        case "ask-tags":
            runs_dialogs.ask_for_tags(_chosen_runs(run_list.current_list())[0])
        case "ask-delete":
            runs_dialogs.ask_to_delete(_chosen_runs(run_list.current_list())[0])
        case "tags" if isinstance(value, dict):
            runs_dialogs.save_tags(value)
        case "delete":
            for name in runs_dialogs.delete_runs():
                _choose("unpick", name)
        case "keep":
            runs_dialogs.keep_runs(_chosen_runs(run_list.current_list())[0])
        case _:
            runs_dialogs.close_dialog()


def _change_view(what: str, value: str) -> None:
    """Change how the runs table is sorted, searched, grouped or filtered."""
    view = runs_view_in(address.read().list)
    match what:
        case "find":
            view = replace(view, find=value.strip())
        case "sort":
            view = replace(view, sort=value)
        case "from":
            view = replace(view, origin=value)
        case "group" if value in ("", *RUNS_GROUPS):
            view = replace(view, group=value, folded=())
        case "fold":
            others = tuple(name for name in view.folded if name != value)
            is_folded = len(others) < len(view.folded)
            view = replace(view, folded=others if is_folded else (*others, value))
    if what != "fold":
        st.session_state[_FIRST] = 0
    address.change(list=view.text())


def _choose(what: str, name: str) -> None:
    text = address.read().runs
    names = [] if what == "clear" or text is None else address.names_in(text)
    names = [one for one in names if one != name] + ([name] if what == "pick" else [])
    address.change(runs=address.names_text(names) if names else None)
