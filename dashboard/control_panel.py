"""Act on a live run: its learning rate, a checkpoint, its end; where its trainer allows it.

Every action asks for confirmation, and only the run's own rows show that it was done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import received_runs
import streamlit as st
from html_text import rate_text, said
from open_runs import RunSnapshot

from ampwatch.diagnosis.record import detail_of
from ampwatch.errors import FrameError
from ampwatch.feed import Instruction, Key
from ampwatch.report.overview_chart import is_change
from ampwatch.rows import EventKind, Table

_KINDS = (EventKind.STARTED.value, EventKind.CONTROL.value)
_EVENTS = ("step", "time_ns", "kind", "detail")
_ASKED, _SENT = "control asked", "control sent"  # for what; when, as what, in which run
_PATIENCE_S = 20.0
_SHOWN_S = 600.0  # an answer

_NAMES = {
    Key.RATE: "Set the learning rate",
    Key.SAVE: "Save a checkpoint now",
    Key.STOP: "Stop after this step",
}
_YES = {Key.RATE: "Set it", Key.SAVE: "Save it", Key.STOP: "Stop it"}
_QUESTIONS = {
    Key.SAVE: "Save a checkpoint after the step in progress?",
    Key.STOP: "Stop the training after the step in progress? It ends as after Ctrl-C.",
}


def show(run: RunSnapshot) -> None:
    """Draw the buttons that control a live run, a question before each, and the answers."""
    if not run.is_live or run.info.source != "ampwatch":
        return
    allowed, answers = _offers_and_answers(run)
    if allowed:
        asked = st.session_state.get(_ASKED)
        if asked is not None and asked[0] == run.path:
            _question(run, Key(asked[1]))
        else:
            _buttons(run, allowed)
    for sentence in _answer_sentences(run, answers):
        st.html(f'<div class="aw-control" role="status">{said(sentence)}</div>')


def hint_to_allow(run: RunSnapshot) -> str:
    """A sentence on how to let this page control a live run that does not allow it yet."""
    if not run.is_live or run.info.source != "ampwatch" or _offers_and_answers(run)[0]:
        return ""
    return (
        "This page only watches the run. To change its learning rate, save or stop from here, "
        "start it with ampwatch.attach(..., control=True)."
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """A trainer's answer to one instruction of the dashboard."""

    number: int
    step: int
    time_ns: int
    sentence: str


def _offers_and_answers(run: RunSnapshot) -> tuple[tuple[str, ...], list[_Answer]]:
    """What a run's trainer allows the dashboard to do now, and its answers, the newest last."""
    rows = run.read_table(Table.EVENTS, _EVENTS, min(run.ranks, default=0))
    kinds = pc.cast(rows.column("kind"), "string")
    offers: tuple[str, ...] = ()
    answers = []
    for row in rows.filter(pc.is_in(kinds, pa.array(_KINDS))).to_pylist():
        if (
            row["kind"] == EventKind.STARTED.value
        ):  # another attempt, which may allow something else
            offers = ()
            continue
        detail = detail_of(row["detail"])
        if "offers" in detail:
            offers = tuple(map(str, detail["offers"]))
        elif isinstance(detail.get("number"), int):
            sentence = str(detail.get("told"))
            answers.append(
                _Answer(detail["number"], row["step"] or 0, row["time_ns"] or 0, sentence)
            )
    return offers, answers


# --- the buttons and the question -----------------------------------------------------------------


def _buttons(run: RunSnapshot, allowed: tuple[str, ...]) -> None:
    with st.container(horizontal=True):
        for key in Key:
            if key.value in allowed and (key is not Key.RATE or _base_rate(run)):
                st.button(_label(run, key), key=f"control {key.value}", on_click=_ask,
                          args=(run.path, key.value))  # fmt: skip


def _label(run: RunSnapshot, key: Key) -> str:
    advised = _advised(run)
    if key is Key.RATE and advised is not None:
        return f"{_NAMES[key]} to {rate_text(advised)}"
    return f"{_NAMES[key]} …" if key is Key.RATE else _NAMES[key]


def _ask(path: str, key: str) -> None:
    st.session_state[_ASKED] = (path, key)


def _question(run: RunSnapshot, key: Key) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        instruction = _rate_question(run) if key is Key.RATE else _plain_question(key)
        can = instruction is not None
        st.button(_YES[key], key="control yes", type="primary", disabled=not can,
                  on_click=_send, args=(run, instruction))  # fmt: skip
        st.button("Cancel", key="control no", on_click=_forget)


def _plain_question(key: Key) -> Instruction:
    st.markdown(_QUESTIONS[key])
    return Instruction(key)


def _rate_question(run: RunSnapshot) -> Instruction | None:
    """Ask in the control panel which learning rate to set; None while it cannot be set."""
    now = _base_rate(run)
    assert now is not None
    wanted = st.number_input(
        f"Learning rate, now {rate_text(now)}",
        value=float(f"{_advised(run) or now:.3g}"), min_value=0.0, format="%.3g",
        key="control rate", step=None, width=220,
    )  # fmt: skip
    try:
        found = Instruction(Key.RATE, wanted / now)
    except FrameError as problem:
        st.markdown(str(problem))
        return None
    if f"{wanted:.3g}" == f"{now:.3g}":
        st.markdown("Enter the rate to train with.")
        return None
    st.markdown(
        f"Every group and schedule is multiplied by {wanted / now:.3g} after the step in progress."
    )
    return found


def _base_rate(run: RunSnapshot) -> float | None:
    """The rate that the control panel multiplies: the advice's base rate, else the latest."""
    current = None if run.diagnosis is None else run.diagnosis.learning_rate.current
    latest, _ = run.curves.latest("lr")
    return current or latest or None


def _advised(run: RunSnapshot) -> float | None:
    if run.diagnosis is None or not is_change(run.diagnosis.learning_rate):
        return None
    return run.diagnosis.learning_rate.recommended


# --- sending, and what came of it -----------------------------------------------------------------


def _forget() -> None:
    st.session_state.pop(_ASKED, None)


def _send(run: RunSnapshot, instruction: Instruction) -> None:
    _forget()
    recorder = received_runs.server_feed().recorder
    number = None if recorder is None else recorder.instruct(run.info.id, instruction)
    st.session_state[_SENT] = (run.path, instruction.key.value, number, time.monotonic())


def _answer_sentences(run: RunSnapshot, answers: list[_Answer]) -> list[str]:
    """For the control panel: the trainer's answer to this page, else its latest to any."""
    path, key, number, since_s = st.session_state.get(_SENT, ("", "", None, 0.0))
    own = [answer for answer in answers if answer.number == number]
    if path == run.path and not own:
        name = _NAMES[Key(key)].lower()
        if number is None:
            return [f"Not sent ({name}): the run's trainer is not connected to this page's feed."]
        waited_s = time.monotonic() - since_s
        if waited_s < _PATIENCE_S:
            return [f"Sent ({name}); the trainer does it after the step in progress."]
        away = "the trainer is in a long step, hangs, or is gone. It refuses late instructions."
        return [f"No answer for {waited_s:.0f} s ({name}): {away}"]
    shown = own or [a for a in answers[-1:] if time.time_ns() - a.time_ns < _SHOWN_S * 1e9]
    return [f"Step {answer.step:,}: {answer.sentence}" for answer in shown[-2:]]
