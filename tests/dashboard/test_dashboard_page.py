"""The page, run by Streamlit's own test harness: what it says in every circumstance."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import received_runs
import streamlit as st
from page_driver import needs_components
from streamlit.testing.v1 import AppTest
from written_runs import step_columns, write_run

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
    return " ".join(element.proto.body for element in app.get("html"))


def test_an_empty_folder_shows_the_one_line_and_offers_the_demo(folder):
    app = page()
    assert not app.exception
    assert "ampwatch.attach(scaler, model)" in app.code[0].value
    assert app.button[0].label == "Run the demo"


def test_a_collapse_is_the_pages_headline(folder):
    write_run(folder, "bad", skipped=30)
    app = page()
    assert not app.exception
    assert "FAILING" in html_of(app)
    assert "AMP103 scale-collapse" in html_of(app)
    assert "30 of 130 · 23 %" in html_of(app)


def test_another_choice_shows_another_run(folder):
    write_run(folder, "bad", skipped=30, age_s=10)
    write_run(folder, "good", age_s=5000)
    app = page()
    assert "FAILING" in html_of(app)
    app.radio[0].set_value(str(folder / "good")).run()
    assert "HEALTHY" in html_of(app)


def test_live_runs_come_first(folder):
    write_run(folder, "finished", age_s=60)
    write_run(folder, "going-on", ended=False, age_s=0.5)
    assert "live" in page().radio[0].options[0]


@needs_components
def test_a_recorders_copy_of_a_run_that_is_here_itself_is_not_listed(folder):
    path = write_run(folder, "own")
    info = store.read_info(path)
    writer = store.RankWriter(store.create_run(folder / "copies", info), 0)
    writer.append(codec.encode(Table.STEPS, step_columns(3, 0, 10**18)))
    writer.close()
    store.write_copies(folder / "copies" / "own", {0: store.CopyNote()})
    (folder / "copies" / "own").rename(folder / "copied")
    assert list(page().radio[0].options) == ["own"]
    shutil.rmtree(path)
    app = page()
    assert list(app.radio[0].options) == ["copied · cut off · received"]
    assert "this copy stops before batch 1" in html_of(app)


def test_a_run_that_cannot_be_read_is_said(folder):
    write_run(folder, "good")
    (write_run(folder, "broken") / "run.json").write_text("{")
    app = page()
    assert list(app.radio[0].options) == ["good"]
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
    assert sorted(app.radio[0].options) == ["bad", "good", "linked"]
    assert "steps.arrows cannot be read" in html_of(app)


@needs_components
def test_received_runs_are_told_apart_and_push_no_own_run_off_the_sidebar(folder):
    for number in range(12):
        write_run(folder, f"own {number}", age_s=5000 + number)
    for number in range(5):
        path = write_run(folder, f"got {number}", age_s=10)
        store.write_copies(path, {0: store.CopyNote(ended_at=2)})
    app = page()
    options = app.radio[0].options
    assert [option.startswith("own") for option in options] == [True] * 9 + [False] * 3
    assert all(option.endswith("received") for option in options[9:])
    more = [link.proto.label for link in app.get("page_link")]
    assert "3 more runs" in more
    assert "2 more received runs" in more
    assert "0 live, 12 finished" in html_of(app)


def test_a_taken_port_is_left_to_who_has_it_and_the_page_says_where_it_listens(
    folder, monkeypatch, tmp_path
):
    with Recorder("tcp://127.0.0.1:*", tmp_path / "other") as first:
        monkeypatch.setenv("AMPWATCH_ENDPOINT", first.endpoint)
        st.cache_resource.clear()
        app = page()
        received_runs.server_feed().recorder.stop()
        st.cache_resource.clear()
    assert f"{first.endpoint} is taken" in html_of(app)
    assert "feed on 127.0.0.1:" in html_of(app)
    assert f"feed on {first.endpoint.removeprefix('tcp://')}" not in html_of(app)


def test_names_are_data(folder):
    write_run(folder, "<img src=x onerror=alert(1)> **bold**", skipped=30)
    app = page()
    assert not app.exception
    assert "<img src" not in html_of(app)
    assert "**" not in app.radio[0].options[0]


def test_the_server_listens_on_this_machine_only(folder):
    configuration = (ENTRY.parent / ".streamlit" / "config.toml").read_text()
    assert 'address = "localhost"' in configuration
    assert "gatherUsageStats = false" in configuration
    assert os.environ["AMPWATCH_ENDPOINT"] == "off"
