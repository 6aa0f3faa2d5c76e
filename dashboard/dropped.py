"""Another trainer's log, dropped onto the page: it becomes a run, and is opened."""

from __future__ import annotations

import tempfile
from pathlib import Path

import address
import navigate
import runs
import streamlit as st
from edge import problem

from ampwatch.errors import AmpwatchError
from ampwatch.importers import import_log

_COUNT = "dropped"  # a new key empties the field once its file is imported
_LABEL = (
    "Drop a log here to have it diagnosed: what Apex, fairseq, DeepSpeed, Megatron-LM, Hugging "
    "Face and others print, or CSV, JSON lines, TensorBoard"
)


def show() -> None:
    """The field; a file in it is imported beside the other runs."""
    count = st.session_state.setdefault(_COUNT, 0)
    file = st.file_uploader(_LABEL, key=f"{_COUNT} {count}", max_upload_size=1024)
    if file is None:
        return
    try:
        run = _imported(file)
    except (AmpwatchError, OSError) as error:
        problem(str(error))
        return
    st.session_state[_COUNT] = count + 1
    runs.look_again()
    address.write(address.Address(run=run.name))
    navigate.ask("Overview")
    navigate.follow()


def _imported(file: st.runtime.uploaded_file_manager.UploadedFile) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (Path(file.name).name or "log")  # its ending tells a format
        path.write_bytes(file.getbuffer())
        return import_log(path, runs.folders()[0])
