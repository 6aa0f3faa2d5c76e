"""All runs in a table: sorted, found, grouped, chosen, tagged, deleted; or that there are none.

Other trainers' logs are brought in here: a dropped file or a pasted text becomes a run.
"""

from __future__ import annotations

import html
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import address
import browser_component
import compare_loader
import received_runs
import run_list
import runs_table
import server_options
import streamlit as st
from address import RUNS_GROUPS, runs_view_in
from html_text import said, shortened
from page_parts import guarded, show_as_text, show_problem
from run_list import ListedRun, Origin, all_entries
from runs_table import RunRow

from ampwatch.diagnosis.value_text import bytes_text
from ampwatch.errors import AmpwatchError
from ampwatch.importers import ImportOptions, import_log, known_sources
from ampwatch.printable_text import printable
from ampwatch.report.painter.message import pack
from ampwatch.store import RunSummary, delete_run, edit_tags, size_of_run

_EVERY_S = 2.0
_KEY, _TABLE = "runs table", "runs as wanted"
_FIRST = "first row in view"


def show() -> None:
    """Draw the Runs page and keep it up to date."""
    with st.container(horizontal=True, horizontal_alignment="distribute", key="runs-head"):
        st.html('<p class="aw-title" role="heading" aria-level="1">Runs</p>', width="content")
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
            chosen, gone, compare_loader.MOST, can_keep=any(map(is_temporary, chosen))
        ),
        "head": runs_table.head_html(view, shown.columns),
        "rows": runs_table.body_html(
            window, first, shown.columns, {choice.name for choice in chosen}
        ),
        "first": first,
        "count": len(window),
        "total": len(shown.items),
        "begin": f"{view.find} {view.sort} {view.group} {shown.origin}",
        "dialog": dialog_html(),
    }
    browser_component.draw(pack(message, {}), _KEY, _acts())
    show_as_text(f"<table>{message['head']}{message['rows']}</table>")
    for sentence in listed.problems:
        st.html(f'<div class="aw-muted">{said(sentence)}</div>')
    address.switch_if_asked()


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
        "go": lambda run: address.ask_for_page("Overview", address.read().of_run(str(run))),
        "compare": lambda _: address.ask_for_page("Compare"),
        "window": _scroll_to,
        **{what: partial(_choose, what) for what in ("pick", "unpick", "clear")},
        **{what: partial(_use_dialog, what) for what in dialogs},
        **{what: partial(_change_view, what) for what in ("find", "sort", "from", "group", "fold")},
        **{what: partial(_change_columns, what) for what in ("column", "raise")},
    }


def _scroll_to(row: Any) -> None:
    st.session_state[_FIRST] = max(0, int(row) - runs_table.MARGIN)


def _use_dialog(what: str, value: Any) -> None:
    """Open a dialog of the Runs page, or do what the open one asked for."""
    match what:
        case "ask-tags":
            ask_for_tags(_chosen_runs(run_list.current_list())[0])
        case "ask-delete":
            ask_to_delete(_chosen_runs(run_list.current_list())[0])
        case "tags" if isinstance(value, dict):
            save_tags(value)
        case "delete":
            for name in delete_runs():
                _choose("unpick", name)
        case "keep":
            keep_runs(_chosen_runs(run_list.current_list())[0])
        case _:
            close_dialog()


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


def _change_columns(what: str, key: str) -> None:
    view = runs_view_in(address.read().list)
    shown = _table().contents(run_list.current_list(), view).columns
    columns = runs_table.columns_after(what, key, shown)
    address.change(list=replace(view, columns=columns).text())


def _choose(what: str, name: str) -> None:
    text = address.read().runs
    names = [] if what == "clear" or text is None else address.names_in(text)
    names = [one for one in names if one != name] + ([name] if what == "pick" else [])
    address.change(runs=address.names_text(names) if names else None)


# --- no runs yet ----------------------------------------------------------------------------------


_DEMO = "demo"


def show_missing_run(name: str) -> None:
    """Draw the page for a run that the address names and that is gone or has not come yet."""
    others = (
        "The switcher in the sidebar has the others." if run_list.current_list().choices else ""
    )
    if run_list.was_listed(name):
        st.html(
            '<p class="aw-title" role="heading" aria-level="1">This run is gone</p>'
            f'<div class="aw-muted"><bdi>{said(name)}</bdi> was deleted or moved, or its disk is '
            f"away. {others}</div>"
        )
        return
    st.html(
        f'<p class="aw-title" role="heading" aria-level="1">Waiting for {said(name)}</p>'
        '<div class="aw-muted">No run of this '
        f"name is in {said(_places())} yet; it appears here within seconds of its first step. "
        f"{others}</div>"
    )


def _places() -> str:
    return ", ".join(str(folder) for folder in server_options.shown_folders())


_WOULD_SHOW = {
    "Overview": "what broke, since when, and what to do, above the charts",
    "Findings": "each finding with its evidence and the lines that help",
    "Layers": "how well the values of each layer fit its number format",
    "Timeline": "what happened when: attempts, findings, skipped steps, checkpoints",
    "Memory and device": "where the memory goes, and whether the device waits",
    "Settings": "what the run was started with, and what changed since the last one",
    "Runs": "all runs in a table",
    "Compare": "where runs begin to differ",
}


def show_no_runs(page: str) -> None:
    """Draw a page of a dashboard without runs: what it would show, and how runs come here."""
    st.html(
        '<p class="aw-title" role="heading" aria-level="1">No runs yet</p>'
        f"<div>{page} shows {_WOULD_SHOW[page]}.</div>"
        f'<div class="aw-muted">Looked in {said(_places())}; a run that starts appears here.</div>'
    )
    st.markdown("Add one line to a training loop, before the loop:")
    st.code("ampwatch.attach(scaler, model)", language="python")
    if server_options.shown_folders():
        _offer_demo()
        st.markdown("or diagnose a log that you have:")
        draw_log_upload()


def _offer_demo() -> None:
    st.markdown("or see a small training go wrong, here and now, in under a minute:")
    if st.button("Run the demo", type="primary"):
        options = ["demo", "--no-dashboard", "-o", str(server_options.shown_folders()[0])]
        st.session_state[_DEMO] = subprocess.Popen(
            [sys.executable, "-m", "ampwatch", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    if _DEMO in st.session_state:
        code = st.session_state[_DEMO].poll()
        st.caption(
            f"The demo ended with exit code {code}; `ampwatch demo` in a terminal says why."
            if code
            else "The demo is starting; it appears here in a few seconds."
        )


# --- a log dropped or pasted ----------------------------------------------------------------------


_COUNT = "logs"  # with a new key, field and box are empty once their log is imported
_BY_CONTENT = "recognised by its content"
_LABEL = "A log of another trainer"
_KINDS = (
    "Output of Apex, fairseq, DeepSpeed, Megatron-LM, Hugging Face and others, or of any program "
    "whose lines name their numbers; CSV, JSON lines, Parquet, TensorBoard, W&B."
)
_PASTED = "pasted text"  # as errors call it


class _Log(NamedTuple):
    """A log that a reader gave: the file it makes, as errors call it, and what it holds."""

    file_name: str  # its extension may tell the format, its stem becomes the run's name
    called: str
    content: bytes | memoryview


def draw_log_upload() -> None:
    """Draw the button to import a log, and what went wrong; a drop on the page works too."""
    if not server_options.shown_folders():
        return  # published runs alone: a run made here would not be in the list
    count = st.session_state.setdefault(_COUNT, 0)
    with st.container(key="log-upload", width="content"):
        # Out of sight (runs.css): what is dropped anywhere goes to it (page_frame.js).
        file = st.file_uploader(_LABEL, key=f"file {count}", max_upload_size=1024)
        with st.popover("Import log", icon=":material/upload:"):
            browser_component.html(
                '<button type="button" class="aw-button" data-file>Choose a file</button>',
                key=f"choose file {count}",
            )
            st.caption(f"Or drop it anywhere on this page. {_KINDS}")
            _draw_box(count)
    if file is not None:
        _diagnose(_Log(Path(file.name).name or "log", file.name, file.getbuffer()), f"file {count}")


def _draw_box(count: int) -> None:
    """Draw the box to paste a log into, and diagnose what was pasted."""
    sent = f"sent {count}"
    with st.form(f"pasted {count}", border=False):
        text = st.text_area(
            "Or paste some lines of it, or all", key=f"text {count}", height=200,
            placeholder="step 100  loss 2.31  lr 1e-3\nstep 200  loss 2.19  lr 1e-3",
        )  # fmt: skip
        if st.form_submit_button("Diagnose"):
            st.session_state[sent] = True
    if not st.session_state.get(sent):
        return
    if text.strip():
        name = f"pasted-{datetime.now():%Y%m%d-%H%M%S}"
        _diagnose(_Log(name, _PASTED, text.encode("utf-8", "replace")), f"box {count}")
    else:
        show_problem("The box is empty: paste a log into it.")


def _diagnose(log: _Log, place: str) -> None:
    """Make a run of the log and open it, or say what is wrong and let its format be chosen."""
    key = f"format of {place}"
    chosen = st.session_state.get(key, _BY_CONTENT)
    try:
        with st.spinner("Reading the log."):
            run = _imported(log, None if chosen == _BY_CONTENT else chosen)
    except (AmpwatchError, OSError) as error:
        show_problem(str(error).replace("name it with --format", "choose it below"))
        st.selectbox(
            "Its format", [_BY_CONTENT, *known_sources()], key=key,
            help="The log is read again as soon as you choose one.",
        )  # fmt: skip
        return
    st.session_state[_COUNT] += 1
    run_list.read_again()
    address.ask_for_page("Overview", address.read().of_run(run.name))
    address.switch_if_asked()


def _imported(log: _Log, source: str | None) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / log.file_name
        path.write_bytes(log.content)
        try:
            return import_log(path, server_options.shown_folders()[0], ImportOptions(source=source))
        except (AmpwatchError, OSError) as error:
            raise AmpwatchError(str(error).replace(str(path), log.called)) from error


# --- dialogs: tags, deletion ----------------------------------------------------------------------


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
            note=_note_for(choice, told),
            note_seen=choice.run.note,
            title=str(told["title"]) if "title" in told else None,
            pin=_is_pinned(told),
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


def _note_for(choice: ListedRun, told: Mapping[str, Any]) -> str | None:
    """The run's note as the form says: its own, or a line that is added to that of each run."""
    if "note" in told:
        return str(told["note"]).replace("\r\n", "\n")
    added = str(told.get("line", "")).strip()
    return "\n".join(part for part in (choice.run.note, added) if part) if added else None


def _is_pinned(told: Mapping[str, Any]) -> bool | None:
    """Whether the form pins runs; None if it leaves them as they are."""
    return {"yes": True, "no": False}.get(str(told.get("pin", "")))


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
    if len(chosen) == 1:
        note = _note_of_one(chosen[0].run, typed)
    else:
        text = html.escape(str(typed.get("line", "")))
        note = (
            '<label>Line to add to the note of each <textarea name="line" rows="2">\n'
            f"{text}</textarea></label>"
        )
    note += _pin_choice(chosen, typed)
    said_trouble = f'<p class="aw-cut" role="alert">{said(trouble)}</p>' if trouble else ""
    inside = (
        f"<p>{_names(chosen)}</p>"
        f'<label>Tags to add, with spaces between <input name="add" value="{add}" autofocus '
        f'autocomplete="off"></label>{removal}{note}{said_trouble}'
    )
    return _form(
        "Tags and note", inside, _button("tags", "Save", "aw-main"), _button("close", "Cancel")
    )


def _note_of_one(run: RunSummary, typed: Mapping[str, Any]) -> str:
    """The fields for one run's name and note."""
    title = html.escape(str(typed.get("title", run.title)))
    text = html.escape(str(typed.get("note", run.note)))
    return (
        f'<label>Name in lists <input name="title" value="{title}" autocomplete="off" '
        f'maxlength="120" placeholder="{html.escape(printable(run.name))}"></label>'
        f'<label>Note <textarea name="note" rows="4">\n{text}</textarea></label>'
    )


def _pin_choice(chosen: Sequence[ListedRun], typed: Mapping[str, Any]) -> str:
    """The choice whether runs stand first in lists; as they are, where they differ."""
    pins = {choice.run.is_pinned for choice in chosen}
    is_now = ("yes" if pins.pop() else "no") if len(pins) == 1 else ""
    now = str(typed.get("pin", is_now))
    words = {"": "as they are", "no": "no", "yes": "yes"}
    options = "".join(
        f'<option value="{value}"{" selected" if value == now else ""}>{text}</option>'
        for value, text in words.items()
        if value or not is_now
    )
    return f'<label>Pinned: first in lists <select name="pin">{options}</select></label>'


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
