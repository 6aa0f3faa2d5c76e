"""A log pasted into the page: opened as a run, or answered with what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import streamlit as st
from page_driver import needs_browser, needs_components, tab
from streamlit.testing.v1 import AppTest
from written_runs import write_run

import ampwatch
from ampwatch.cli.dashboard import Server
from ampwatch.errors import LogError
from ampwatch.importers import import_log

ENTRY = Path(__file__).parents[2] / "dashboard" / "streamlit_app.py"
LOSSES = [11.7, 8.85, 8713.0, 15806.0, 15810.0]
LOG = "".join(f"step {n}00 loss {loss} lr 0.1\n" for n, loss in enumerate(LOSSES))
PROSE = "Hello.\nGoodbye.\n"


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """An empty folder of runs of a page without a server."""
    monkeypatch.setattr("alerts_page.start_alerts", list)
    monkeypatch.setenv("AMPWATCH_DASHBOARD_DIRS", str(tmp_path / "runs"))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "runs"


def after_pasting(text: str) -> AppTest:
    """The page after this was pasted and sent."""
    st.cache_resource.clear()
    app = AppTest.from_file(ENTRY, default_timeout=60).run()
    app.text_area[0].input(text)
    return sent(app)


def sent(app: AppTest) -> AppTest:
    next(button for button in app.button if button.label == "Diagnose").click().run()
    assert not app.exception
    return app


def problems_of(app: AppTest) -> str:
    shown = [element.proto.body for element in app.get("html")]
    return " ".join(body for body in shown if body.startswith('<div class="aw-problem"'))


def runs_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*"))


@needs_components
def test_a_pasted_log_becomes_a_run_named_for_when_it_was_pasted(own_folder):
    assert problems_of(after_pasting(LOG)) == ""
    (path,) = runs_in(own_folder)
    assert re.fullmatch(r"pasted-\d{8}-\d{6}", path.name)
    assert ampwatch.open_run(path).steps.column("loss").to_pylist() == LOSSES


@needs_components
def test_carriage_returns_colours_and_chinese_words_are_read(own_folder):
    lines = (
        f"\x1b[32m第 {n}00 步\x1b[0m 损失: {loss} 学习率: 0.1" for n, loss in enumerate(LOSSES)
    )
    assert problems_of(after_pasting("训练开始\r\n" + "\r\n".join(lines))) == ""
    (path,) = runs_in(own_folder)
    assert ampwatch.open_run(path).steps.column("loss").to_pylist() == LOSSES


@pytest.mark.parametrize("text", ["", " \n\t\n"])
def test_an_empty_box_says_so_and_makes_nothing(own_folder, text):
    assert "The box is empty" in problems_of(after_pasting(text))
    assert runs_in(own_folder) == []


def test_what_is_no_log_is_answered_as_a_file_stays_and_is_read_in_a_chosen_format(
    own_folder, tmp_path
):
    file = tmp_path / "prose.log"
    file.write_text(PROSE)
    with pytest.raises(LogError) as caught:
        import_log(file, tmp_path / "out")
    same = str(caught.value).replace(str(file), "pasted text")
    app = after_pasting(PROSE)
    assert same.replace("name it with --format", "choose it below") in problems_of(app)
    assert app.text_area[0].value == PROSE
    app.selectbox[0].select("wandb").run()
    assert "pasted text is not a wandb file" in problems_of(app)
    assert app.text_area[0].value == PROSE
    app.text_area[0].input("")
    assert "The box is empty" in problems_of(sent(app))
    assert runs_in(own_folder) == []


def test_without_a_folder_for_new_runs_no_log_and_no_demo_is_offered(own_folder, monkeypatch):
    monkeypatch.delenv("AMPWATCH_DASHBOARD_DIRS")
    monkeypatch.setenv("AMPWATCH_DASHBOARD_PLACES", (own_folder / "published").as_uri())
    st.cache_resource.clear()
    app = AppTest.from_file(ENTRY, default_timeout=60).run()
    assert not app.exception
    assert "ampwatch.attach(scaler, model)" in app.code[0].value
    assert (len(app.button), len(app.text_area)) == (0, 0)


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(folder):
    """A folder with one run."""
    write_run(folder, "well", age_s=5000)
    return folder


def box_of(page, server):
    """The box to paste into, opened on the page of runs."""
    page.open(f"{server.url}/runs")
    page.page.locator(".aw-runs.all").wait_for()
    page.page.get_by_role("button", name="Import log").click()
    box = page.page.get_by_label("Or paste some lines of it")
    box.wait_for()
    return box


@pytest.mark.slow_browser
@needs_browser
def test_a_log_from_the_clipboard_is_diagnosed_each_time_as_a_run_of_its_own(page, server, place):
    for send in (
        lambda box: box.press("Control+Enter"),
        lambda _: page.page.get_by_role("button", name="Diagnose").click(),
    ):
        box = box_of(page, server)
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.page.evaluate("text => navigator.clipboard.writeText(text)", LOG)
        box.press("Control+V")
        send(box)
        page.page.wait_for_url(re.compile(r"run=pasted-\d+-\d+"))
        page.says("Probably learning rate too high")
        assert float(page.numbers()["loss"].replace(",", "")) == LOSSES[-1]
    assert len([path for path in runs_in(place) if path.name.startswith("pasted-")]) == 2


# As a file that is dragged from a folder over the page, which then shows that it takes files, and
# let go there.
FILE = """(type, text) => {
    const files = new DataTransfer();
    files.items.add(new File([text], "dropped.log"));
    document.querySelector(".stMain").dispatchEvent(
        new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer: files }));
}"""
DRAG = f"""text => {{
    ({FILE})("dragover", text);
    return document.documentElement.classList.contains("aw-dropping");
}}"""
DROP = f"""text => ({FILE})("drop", text)"""


@pytest.mark.slow_browser
@needs_browser
@pytest.mark.parametrize("path", ["runs", "layers"])  # where runs are, and where none is yet
def test_a_log_that_is_dropped_on_the_page_is_diagnosed(one, path, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    (tmp_path / "runs").mkdir()
    if path == "runs":
        write_run(tmp_path / "runs", "well")
    with Server([tmp_path / "runs"]) as server, tab(one) as page:
        page.open(f"{server.url}/{path}")
        page.page.locator(".st-key-log-upload input[type=file]").wait_for(state="attached")
        page.page.wait_for_function(DRAG, arg=LOG)
        page.page.evaluate(DROP, LOG)
        page.page.wait_for_url(re.compile("run=dropped"))
        page.says("Probably learning rate too high")
        assert page.troubles == []


@pytest.mark.slow_browser
@needs_browser
def test_the_open_box_covers_the_list_without_moving_it_and_keeps_its_text(page, server):
    page.open(f"{server.url}/runs")
    runs = page.page.locator(".aw-runs.all")
    runs.wait_for()
    page.settled()
    at = runs.bounding_box()
    box = box_of(page, server)
    assert runs.bounding_box() == at
    box.fill(PROSE)
    page.page.get_by_role("button", name="Diagnose").click()
    page.says("No training log found in pasted text")
    assert box.input_value() == PROSE
    assert runs.bounding_box() == at
    assert page.faults() == []
    box.fill("typed on")
    page.page.keyboard.press("Escape")
    box.wait_for(state="detached")
    page.page.get_by_role("button", name="Import log").click()
    assert box.input_value() == "typed on"


@pytest.mark.slow_browser
@needs_browser
def test_the_box_fits_a_phone(one, server):
    with tab(one, size=(390, 800)) as page:
        box = box_of(page, server)
        place = box.bounding_box()
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= 390
        assert page.page.evaluate("() => document.documentElement.scrollWidth") <= 390
