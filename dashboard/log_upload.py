"""The upload field for other trainers' logs: a dropped file becomes a run, and is opened."""

from __future__ import annotations

import tempfile
from pathlib import Path

import address
import navigate
import run_list
import server_options
import streamlit as st
from problems import show_problem

from ampwatch.errors import AmpwatchError
from ampwatch.importers import ImportOptions, import_log, known_sources

_COUNT = "dropped"  # a new key empties the field once its file is imported
_FORMAT = "format of the log"
_BY_CONTENT = "told by its content"
_LABEL = (
    "Drop a log file here to diagnose it: output of Apex, fairseq, DeepSpeed, Megatron-LM, Hugging "
    "Face and others, or CSV, JSON lines, TensorBoard"
)


def draw_log_upload() -> None:
    """Draw the upload field for a log, and what went wrong with the file in it."""
    count = st.session_state.setdefault(_COUNT, 0)
    file = st.file_uploader(_LABEL, key=f"{_COUNT} {count}", max_upload_size=1024)
    if file is None:
        return
    try:
        run = _imported(file, _chosen_format())
    except (AmpwatchError, OSError) as error:
        show_problem(str(error).replace("name it with --as", "choose it below"))
        st.selectbox(
            "Its format", [_BY_CONTENT, *known_sources()], key=_FORMAT,
            help="The file is read again as soon as you choose one.",
        )  # fmt: skip
        return
    st.session_state[_COUNT] = count + 1
    st.session_state.pop(_FORMAT, None)
    run_list.read_again()
    navigate.ask_for_page("Overview", address.read().of_run(run.name))
    navigate.switch_if_asked()


def _chosen_format() -> str | None:
    chosen = st.session_state.get(_FORMAT, _BY_CONTENT)
    return None if chosen == _BY_CONTENT else str(chosen)


def _imported(file: st.runtime.uploaded_file_manager.UploadedFile, source: str | None) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (Path(file.name).name or "log")  # its extension may tell the format
        path.write_bytes(file.getbuffer())
        try:
            return import_log(path, server_options.shown_folders()[0], ImportOptions(source=source))
        except (AmpwatchError, OSError) as error:
            raise AmpwatchError(str(error).replace(str(path), file.name)) from error
