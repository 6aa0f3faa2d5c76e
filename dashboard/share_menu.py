"""What the Share menu of a run's chart offers beside files: Plotly, and the HTML report."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import address
import open_runs
import run_chart
import streamlit as st
from browser_component import Acts
from page_parts import guarded

from ampwatch.recovery.proof import judge
from ampwatch.report import html_report
from ampwatch.report.plotly_figure import figure_of_scene
from ampwatch.store import open_run

_ASKED = "asked to share"


def acts() -> Acts:
    """What is called when its reader chooses one of them."""
    return {kind: partial(_ask, kind) for kind in _DIALOGS}


def _ask(kind: str, _: object) -> None:
    st.session_state[_ASKED] = kind


def draw_page_if_asked() -> None:
    """Draw the whole page anew if something is to be shared: a part of it shows no dialog."""
    if _ASKED in st.session_state:
        st.rerun()


def show_dialog_if_asked(path: str) -> None:
    """Open the dialog of what was chosen in the menu."""
    kind = st.session_state.pop(_ASKED, None)
    if kind is not None:
        _DIALOGS[kind](path)


@st.dialog("The chart in Plotly", width="large")
@guarded
def _show_plotly(path: str) -> None:
    theme = "dark" if st.context.theme.type == "dark" else "light"
    picture, arrays = run_chart.scene_of(open_runs.snapshot(path), address.read())
    st.plotly_chart(figure_of_scene(picture, arrays, theme), width="stretch", theme=None)


@st.dialog("HTML report")
@guarded
def _show_report(path: str) -> None:
    st.download_button(
        "Download HTML report", partial(_report_file, path), f"{Path(path).name}.html",
        "text/html", on_click="ignore", type="primary",
    )  # fmt: skip
    st.html('<div class="aw-muted">One file: findings, charts, layers and settings.</div>')


def _report_file(path: str) -> str:
    """The HTML report to download, as `ampwatch report -o` writes it, made on demand."""
    run = open_run(path)
    judged = judge(run)
    return html_report(run, judged.diagnosis, judged.established_scale)


_DIALOGS = {"plotly": _show_plotly, "report": _show_report}
