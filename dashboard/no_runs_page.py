"""The pages shown where there are no runs yet, or not the one asked for."""

from __future__ import annotations

import subprocess
import sys

import run_list
import server_options
import streamlit as st
from html_text import said
from log_upload import draw_log_upload

_DEMO = "demo"


def show_missing_run(name: str) -> None:
    """Draw the page for a run that the address names and that is gone or has not come yet."""
    others = "The others are on the left." if run_list.current_list().choices else ""
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


def show_no_runs() -> None:
    """Draw the page for a dashboard without runs: how to attach, the demo, a log."""
    st.html(
        '<p class="aw-title" role="heading" aria-level="1">No runs yet</p>'
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
        options = ["demo", "--no-dashboard", "--dir", str(server_options.shown_folders()[0])]
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
