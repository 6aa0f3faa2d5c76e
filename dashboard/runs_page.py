"""All runs in a table: live ones first, each with its verdict."""

from __future__ import annotations

import html
import tempfile
import time
from pathlib import Path

import address
import browser
import navigate
import run_list
import streamlit as st
from formatting import age_text, said
from problems import guarded, problem
from run_entries import RunEntry

from ampwatch.diagnosis.words import scale_text, share_text
from ampwatch.errors import AmpwatchError
from ampwatch.importers import import_log
from ampwatch.report.painter import VERDICT_COLOR

_EVERY_S = 2.0
_KEY = "runs table"
_HEADS = (
    "verdict", "run", "loss scale", "scale over time", "skipped", "last step", "last row", "source",
)  # fmt: skip


_COUNT = "dropped"  # a new key empties the field once its file is imported
_LABEL = (
    "Drop a log file here to diagnose it: output of Apex, fairseq, DeepSpeed, Megatron-LM, Hugging "
    "Face and others, or CSV, JSON lines, TensorBoard"
)


def show() -> None:
    """The page of all runs, kept up to date."""
    st.html('<p class="aw-title" role="heading" aria-level="1">Runs</p>')
    st.fragment(_now, run_every=_EVERY_S)()
    _import_field()


@guarded
def _now() -> None:
    listed, entries = run_list.current(), run_list.entries()
    entries.keep({choice.path for choice in listed.choices})
    rows = "".join(_row(choice, entries.of(choice)) for choice in listed.choices)
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    browser.html(
        f'<table class="aw-runs all"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>',
        key=_KEY, search="Search runs, verdicts, findings", on_go=_chosen,
    )  # fmt: skip
    for sentence in listed.problems:
        st.html(f'<div class="aw-muted">{said(sentence)}</div>')
    navigate.follow()


def _chosen() -> None:
    name = st.session_state[_KEY].go
    if name:
        address.write(address.read().of_run(str(name)))
        navigate.ask("Overview")


def _row(choice: run_list.Choice, entry: RunEntry | None) -> str:
    age = age_text((time.time_ns() - choice.last_time_ns) / 1e9)
    when = f"{age} ago" if choice.last_time_ns else ""  # unknown for a log without times
    when = f'<span class="aw-live">live</span> {when}' if choice.live else when
    when = f'<span class="aw-cut">cut off</span> {when}' if choice.cut_off else when
    words = f"{choice.name} live" if choice.live else choice.name
    words += " cut off" if choice.cut_off else ""
    if entry is not None:
        words += f" {entry.verdict} {entry.headline} {entry.source}"
    link = html.escape(address.link("", address.read().of_run(choice.name)))
    name = (
        f'<a href="{link}" data-go="{html.escape(choice.name)}">{said(choice.name)}</a>'
        f'<span class="aw-muted">{said(entry.headline or entry.problem) if entry else ""}</span>'
    )
    cells = [_verdict(entry), name, *_numbers(entry), when, said(entry.source) if entry else ""]
    inside = "".join(f"<td>{cell}</td>" for cell in cells)
    return (
        f'<tr data-text="{html.escape(words)}" data-go="{html.escape(choice.name)}">{inside}</tr>'
    )


def _verdict(entry: RunEntry | None) -> str:
    if entry is None:
        return '<span class="aw-muted">reading</span>'
    tone = VERDICT_COLOR[entry.verdict]
    return f'<span class="aw-chip" style="--aw-tone:var(--aw-{tone})">{entry.verdict}</span>'


def _numbers(entry: RunEntry | None) -> list[str]:
    if entry is None:
        return ["", "", "", ""]
    scale = "" if entry.final_scale is None else said(scale_text(entry.final_scale))
    spark = (
        f'<svg viewBox="0 0 110 22" width="110" height="22"><path d="{entry.spark}" fill="none" '
        'stroke="var(--aw-scale)" stroke-width="1.4"/></svg>'
        if entry.spark
        else ""
    )
    tells_skips = entry.final_scale is not None or entry.skipped
    skipped = share_text(entry.skipped, entry.steps) if tells_skips else ""
    return [scale, spark, skipped, f"{entry.last_step:,}"]


# --- other trainers' logs -------------------------------------------------------------------------


def _import_field() -> None:
    """A field for another trainer's log: a file in it becomes a run, and is opened."""
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
    run_list.look_again()
    address.write(address.read().of_run(run.name))
    navigate.ask("Overview")
    navigate.follow()


def _imported(file: st.runtime.uploaded_file_manager.UploadedFile) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (Path(file.name).name or "log")  # its extension may tell the format
        path.write_bytes(file.getbuffer())
        return import_log(path, run_list.folders()[0])
