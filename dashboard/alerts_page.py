"""Alerts: who gets messages about faults in live runs; set up and tested here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import address
import run_list
import streamlit as st
from html_text import age_text, said
from page_parts import guarded, show_as_text, show_problem

from ampwatch.alerts import (
    KINDS,
    LEAST_WORDS,
    AlertSender,
    AlertSetting,
    Outcome,
    Trial,
    add_setting,
    change_setting,
    is_web_hook,
    masked_address,
    missing_library,
    new_setting,
    open_services,
    read_outcomes,
    read_settings,
    remove_setting,
    what_text,
)
from ampwatch.diagnosis import RULES
from ampwatch.errors import AlertError

_EVERY_S = 1.0
_RESULT_SHOWN_S = 120.0  # then the line of the last message says enough
_NEW = "new"  # in the address, where else the id of the setting that is changed stands
_COUNT, _ASKED, _SAID = "alert forms", "remove alert", "alert said"
_CODES = [rule.code for rule in RULES]
_RULE = (
    "Each finding in a live run is reported once, with the step, the layer and what to do, and "
    "again if it gets worse. So is a run that is killed. Alerts within a minute are sent as one "
    "message."
)
_ONLY_HOOKS = (
    "Without that library only a web hook of your own works: json://host:port/path, or jsons:// "
    "for https. Nothing was saved."
)
_FORMS = (
    (
        "Slack",
        "slack://TOKEN_A/TOKEN_B/TOKEN_C",
        "or the address of its web hook, as Slack shows it",
    ),
    ("Discord", "discord://WEBHOOK_ID/WEBHOOK_TOKEN", "or the address of its web hook"),
    ("E-mail", "mailto://user:password@example.com?to=you@example.com", "sent by that mail server"),
    ("Phone", "ntfy://a-topic-that-nobody-guesses", "with the app ntfy, without an account"),
    ("Your own", "json://host:port/path", "a web hook of yours; jsons:// for https"),
)


@st.cache_resource(show_spinner=False)
def start_alerts() -> deque[str]:
    """Start to send alerts, once in this server; returns the sender's latest notes."""
    notes: deque[str] = deque(maxlen=3)
    AlertSender(_live_runs, on_note=notes.append)
    return notes


def _live_runs() -> Iterator[Path]:
    return (Path(choice.path) for choice in run_list.current_list().choices if choice.live)


def show() -> None:
    """Draw the Alerts page."""
    st.html(
        '<p class="aw-title" role="heading" aria-level="1">Alerts</p>'
        f'<div class="aw-muted">{_RULE}</div>'
    )
    settings = read_settings()
    if sentence := missing_library():
        show_problem(sentence)
    _say_what_was_done()
    for setting in settings:
        st.fragment(_receiver, run_every=_EVERY_S)(setting.id)
        if address.read().alert == setting.id:
            _receiver_form(setting)
    if not settings:
        _explain_alerts()
        _receiver_form(None)
    elif address.read().alert == _NEW:
        _receiver_form(None)
    elif st.button("Add another"):
        address.change(alert=_NEW)
        st.rerun()
    st.html(
        '<div class="aw-muted">Sent by this server while it runs, whether or not a page is open, '
        "and by <code>ampwatch record</code>. In a terminal: <code>ampwatch alerts</code>.</div>"
    )
    show_as_text(_RULE, *(_receiver_html(setting) for setting in settings))
    st.fragment(_rerun_on_change, run_every=2 * _EVERY_S)(settings)


def _explain_alerts() -> None:
    forms = _FORMS[-1:] if missing_library() else _FORMS
    rows = "".join(
        f"<div><dt>{said(who)}</dt><dd><code>{said(form)}</code></dd><dd>{said(remark)}</dd></div>"
        for who, form, remark in forms
    )
    others = (
        '<div class="aw-muted">A hundred other services are understood as well: '
        '<a href="https://appriseit.com/services/" target="_blank" rel="noreferrer">their '
        "addresses</a>.</div>"
    )
    st.html(
        '<h2 class="aw-receiver">Nobody gets alerts yet</h2><div>Get a message when a run fails at '
        "night. Choose below where it goes; a test message shows whether it arrives.</div>"
        f'<dl class="aw-forms">{rows}</dl>{"" if missing_library() else others}'
    )


@guarded
def _rerun_on_change(shown: tuple[AlertSetting, ...]) -> None:
    """Draw the page of alerts anew when others have changed the settings of alerts."""
    if read_settings() != shown:
        st.rerun()


def _say_what_was_done() -> None:
    """Say once what was just done to a receiver of alerts."""
    sentence = st.session_state.pop(_SAID, "")
    if sentence:
        st.html(f'<div class="aw-told" role="status">{said(sentence)}</div>')


# --- one receiver ---------------------------------------------------------------------------------


@guarded
def _receiver(setting_id: str) -> None:
    setting = next((one for one in read_settings() if one.id == setting_id), None)
    if setting is None:
        return  # removed by somebody else a moment ago
    st.html(_receiver_html(setting))
    st.html(_trial_result(setting))  # by itself: it is read aloud whenever it is drawn anew
    with st.container(horizontal=True, vertical_alignment="center", key=f"alert {setting.id}"):
        _receiver_buttons(setting)
    if st.session_state.get(_ASKED) == setting.id:
        _ask_whether_to_remove(setting)


def _receiver_html(setting: AlertSetting) -> str:
    """A receiver of alerts as HTML: its name, what it gets, its last messages."""
    outcome = read_outcomes().get(setting.id, Outcome())
    masked = masked_address(setting.address)
    return (
        f'<h2 class="aw-receiver"><bdi>{said(setting.name or masked)}</bdi>'
        f"<span>{said(masked) if setting.name else ''}</span></h2>"
        f"<div>{said(setting.scope)}</div>{_last_messages(setting, outcome)}"
    )


def _last_messages(setting: AlertSetting, outcome: Outcome) -> str:
    """The last alert that reached a receiver and the last that did not, with their ages."""
    told = [] if setting.is_on else ['<b class="aw-off">Off: nothing is sent.</b>']
    lacks = _lacks_library(setting.address)
    if lacks:  # what it is, and how to get it, stands above
        told.append('<b class="aw-off">Nothing is sent: the library is missing.</b>')
    if outcome.sent_ns:
        told.append(f"Last message {_ago(outcome.sent_ns)}: {said(outcome.title)}")
    if outcome.failed_ns and not lacks:
        failed = f"Last failure {_ago(outcome.failed_ns)}: {said(outcome.failure)}"
        is_news = outcome.failed_ns > outcome.sent_ns
        told.append(f'<span class="aw-failed">{failed}</span>' if is_news else failed)
    if not (outcome.sent_ns or outcome.failed_ns):
        told.append("No message yet.")
    return f'<div class="aw-muted">{"<br>".join(told)}</div>'


def _lacks_library(address: str) -> bool:
    """Whether alerts to this address need a library that is not there."""
    return bool(missing_library()) and not is_web_hook(address)


def _ago(time_ns: int) -> str:
    return f"{age_text((time.time_ns() - time_ns) / 1e9)} ago"


def _trial_result(setting: AlertSetting) -> str:
    """The result of a receiver's test message, in an element that is read aloud."""
    trial = _trials().get(setting.id)
    words = tone = ""
    if trial is not None and trial.result is None:
        words = "The test message is on its way …"
    elif trial is not None and trial.result is not None and trial.age_s < _RESULT_SHOWN_S:
        words = trial.result.sentence
        tone = "good" if trial.result.is_accepted else "bad"
    return f'<div class="aw-result {tone}" role="status">{said(words)}</div>'


@st.cache_resource(show_spinner=False)
def _trials() -> dict[str, Trial]:
    """The last test message to each receiver of alerts, shared by all tabs."""
    return {}


def _receiver_buttons(setting: AlertSetting) -> None:
    switch = f"alert on {setting.id}"
    st.session_state[switch] = setting.is_on
    st.toggle("On", key=switch, on_change=_switch, args=(setting.id, not setting.is_on))
    trial = _trials().get(setting.id)
    is_under_way = trial is not None and trial.result is None
    is_off = is_under_way or _lacks_library(setting.address)
    if st.button("Send a test message", key=f"try {setting.id}", disabled=is_off):
        _trials()[setting.id] = Trial(setting)
        st.rerun(scope="fragment")
    if st.button("Change", key=f"change {setting.id}"):
        address.change(alert=setting.id)
        st.rerun()
    if st.button("Remove", key=f"remove {setting.id}"):
        st.session_state[_ASKED] = setting.id
        st.rerun(scope="fragment")


def _switch(setting_id: str, is_on: bool) -> None:  # noqa: FBT001  Streamlit calls it
    try:
        change_setting(setting_id, is_on=is_on)
    except AlertError as error:
        st.session_state[_SAID] = str(error)


def _ask_whether_to_remove(setting: AlertSetting) -> None:
    st.html(
        f'<div role="alert">Remove {said(setting.label)}? Its address is forgotten, and nothing '
        "more is sent there.</div>"
    )
    with st.container(horizontal=True, key=f"question {setting.id}"):
        if st.button("Remove it", type="primary", key=f"really {setting.id}"):
            remove_setting(setting.id)
            _close_form(f"{setting.label} is removed.")
        if st.button("Keep it", key=f"keep {setting.id}"):
            st.session_state[_ASKED] = None
            st.rerun(scope="fragment")


# --- the form -------------------------------------------------------------------------------------


def _receiver_form(setting: AlertSetting | None) -> None:
    """Draw the form for a new receiver of alerts, or for one whose address is not shown again."""
    key = f"{setting.id if setting else _NEW} {st.session_state.setdefault(_COUNT, 0)}"
    heading = f"Change {setting.label}" if setting else "Tell somebody"
    every = "slack://… discord://… mailto://… json://…"
    examples = "json://host:port/path" if missing_library() else every
    with st.form(f"alert form {key}", enter_to_submit=False):
        st.html(f'<h2 class="aw-receiver">{said(heading)}</h2>')
        given = st.text_input(
            "Address", type="password", autocomplete="off", key=f"alert address {key}",
            placeholder="as it is" if setting else examples,
            help="It may hold a password: it is kept in a file that only you can read, and never "
            "shown again." + (" Leave it empty to keep the one that is set." if setting else ""),
        )  # fmt: skip
        name = st.text_input(
            "Name (may be empty)", value=setting.name if setting else "", max_chars=60,
            key=f"alert name {key}", placeholder="such as: team chat",
        )  # fmt: skip
        levels = list(LEAST_WORDS)
        least = st.radio(
            "How bad", levels, index=levels.index(setting.least) if setting else 1,
            key=f"alert least {key}", format_func=LEAST_WORDS.__getitem__, horizontal=True,
        )  # fmt: skip
        chosen = list(setting.what) if setting else []
        what = st.multiselect(
            "What", list(dict.fromkeys([*KINDS, *_CODES, *chosen])),
            default=chosen, key=f"alert what {key}", format_func=what_text,
            placeholder="all findings",
        )  # fmt: skip
        runs = st.text_input(
            "Runs", value=", ".join(setting.runs) if setting else "", key=f"alert runs {key}",
            placeholder="all runs", help="Names, separated by commas; * stands for any letters: "
            "train-*, sweep-7",
        )  # fmt: skip
        with st.container(horizontal=True):
            is_sent = st.form_submit_button("Save" if setting else "Add", type="primary")
            is_left = st.form_submit_button("Cancel") if address.read().alert else False
    if is_left:
        _close_form("")
    if is_sent:
        parts = {"name": name, "least": least, "what": tuple(what), "runs": tuple(runs.split(","))}
        if given.strip() and _lacks_library(given.strip()):
            show_problem(_ONLY_HOOKS)
            return
        try:
            _save(setting, given.strip(), parts)
        except AlertError as error:
            show_problem(str(error))


def _save(setting: AlertSetting | None, given: str, parts: dict[str, object]) -> None:
    if setting is None:
        made = new_setting(given, **parts)
        open_services([made.address])  # whether it is understood
        add_setting(made)
        _close_form(
            f"{made.label} gets alerts from now on. Send a test message to see whether it arrives."
        )
    else:
        if given:
            open_services([given])
            parts["address"] = given
        _close_form(f"{change_setting(setting.id, **parts).label} is changed.")


def _close_form(sentence: str) -> None:
    """Close the form of a receiver, forget what was typed, and say what was done."""
    st.session_state[_SAID] = sentence
    st.session_state[_COUNT] = st.session_state.get(_COUNT, 0) + 1
    st.session_state[_ASKED] = None
    address.change(alert=None)
    st.rerun()
