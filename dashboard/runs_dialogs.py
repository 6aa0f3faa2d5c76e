"""What is asked before runs are tagged or deleted, and what is then done."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import received_runs
import run_list
import server_options
import streamlit as st
from formatting import said, shortened
from run_list import Choice, Origin

from ampwatch.diagnosis.words import bytes_text
from ampwatch.errors import AmpwatchError
from ampwatch.store import delete_run, edit_tags, size_of_run

_OPEN, _OF = "dialog of runs", "runs of the dialog"
_REMOVE = "remove:"
_NAMED = 6
_WHERE_PUBLISHED = "delete its row of the table `runs` in its place"
_NAME_LENGTH = 60


def shown() -> str:
    """The dialog that is open, as HTML."""
    return str(st.session_state.get(_OPEN, ""))


def close() -> None:
    """Close it; nothing is done."""
    st.session_state[_OPEN] = ""


def ask_for_tags(chosen: Sequence[Choice]) -> None:
    """Open the dialog in which these runs are tagged."""
    _open(chosen, _tags_form(chosen, {}, ""))


def ask_to_delete(chosen: Sequence[Choice]) -> None:
    """Open the question whether these runs are to be deleted."""
    _open(chosen, _question(chosen))


def save_tags(told: Mapping[str, Any]) -> None:
    """Tag the runs of the dialog as it says; what went wrong is said in it."""
    chosen = _chosen()
    troubles = [trouble for choice in chosen if (trouble := _tag(choice, told))]
    run_list.look_again()
    if troubles:
        _open(chosen, _tags_form(chosen, told, " ".join(dict.fromkeys(troubles))))
    else:
        close()


def _tag(choice: Choice, told: Mapping[str, Any]) -> str:
    """What went wrong as one run was tagged."""
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


def delete() -> list[str]:
    """Delete the runs of the dialog; the names of those that are gone."""
    gone, troubles = [], []
    there = {choice.path: choice for choice in run_list.current().choices}
    for choice in _chosen():
        why = _why_it_stays(there.get(choice.path, choice))
        try:
            if not why:
                delete_run(choice.run.path, choice.run.id, _deletable())
                gone.append(choice.name)
        except (AmpwatchError, OSError) as error:
            why = str(error)
        troubles += [why] if why else []
    run_list.look_again()
    close()
    if troubles:
        sentences = "".join(f"<p>{said(why)}</p>" for why in troubles)
        st.session_state[_OPEN] = _form("Not deleted", sentences, _button("close", "Close"))
    return gone


def _deletable() -> list[Path]:
    """The folders of runs that are shown, that of received ones among them."""
    received = received_runs.feed().received
    return server_options.shown_folders() + ([] if received is None else [received])


def goes(choice: Choice) -> bool:
    """Whether a run is gone when this server ends, unless it is kept."""
    received = received_runs.feed().received
    return received is not None and choice.run.path.parent == received


def keep(chosen: Sequence[Choice]) -> None:
    """Keep those of these runs that would go; what went wrong is said."""
    sentences = [why for choice in chosen if goes(choice) and (why := _keep(choice))]
    run_list.look_again()
    if sentences:
        inside = "".join(f"<p>{said(why)}</p>" for why in sentences)
        st.session_state[_OPEN] = _form("Not kept", inside, _button("close", "Close"))


def _keep(choice: Choice) -> str:
    """Why a run was not kept."""
    if choice.live:
        return f"{choice.title} is live: keep it once it has ended."
    try:
        received_runs.keep(choice.run.path, server_options.shown_folders()[0])
    except AmpwatchError as error:
        return str(error)
    return ""


# --- forms ---------------------------------------------------------------------------------------


def _open(chosen: Sequence[Choice], form: str) -> None:
    st.session_state[_OF] = list(chosen)
    st.session_state[_OPEN] = form


def _chosen() -> list[Choice]:
    return list(st.session_state.get(_OF, []))


def _form(title: str, inside: str, *buttons: str) -> str:
    return f'<form><h2>{title}</h2>{inside}<div class="aw-bar">{"".join(buttons)}</div></form>'


def _button(what: str, words: str, kind: str = "") -> str:
    return f'<button data-submit="{what}" class="{kind}">{words}</button>'


def _tags_form(chosen: Sequence[Choice], typed: Mapping[str, Any], trouble: str) -> str:
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


def _question(chosen: Sequence[Choice]) -> str:
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


def _why_it_stays(choice: Choice) -> str:
    if choice.live:
        return f"{choice.title} is live and stays."
    if choice.origin is Origin.ELSEWHERE:
        return f"{choice.title} is in another folder, {choice.run.path.parent}, and stays."
    if choice.origin is Origin.PUBLISHED:
        return f"{choice.title} is published, and stays: {_WHERE_PUBLISHED}."
    return ""


def _names(chosen: Iterable[Choice]) -> str:
    titles = [said(shortened(choice.title, _NAME_LENGTH)) for choice in chosen]
    more = f" and {len(titles) - _NAMED:,} more" if len(titles) > _NAMED else ""
    return ", ".join(f"<b><bdi>{title}</bdi></b>" for title in titles[:_NAMED]) + more
