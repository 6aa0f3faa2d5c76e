"""The page, run by Streamlit's own test harness: what it says in every circumstance."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import received_runs
import run_list
import sidebar
import streamlit as st
from page_driver import needs_components
from streamlit.testing.v1 import AppTest
from written_runs import more, step_columns, write_run

import ampwatch
from ampwatch import codec, store
from ampwatch.recorder import Recorder
from ampwatch.rows import Table

ENTRY = Path(__file__).parents[2] / "dashboard" / "streamlit_app.py"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the page looks for runs; the feed is off, and without a server nobody sends alerts."""
    monkeypatch.setattr("alerts_page.start_alerts", list)
    monkeypatch.setenv("AMPWATCH_DASHBOARD_DIRS", str(tmp_path))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(ampwatch.__file__).parents[1]))
    return tmp_path


def page() -> AppTest:
    st.cache_resource.clear()  # what was seen half a second ago
    return AppTest.from_file(ENTRY, default_timeout=60).run()


def html_of(app: AppTest) -> str:
    """The HTML of the page: Streamlit's, and that of our components, as their messages hold it."""
    ours = [str(element.proto.bytes) for element in app.get("bidi_component")]
    return " ".join([*(element.proto.body for element in app.get("html")), *ours])


def test_an_empty_folder_shows_the_one_line_and_offers_the_demo(folder):
    app = page()
    assert not app.exception
    assert "ampwatch.attach(scaler, model)" in app.code[0].value
    assert app.button[0].label == "Run the demo"


@pytest.mark.parametrize("page_name", [*sidebar.OF_RUN, "Runs", "Compare"])
def test_without_runs_each_page_says_what_it_would_show_and_takes_a_log(folder, page_name):
    def script(page_name):
        import runs_page

        runs_page.show_no_runs(page_name)

    app = AppTest.from_function(script, kwargs={"page_name": page_name}, default_timeout=60).run()
    assert not app.exception
    assert f"{page_name} shows " in html_of(app)
    assert len(app.get("file_uploader")) == 1


def test_a_collapse_is_the_pages_headline(folder):
    write_run(folder, "bad", skipped=30)
    app = page()
    assert not app.exception
    assert "FAILING" in html_of(app)
    assert "AMP103" in html_of(app)
    assert "<b>30 of 130</b><small>23 %</small>" in html_of(app)


def test_another_address_shows_another_run(folder):
    write_run(folder, "bad", skipped=30, age_s=10)
    write_run(folder, "good", age_s=5000)
    app = page()
    assert "FAILING" in html_of(app)
    app.query_params["run"] = "good"
    assert "HEALTHY" in html_of(app.run())


def names_listed() -> list[str]:
    """The names in the list of runs, in its order, as all pages and the switcher show them."""
    st.cache_resource.clear()
    return [choice.full_title for choice in run_list.current_list().choices]


def test_the_newest_activity_comes_first_and_a_run_that_just_died_stays_on_top(folder):
    write_run(folder, "ended a while ago", age_s=600)
    write_run(folder, "began last, ended first", age_s=3000)
    write_run(folder, "goes on", ended=False, age_s=0.5)
    died = write_run(folder, "just died", ended=False, age_s=9000)
    more(died, 3, time_ns=time.time_ns() - 90 * 10**9 + np.arange(3))
    assert names_listed() == [
        "goes on", "just died", "ended a while ago", "began last, ended first",
    ]  # fmt: skip


@needs_components
def test_a_recorders_copy_of_a_run_that_is_here_itself_is_not_listed(folder):
    path = write_run(folder, "own")
    info = store.read_info(path)
    writer = store.RankWriter(store.create_run(folder / "copies", info), 0)
    writer.append(codec.encode(Table.STEPS, step_columns(3, 0, 10**18)))
    writer.close()
    store.write_copies(folder / "copies" / "own", {0: store.CopyNote()})
    (folder / "copies" / "own").rename(folder / "copied")
    assert names_listed() == ["own"]
    shutil.rmtree(path)
    app = page()
    assert names_listed() == ["copied · received"]
    assert "this copy stops before batch 1" in html_of(app)


def test_a_run_keeps_its_name_when_one_of_another_place_is_called_the_same(folder, monkeypatch):
    monkeypatch.setenv("AMPWATCH_DASHBOARD_DIRS", os.pathsep.join([str(folder), f"{folder}/more"]))
    write_run(folder, "same", age_s=50)
    got = write_run(folder / "more", "same", age_s=10, host="node-7")
    store.write_copies(got, {0: store.CopyNote(ended_at=2)})
    info = store.read_info(got)
    store.describe_run(got, dataclasses.replace(info, id="9" * 32))
    st.cache_resource.clear()
    names = {choice.full_title: choice.name for choice in run_list.current_list().choices}
    assert names == {"same": "same", "same · from node-7": "same~999999"}


def test_a_run_that_cannot_be_read_is_said(folder):
    write_run(folder, "good")
    (write_run(folder, "broken") / "run.json").write_text("{")
    app = page()
    assert names_listed() == ["good"]
    assert "broken cannot be opened" in html_of(app)


def test_a_run_with_a_damaged_end_takes_no_list_down(folder):
    write_run(folder, "good")
    steps = write_run(folder, "bad") / "rank-0" / "steps.arrows"
    steps.write_bytes(steps.read_bytes()[:-4096] + bytes(4096))
    (write_run(folder, "linked") / "rank-0" / "lock").unlink()
    (folder / "linked" / "rank-0" / "lock").symlink_to("nowhere")
    lost = write_run(folder, "lost") / "rank-0" / "steps.arrows"
    lost.unlink()
    lost.mkdir()
    app = page()
    assert not app.exception
    assert sorted(names_listed()) == ["bad", "good", "linked"]
    assert "steps.arrows cannot be read" in html_of(app)


def test_runs_of_other_places_are_told_apart_and_are_not_in_the_switcher(folder):
    for number in range(12):
        write_run(folder, f"own {number}", age_s=5000 + number)
    for number in range(5):
        path = write_run(folder, f"got {number}", age_s=10, host="node-7")
        store.write_copies(path, {0: store.CopyNote(ended_at=2)})
    st.cache_resource.clear()
    listed = run_list.current_list()
    assert sum(choice.full_title.endswith(" · from node-7") for choice in listed.choices) == 5
    rows, hidden = sidebar._rows_of(listed, "")
    assert [row.title for row in rows] == [f"own {number}" for number in range(12)]
    assert hidden == 0
    assert [row.title for row in sidebar._rows_of(listed, "OWN 11")[0]] == ["own 11"]


def test_a_taken_port_is_left_to_who_has_it_and_the_page_says_where_it_listens(
    folder, monkeypatch, tmp_path
):
    with Recorder("tcp://127.0.0.1:*", tmp_path / "other") as first:
        monkeypatch.setenv("AMPWATCH_ENDPOINT", first.endpoint)
        st.cache_resource.clear()
        app = page()
        recorder = received_runs.server_feed().recorder
        recorder.stop()
        st.cache_resource.clear()
    assert f"{first.endpoint} is taken" in html_of(app)
    assert recorder.endpoint.removeprefix("tcp://") in html_of(app)
    assert recorder.endpoint != first.endpoint


def test_names_are_data(folder):
    write_run(folder, "<img src=x onerror=alert(1)> **bold**", skipped=30)
    app = page()
    assert not app.exception
    bodies = [element.proto.body for element in app.get("html")]
    assert not any("<img src" in body for body in bodies)
    row = sidebar._row_html(run_list.current_list().choices[0], None)
    assert "<img src" not in row


def test_the_server_listens_on_this_machine_only(folder):
    configuration = (ENTRY.parent / ".streamlit" / "config.toml").read_text()
    assert 'address = "localhost"' in configuration
    assert "gatherUsageStats = false" in configuration
    assert os.environ["AMPWATCH_ENDPOINT"] == "off"
