"""The timeline: each line leads to its steps, filters are kept, a live run grows."""

from __future__ import annotations

import re

import pytest
from page_driver import needs_browser, tab, training
from written_runs import event_columns, write_run

from ampwatch import codec, store
from ampwatch.report.timeline import Kind
from ampwatch.rows import Table

HOSTILE = "<img src=x onerror=document.title='taken'>" + "x" * 260


def write_events(path, events):
    writer = store.RankWriter(path, 0)
    writer.append(
        codec.encode(Table.EVENTS, event_columns(events, store.read_info(path).started_ns))
    )
    writer.close()


def opened(path, monkeypatch, where=None, kinds=tuple(Kind)):
    """What the page of this run says, as HTML."""
    import address
    import timeline_page
    from open_runs import OpenRuns

    monkeypatch.setattr("run_list.name_of", lambda _path: path.name)
    look = OpenRuns().snapshot_of(str(path))
    where = where or address.Address(run=path.name)
    told = timeline_page.run_timeline(look, where.span)
    return timeline_page.timeline_html(look, told, set(kinds), where)


def test_names_of_a_run_are_data_and_whole(tmp_path, monkeypatch):
    path = write_run(tmp_path, "a", skipped=3)
    events = [(100, "overflow", {"layer": HOSTILE, "scale": 4.0}), (50, HOSTILE, {HOSTILE: 1})]
    write_events(path, events)
    page = opened(path, monkeypatch)
    assert HOSTILE not in page
    assert page.count("&lt;img src=x onerror=") > 2


def test_a_span_shows_its_steps_alone_in_more_detail(tmp_path, monkeypatch):
    import address

    path = write_run(tmp_path, "a", accepted=5000)
    write_events(path, [(s, "scale-set", {}) for s in range(0, 5000, 10)])
    whole = opened(path, monkeypatch)
    assert whole.count("<tr>") < 60
    assert "500</b>" in whole
    near = opened(path, monkeypatch, address.Address(run="a", span=(1000, 1200)))
    assert near.count(">loss scale<") == 21
    assert "Only steps 1,000 to 1,200." in near


def test_a_run_in_which_nothing_of_a_kind_happened_says_so(tmp_path, monkeypatch):
    path = store.create_run(tmp_path, store.RunInfo(id="0" * 32, name="empty"))
    assert "Some things could not be judged." in opened(path, monkeypatch)
    assert "Nothing of this kind happened." in opened(path, monkeypatch, kinds=())


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(folder):
    path = write_run(folder, "stormy", accepted=400, skipped=30)
    write_events(path, [(200, "state-saved", {}), (430, "state-saved", {}), (50, "scale-set", {})])
    return folder


def lanes(page):
    return [
        re.sub(r"\s*[\d,]+$", "", text) for text in page.locator(".aw-lane-name").all_inner_texts()
    ]


@pytest.mark.slow_browser
@needs_browser
def test_a_line_leads_to_its_steps_and_back_restores_the_filter(page, server):
    page.open(f"{server.url}/timeline?run=stormy")
    page.page.locator(".aw-happened").wait_for()
    assert lanes(page.page) == [
        "attempts", "findings", "skips and overflows", "checkpoints", "changes"
    ]  # fmt: skip
    page.page.get_by_role("button", name="skips and overflows").focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_url(re.compile("kinds=skip"))
    page.page.wait_for_function("() => document.querySelectorAll('.aw-lane').length === 1")
    line = page.page.locator(".aw-happened a").first
    assert line.inner_text() == "400 to 429"
    line.focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_url(re.compile("span=380-429"))
    page.drawn()
    assert "step=400" in page.page.url
    assert page.axis() == [380, 429]
    page.back()
    page.page.locator(".aw-happened").wait_for()
    assert "span=" not in page.page.url
    assert lanes(page.page) == ["skips and overflows"]


@pytest.mark.slow_browser
@needs_browser
def test_a_mark_is_pressed_on_a_phone_and_checkpoints_have_words(one, server):
    with tab(one, "dark", (420, 900)) as page:
        page.open(f"{server.url}/timeline?run=stormy&kinds=checkpoint")
        page.page.locator(".aw-happened").wait_for()
        words = page.page.locator(".aw-what").all_inner_texts()
        assert words == ["saved, clean", "saved, suspect"]
        assert page.page.evaluate("() => document.querySelector('.stMain').scrollWidth") <= 420
        page.page.locator(".aw-mark.suspect").click()
        page.page.wait_for_url(re.compile("step=430"))
        page.drawn()
        assert page.troubles == []


@pytest.mark.slow_browser
@needs_browser
def test_a_live_runs_timeline_grows_and_keeps_the_keyboards_place(page, server, folder):
    with training(folder, "grows", 4000, 0.02, 60):
        page.open(f"{server.url}/timeline?run=grows")
        page.page.get_by_text("goes on").first.wait_for()
        last = page.page.locator(".aw-happened a").first
        last.focus()
        before = page.page.locator(".aw-happened").inner_text()
        page.page.wait_for_function(
            "before => document.querySelector('.aw-happened').innerText !== before", arg=before
        )
        assert page.page.evaluate("() => document.activeElement.closest('.aw-happened') !== null")


# --- what drowned the rest ------------------------------------------------------------------------


def stormy(folder):
    path = write_run(folder, "a", accepted=400)
    write_events(path, [(50, "scale-set", {})])
    skips = [(at, "overflow", {"layer": "head", "scale": 4.0}) for at in (100, 150, 200, 250, 300)]
    write_events(path, skips)
    return path


def test_stretches_of_skips_are_one_row_with_a_count_that_opens(tmp_path, monkeypatch):
    page = opened(stormy(tmp_path), monkeypatch)
    assert page.count('<details data-key="skips">') == 1
    assert "5 skips and overflows, in 5 stretches" in page
    alone = opened(stormy(tmp_path / "b"), monkeypatch, kinds=(Kind.SKIP,))
    assert "<details" not in alone


def test_a_row_says_the_time_of_day_and_how_long_after_the_start(tmp_path, monkeypatch):
    page = opened(stormy(tmp_path), monkeypatch)
    assert '<th scope="col">at</th>' in page
    assert re.search(r'<span title="[^"]+ after the start">\d\d:\d\d:\d\d</span>', page)


def test_a_span_that_has_room_has_its_name(tmp_path, monkeypatch):
    page = opened(write_run(tmp_path, "a", accepted=400, skipped=300), monkeypatch)
    assert re.search(r"<span>AMP\d{3}</span></a>", page)
