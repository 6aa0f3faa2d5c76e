"""All runs in a table: sorted, found, grouped, chosen; and other trainers' logs brought in."""

from __future__ import annotations

from dataclasses import replace
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
from formatting import said
from log_upload import log_field
from problems import guarded
from run_list import Choice
from runs_columns import RunRow
from runs_entries import all_entries

from ampwatch.report.painter.message import pack

_EVERY_S = 2.0
_KEY, _TABLE = "runs table", "runs as wanted"
_FIRST = "first row in view"


def show() -> None:
    """The page of all runs, kept up to date."""
    st.html('<p class="aw-title" role="heading" aria-level="1">Runs</p>')
    log_field()
    st.fragment(_now, run_every=_EVERY_S)()


@guarded
def _now() -> None:
    listed, entries = run_list.current(), all_entries()
    entries.keep({choice.path for choice in listed.choices})
    view = runs_view_in(address.read().list)
    shown = _table().shown(listed, view)
    first = _first_of_window(len(shown.items))
    window = shown.items[first : first + runs_table.WINDOW]
    entries.want([*(item.choice for item in window if isinstance(item, RunRow)), *shown.wanted])
    chosen, gone = _chosen(listed)
    message = {
        "component": "runs",
        "find": view.find,
        "bar": runs_table.bar(shown, view),
        "chosen": runs_table.chosen_bar(
            chosen, gone, compare_loader.MOST, can_keep=any(map(runs_dialogs.goes, chosen))
        ),
        "head": runs_table.head(view, shown.columns),
        "rows": runs_table.body(window, first, shown.columns, {choice.name for choice in chosen}),
        "first": first,
        "count": len(window),
        "total": len(shown.items),
        "begin": f"{view.find} {view.sort} {view.group} {shown.origin}",
        "dialog": runs_dialogs.shown(),
    }
    browser_component.draw(pack(message, {}), _KEY, on_act_change=_acted)
    for sentence in listed.problems:
        st.html(f'<div class="aw-muted">{said(sentence)}</div>')
    navigate.follow()


def _table() -> runs_table.RunTable:
    made: runs_table.RunTable = st.session_state.setdefault(_TABLE, runs_table.RunTable())
    return made


def _first_of_window(total: int) -> int:
    first = int(st.session_state.get(_FIRST, 0))
    return max(0, min(first, total - runs_table.WINDOW))


def _chosen(listed: run_list.RunList) -> tuple[list[Choice], int]:
    """The runs that are ticked, and how many of them are gone: those that the address compares."""
    text = address.read().runs
    names = dict.fromkeys(address.names_in(text)) if text else {}
    there = {choice.name: choice for choice in listed.choices if choice.name in names}
    return [there[name] for name in names if name in there], len(names) - len(there)


# --- what a reader does --------------------------------------------------------------------------


def _acted() -> None:
    told = getattr(st.session_state.get(_KEY), "act", None)
    if isinstance(told, dict):
        _act(str(told.get("what")), told.get("value"))


def _act(what: str, value: Any) -> None:
    if what == "go":
        navigate.ask("Overview", address.read().of_run(str(value)))
    elif what == "compare":
        navigate.ask("Compare")
    elif what == "window":
        st.session_state[_FIRST] = max(0, int(value) - runs_table.MARGIN)
    elif what in ("pick", "unpick", "clear"):
        _pick(what, str(value))
    elif what in ("ask-tags", "ask-delete", "tags", "delete", "keep", "close"):
        _ask(what, value)
    else:
        _look(what, str(value))


def _ask(what: str, value: Any) -> None:
    """Open a dialog, or do what one was answered with."""
    match what:
        case "ask-tags":
            runs_dialogs.ask_for_tags(_chosen(run_list.current())[0])
        case "ask-delete":
            runs_dialogs.ask_to_delete(_chosen(run_list.current())[0])
        case "tags" if isinstance(value, dict):
            runs_dialogs.save_tags(value)
        case "delete":
            for name in runs_dialogs.delete():
                _pick("unpick", name)
        case "keep":
            runs_dialogs.keep(_chosen(run_list.current())[0])
        case _:
            runs_dialogs.close()


def _look(what: str, value: str) -> None:
    """Look at the table otherwise."""
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


def _pick(what: str, name: str) -> None:
    text = address.read().runs
    names = [] if what == "clear" or text is None else address.names_in(text)
    names = [one for one in names if one != name] + ([name] if what == "pick" else [])
    address.change(runs=address.names_text(names) if names else None)
