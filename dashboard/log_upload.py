"""Other trainers' logs on the page: a dropped file or a pasted text becomes a run and is opened."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import address
import navigate
import run_list
import server_options
import streamlit as st
from problems import show_problem

from ampwatch.errors import AmpwatchError
from ampwatch.importers import ImportOptions, import_log, known_sources

_COUNT = "logs"  # with a new key, field and box are empty once their log is imported
_BY_CONTENT = "told by its content"
_LABEL = "Drop a log here, or paste it: DeepSpeed, Megatron-LM, Hugging Face and others, or CSV"
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
    """Draw the field and the box for a log, and what went wrong with what is in them."""
    if not server_options.shown_folders():
        return  # published runs alone: a run made here would not be in the list
    count = st.session_state.setdefault(_COUNT, 0)
    with st.container(horizontal=True, vertical_alignment="bottom", key="log-upload"):
        file = st.file_uploader(_LABEL, key=f"file {count}", max_upload_size=1024, help=_KINDS)
        with st.popover("Paste a log"):
            _draw_box(count)
    if file is not None:
        _diagnose(_Log(Path(file.name).name or "log", file.name, file.getbuffer()), f"file {count}")


def _draw_box(count: int) -> None:
    """Draw the box to paste a log into, and diagnose what was pasted."""
    sent = f"sent {count}"
    with st.form(f"pasted {count}", border=False):
        text = st.text_area(
            "Some lines of a log, or all of it", key=f"text {count}", height=200,
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
        show_problem(str(error).replace("name it with --as", "choose it below"))
        st.selectbox(
            "Its format", [_BY_CONTENT, *known_sources()], key=key,
            help="The log is read again as soon as you choose one.",
        )  # fmt: skip
        return
    st.session_state[_COUNT] += 1
    run_list.read_again()
    navigate.ask_for_page("Overview", address.read().of_run(run.name))
    navigate.switch_if_asked()


def _imported(log: _Log, source: str | None) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / log.file_name
        path.write_bytes(log.content)
        try:
            return import_log(path, server_options.shown_folders()[0], ImportOptions(source=source))
        except (AmpwatchError, OSError) as error:
            raise AmpwatchError(str(error).replace(str(path), log.called)) from error
