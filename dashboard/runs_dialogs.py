"""The dialogs of the Runs page: tag runs, delete runs; and what is then done."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import received_runs
import run_list
import server_options
import streamlit as st
from html_text import said, shortened
from run_list import ListedRun, Origin

from ampwatch.diagnosis.value_text import bytes_text
from ampwatch.errors import AmpwatchError
from ampwatch.store import delete_run, edit_tags, size_of_run

_OPEN, _OF = "dialog of runs", "runs of the dialog"
_REMOVE = "remove:"
_NAMED = 6
_WHERE_PUBLISHED = "delete its row of the table `runs` in its place"
_NAME_LENGTH = 60


def dialog_html() -> str:
    """The dialog of the Runs page that is open, as HTML."""
    return str(st.session_state.get(_OPEN, ""))


def close_dialog() -> None:
    """Close the dialog of the Runs page; nothing is done."""
    st.session_state[_OPEN] = ""


def ask_for_tags(chosen: Sequence[ListedRun]) -> None:
    """Open the dialog in which chosen runs are tagged."""
    _open(chosen, _tags_form(chosen, {}, ""))


def ask_to_delete(chosen: Sequence[ListedRun]) -> None:
    """Open the dialog that asks whether to delete chosen runs."""
    _open(chosen, _question(chosen))


def save_tags(told: Mapping[str, Any]) -> None:
    """Tag the runs of the dialog as its reader typed; it stays open and says what went wrong."""
    chosen = _chosen()
    troubles = [trouble for choice in chosen if (trouble := _tag_run(choice, told))]
    run_list.read_again()
    if troubles:
        _open(chosen, _tags_form(chosen, told, " ".join(dict.fromkeys(troubles))))
    else:
        close_dialog()


def _tag_run(choice: ListedRun, told: Mapping[str, Any]) -> str:
    """Tag one run; returns what went wrong."""
    if choice.origin is Origin.PUBLISHED:
        return f"{choice.title} is published: tag it where it was made, and publish it again."
    try:
        edit_tags(
            choice.run.path,
            add=str(told.get("add", "")).replace(",", " ").split(),
            remove=[n.removeprefix(_REMOVE) for n in told if n.startswith(_REMOVE)],
            note=str(told["note"]).replace("\r\n", "\n") if "note" in told else None,
            note_seen=choice.run.note,
        )
    except AmpwatchError as error:
        return str(error)
    return ""


def delete_runs() -> list[str]:
    """Delete the runs of the dialog; returns the names of those deleted."""
    gone, troubles = [], []
    there = {choice.path: choice for choice in run_list.current_list().choices}
    for choice in _chosen():
        why = _why_it_stays(there.get(choice.path, choice))
        try:
            if not why:
                delete_run(choice.run.path, choice.run.id, _deletable_folders())
                gone.append(choice.name)
        except (AmpwatchError, OSError) as error:
            why = str(error)
        troubles += [why] if why else []
    run_list.read_again()
    close_dialog()
    if troubles:
        sentences = "".join(f"<p>{said(why)}</p>" for why in troubles)
        st.session_state[_OPEN] = _form("Not deleted", sentences, _button("close", "Close"))
    return gone


def _deletable_folders() -> list[Path]:
    """The folders from which runs may be deleted: those shown, and that of received runs."""
    received = received_runs.server_feed().received
    return server_options.shown_folders() + ([] if received is None else [received])


def is_temporary(choice: ListedRun) -> bool:
    """Whether a run is deleted when this server ends, unless it is kept."""
    received = received_runs.server_feed().received
    return received is not None and choice.run.path.parent == received


def keep_runs(chosen: Sequence[ListedRun]) -> None:
    """Keep those chosen runs that are temporary; a dialog says what went wrong."""
    sentences = [why for choice in chosen if is_temporary(choice) and (why := _keep_run(choice))]
    run_list.read_again()
    if sentences:
        inside = "".join(f"<p>{said(why)}</p>" for why in sentences)
        st.session_state[_OPEN] = _form("Not kept", inside, _button("close", "Close"))


def _keep_run(choice: ListedRun) -> str:
    """Keep one temporary run; returns why it was not kept."""
    if choice.live:
        return f"{choice.title} is live: keep it once it has ended."
    try:
        received_runs.keep_run(choice.run.path, server_options.shown_folders()[0])
    except AmpwatchError as error:
        return str(error)
    return ""


# --- forms ---------------------------------------------------------------------------------------


def _open(chosen: Sequence[ListedRun], form: str) -> None:
    st.session_state[_OF] = list(chosen)
    st.session_state[_OPEN] = form


def _chosen() -> list[ListedRun]:
    return list(st.session_state.get(_OF, []))


def _form(title: str, inside: str, *buttons: str) -> str:
    return f'<form><h2>{title}</h2>{inside}<div class="aw-bar">{"".join(buttons)}</div></form>'


def _button(what: str, words: str, kind: str = "") -> str:
    return f'<button data-submit="{what}" class="{kind}">{words}</button>'


def _tags_form(chosen: Sequence[ListedRun], typed: Mapping[str, Any], trouble: str) -> str:
    tags = dict.fromkeys(tag for choice in chosen for tag in choice.run.tags)
    boxes = "".join(
        f'<label class="aw-tag"><input type="checkbox" name="{_REMOVE}{html.escape(tag)}"'
        f"{' checked' if _REMOVE + tag in typed else ''}> {said(tag)}</label>"
        for tag in tags
    )
    removal = f"<fieldset><legend>Remove</legend>{boxes}</fieldset>" if tags else ""
    add = html.escape(str(typed.get("add", "")))
    note = ""
    if len(chosen) == 1:
        text = html.escape(str(typed.get("note", chosen[0].run.note)))
        note = f'<label>Note <textarea name="note" rows="4">\n{text}</textarea></label>'
    said_trouble = f'<p class="aw-cut" role="alert">{said(trouble)}</p>' if trouble else ""
    inside = (
        f"<p>{_names(chosen)}</p>"
        f'<label>Tags to add, with spaces between <input name="add" value="{add}" autofocus '
        f'autocomplete="off"></label>{removal}{note}{said_trouble}'
    )
    return _form(
        "Tags and note", inside, _button("tags", "Save", "aw-main"), _button("close", "Cancel")
    )


def _question(chosen: Sequence[ListedRun]) -> str:
    staying = {choice.path: why for choice in chosen if (why := _why_it_stays(choice))}
    going = [choice for choice in chosen if choice.path not in staying]
    size = sum(size_of_run(choice.run.path) for choice in going)
    reasons = "".join(f"<p>{said(why)}</p>" for why in staying.values())
    if not going:
        return _form("Nothing to delete", reasons, _button("close", "Close"))
    count = "this run" if len(going) == 1 else f"these {len(going):,} runs"
    inside = (
        f"<p>{_names(going)}</p><p>{bytes_text(size)} on this disk. This cannot be undone.</p>"
        f"{reasons}"
    )
    return _form(
        f"Delete {count}?", inside,
        _button("close", "Keep"), _button("delete", "Delete", "aw-danger"),
    )  # fmt: skip


def _why_it_stays(choice: ListedRun) -> str:
    if choice.live:
        return f"{choice.title} is live and stays."
    if choice.origin is Origin.ELSEWHERE:
        return f"{choice.title} is in another folder, {choice.run.path.parent}, and stays."
    if choice.origin is Origin.PUBLISHED:
        return f"{choice.title} is published, and stays: {_WHERE_PUBLISHED}."
    return ""


def _names(chosen: Iterable[ListedRun]) -> str:
    titles = [said(shortened(choice.title, _NAME_LENGTH)) for choice in chosen]
    more = f" and {len(titles) - _NAMED:,} more" if len(titles) > _NAMED else ""
    return ", ".join(f"<b><bdi>{title}</bdi></b>" for title in titles[:_NAMED]) + more
