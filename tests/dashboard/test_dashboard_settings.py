"""The page of settings: all that was recorded, found as one types, and what changed."""

from __future__ import annotations

import html
import re
import shutil

import pytest
import streamlit as st
from page_driver import needs_browser, needs_components, tab
from streamlit.testing.v1 import AppTest
from written_runs import event_columns, write_run

from ampwatch import codec, store
from ampwatch.rows import Table

HOSTILE = "<img src=x onerror=document.title='taken'>"
LONG = "a long name " * 25  # 300 characters


def opened(path) -> str:
    """What the page of this run says, as HTML."""

    def script(path):
        import settings_page

        settings_page.show(path)

    app = AppTest.from_function(script, default_timeout=60, kwargs={"path": str(path)}).run()
    assert not app.exception
    return " ".join(element.proto.body for element in app.get("html"))


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPWATCH_DASHBOARD_DIRS", str(tmp_path))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    monkeypatch.setattr("browser_component.html", lambda text, **_named: st.html(text))
    st.cache_resource.clear()
    return tmp_path


def rows(page: str) -> dict[str, str]:
    """Name and value of each row, as a reader copies it."""
    found = re.findall(
        r"<tr data-text=.*?<bdi>(.*?)</bdi>.*?data-copy=\"(.*?)\" aria-label", page, re.DOTALL
    )
    return {html.unescape(name): html.unescape(value) for name, value in found}


@needs_components
def test_every_setting_is_a_row_whose_value_is_copied_whole(own_folder):
    config = {"optimizer": {"lr": 0.1}, HOSTILE: "2^16", LONG: "two\nlines", "vocab": "v" * 9000}
    page = opened(write_run(own_folder, "a", config=config, command=("t.py", "--lr", "0.1")))
    told = rows(page)
    assert told["optimizer.lr"] == "0.1"
    assert told[HOSTILE] == "2^16"
    assert told[LONG] == "two\nlines"
    assert told["vocab"] == "v" * 9000
    assert told["command"] == "t.py --lr 0.1"
    assert HOSTILE not in page
    assert "9,000 characters" in page


@needs_components
def test_of_very_many_settings_none_is_dropped_in_silence(own_folder, monkeypatch):
    config = {f"name {number}": number for number in range(5000)}
    page = opened(write_run(own_folder, "a", config=config))
    assert re.search(r"3,0\d\d more settings: search for them", page)
    monkeypatch.setattr("settings_page.address.read", lambda: address_with("name 4999"))
    assert "name 4999" in rows(opened(own_folder / "a"))


def address_with(find):
    import address

    return address.Address(find=find)


@needs_components
def test_a_foreign_log_says_what_it_does_not_hold(own_folder):
    marks = {"scaler.growth_interval": ["assumed"]}
    path = write_run(own_folder, "a", source="apex", config={"opt_level": "O1"}, marks=marks)
    page = opened(path)
    assert (
        "which does not hold: command and code, optimizer, precision, versions, hardware, "
        "environment." in page
    )
    assert "not in the log: as apex sets it" in page
    assert "ampwatch.attach" not in page


@needs_components
def test_uncommitted_changes_stand_beside_the_commit(own_folder):
    origin = {"script": "/t.py", "commit": "a" * 40, "uncommitted changes": "yes"}
    page = opened(write_run(own_folder, "a", origin=origin))
    assert rows(page)["code.commit"] == "a" * 40
    assert "with uncommitted changes" in page
    assert "No earlier run of /t.py is listed" in page


@needs_components
def test_what_changed_since_the_last_run_of_the_script_is_on_top(own_folder):
    origin = {"script": "/t.py"}
    write_run(own_folder, "a", age_s=9000, origin=origin, config={"lr": 0.1, "old": HOSTILE})
    write_run(own_folder, "other", age_s=5000, origin={"script": "/else.py"}, config={"lr": 7})
    path = write_run(own_folder, "b", age_s=1800, origin=origin, config={"lr": 0.3, "new": 1})
    page = opened(path)
    top = page[: page.index("</section>")]
    assert "3 settings changed since <bdi>a</bdi>" in top
    assert "started 2.0 h before" in top
    assert re.findall(r'aw-kind (\w+)"', top) == ["changed", "added", "removed"]
    assert HOSTILE not in page
    assert "runs=a%2Cb" in top
    shutil.rmtree(own_folder / "a")
    st.cache_resource.clear()
    assert "No earlier run of /t.py is listed" in opened(path)


@needs_components
def test_a_script_that_was_started_again_unchanged_says_so(own_folder):
    write_run(own_folder, "train-1", age_s=9000)
    assert "No setting changed since <bdi>train-1</bdi>" in opened(
        write_run(own_folder, "train-2", age_s=1800)
    )


@needs_components
def test_a_resumed_run_tells_what_an_attempt_was_started_with_otherwise(own_folder):
    path = write_run(own_folder, "a", config={"lr": "0.1"})
    for lr in ("0.1", "0.3"):
        writer = store.RankWriter(path, 0)
        told = {"config": {"lr": lr, HOSTILE: "x"}, "scaler": {}, "origin": {"commit": lr * 20}}
        writer.append(codec.encode(Table.EVENTS, event_columns([(100, "started", told)], 10**18)))
        writer.close()
    page = opened(path)
    assert page.count("was started with other settings") == 1
    top = page[page.index("Attempt 3 of this run") :]
    assert re.findall(r"<bdi>(.*?)</bdi>", top)[:2] == ["lr", "code.commit"]
    assert HOSTILE not in page


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(folder):
    config = {"lr": 0.1, "model": {"width": 8}, HOSTILE: LONG}
    write_run(folder, "train-1", age_s=9000, config=config | {"lr": 0.3})
    write_run(folder, "train-2", age_s=1800, config=config)
    return folder


def visible(page):
    return [row.locator("th").inner_text() for row in page.locator("tr[data-text]:visible").all()]


@pytest.mark.slow_browser
@needs_browser
def test_settings_are_found_as_one_types_and_on_reload(page, server):
    page.open(f"{server.url}/settings?run=train-2")
    field = page.page.get_by_role("searchbox", name="Search settings")
    field.fill("WIDTH")
    page.page.wait_for_url(re.compile("find=WIDTH"))
    assert visible(page.page) == ["model.width"]
    assert page.page.locator(".aw-part:visible h2").all_inner_texts() == ["Config"]
    field.fill("nowhere")
    page.page.get_by_text("No setting matches.").wait_for()
    page.page.wait_for_url(re.compile("find=nowhere"))
    page.open(f"{server.url}/settings?run=train-2&find=width")
    page.page.wait_for_function(
        "() => document.querySelector('.stMain .aw-search')?.value === 'width'"
    )
    assert visible(page.page) == ["model.width"]
    assert page.page.title() != "taken"


@pytest.mark.slow_browser
@needs_browser
def test_a_value_is_copied_and_both_runs_are_compared_by_keys(one, server):
    with tab(one, "dark", (420, 900)) as page:
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.open(f"{server.url}/settings?run=train-2")
        button = page.page.get_by_role("button", name="copy model.width")
        button.focus()
        page.page.keyboard.press("Enter")
        page.page.get_by_role("status").get_by_text("copied", exact=True).wait_for()
        assert page.page.evaluate("() => navigator.clipboard.readText()") == "8"
        width = page.page.evaluate("() => document.querySelector('.stMain').scrollWidth")
        assert width <= 420
        page.page.get_by_role("link", name="Compare both runs").focus()
        page.page.keyboard.press("Enter")
        page.page.wait_for_url(re.compile("/compare.*runs=train-1(,|%2C)train-2"))
        page.drawn()
        assert page.troubles == []


def test_what_a_rank_kept_of_its_console_and_its_code_is_shown_as_written(tmp_path):
    from settings_page import kept_html

    assert kept_html(tmp_path, 0) == ""
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0/console.txt").write_text("step 1\n<b>loss 2^16</b>")
    shown = kept_html(tmp_path, 0)
    assert "2 last lines; secrets are replaced" in shown
    assert "<pre>step 1<br>&lt;b&gt;loss 2^16&lt;/b&gt;</pre>" in shown
    assert "Uncommitted changes" not in shown
