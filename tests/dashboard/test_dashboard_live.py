"""Real trainings, live, in a real browser: they appear, move, and leave the reader's hand alone."""

from __future__ import annotations

import platform
import re
import time

import numpy as np
import pytest
from page_driver import needs_browser, tab, training

import ampwatch
from ampwatch import store
from ampwatch.cli.dashboard import Server

pytestmark = [pytest.mark.slow_browser, needs_browser]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Where runs are, with a state folder and keys of their own; the feed is off."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    (tmp_path / "runs").mkdir()
    return tmp_path


def test_a_run_appears_moves_and_leaves_zoom_and_hover_to_the_reader(one, folders):
    runs = folders / "runs"
    with Server([runs]) as server, tab(one) as page:
        page.open(server.url)
        page.says("No runs yet")
        with training(runs, "trains", 10_000, 0.02) as child:
            page.says("HEALTHY")
            page.says("No problems found in")  # nor that it has no end mark yet
            page.drawn(40)
            box = page.page.locator(".aw-chart").bounding_box()
            left, middle = box["x"] + 120, box["y"] + 200
            page.page.mouse.move(left, middle)
            page.page.mouse.down()
            for moved in range(20):  # two seconds, over refreshes
                page.page.mouse.move(left + 10 * moved, middle)
                page.page.wait_for_timeout(100)
            page.page.mouse.up()
            zoomed = page.axis()
            page.page.mouse.move(left + 200, middle)
            label = page.page.locator(".aw-label").first
            label.wait_for()
            step = label.inner_text().split("\n")[0]
            page.refreshes(5)
            assert page.axis() == zoomed
            assert label.inner_text().split("\n")[0] == step
            assert f"span={zoomed[0]}-{zoomed[1]}" in page.page.url
            page.page.get_by_role("button", name="Whole run").click()
            page.page.mouse.move(5, 5)
            page.page.wait_for_function("() => !location.search.includes('span')")
            rows = page.axis()[1]
            page.refreshes(2)
            assert page.axis()[1] > rows
            child.kill()
            page.says("its process was killed or crashed, or its machine was lost")
        assert page.troubles == []


# As a browser does that shows another tab.
HIDE = """is_hidden => {
  Object.defineProperty(document, 'hidden', { configurable: true, get: () => is_hidden });
  document.dispatchEvent(new Event('visibilitychange'));
}"""


def steps_of(run):
    return store.open_run(run).read("steps", columns=("step",)).num_rows if run.exists() else 0


def test_a_tab_that_nobody_sees_asks_for_nothing_until_it_is_looked_at_again(one, folders):
    runs = folders / "runs"
    page_and_clock = tab(one, stranger=True)  # the clock is of all the browser's tabs
    with Server([runs]) as server, page_and_clock as page, training(runs, "trains", 10_000, 0.02):
        frames = []
        page.page.on(
            "websocket",
            lambda socket: socket.on("framereceived", lambda data: frames.append(len(data))),
        )
        page.page.clock.install()
        page.open(server.url)
        page.drawn(40)
        page.refreshes(2)
        page.page.evaluate(HIDE, arg=True)
        page.page.clock.fast_forward(10_000)  # who comes back sooner has missed nothing
        quiet = 0
        while not quiet:  # until nothing comes while the run goes on
            before, rows = len(frames), steps_of(runs / "trains")
            while steps_of(runs / "trains") < rows + 100:
                page.page.wait_for_timeout(100)
            quiet = len(frames) == before
        shown = int(page.page.locator("[data-drawn]").first.get_attribute("data-drawn"))
        assert steps_of(runs / "trains") > shown
        page.page.evaluate(HIDE, arg=False)
        page.drawn(shown + 100)
        page.refreshes(2)
        assert page.troubles == []


REMOVED = """
  window.removed = 0;
  new MutationObserver((changes) => {
    for (const { removedNodes } of changes)
      for (const node of removedNodes) window.removed += node.classList?.contains("aw-chart") ?? 0;
  }).observe(document, { childList: true, subtree: true });
"""


def test_messages_that_overtake_one_another_leave_the_chart_in_place(one, folders):
    """A browser too busy to take one in before the next comes: here the script itself is late."""
    runs = folders / "runs"
    with Server([runs]) as server, tab(one) as page, training(runs, "trains", 10_000, 0.02):
        page.page.add_init_script(REMOVED)
        page.page.route("**/mount.js", lambda route: (time.sleep(4.0), route.continue_()))
        page.open(server.url)
        page.drawn(40)
        page.refreshes(2)
        assert page.page.evaluate("() => window.removed") == 0
        assert page.troubles == []


def test_a_run_that_is_named_is_awaited_and_no_other_is_shown_for_it(one, folders):
    runs = folders / "runs"
    with training(runs, "other", 30, 0.0) as child:
        assert child.wait(120) == 0
    with Server([runs]) as server, tab(one) as page:
        page.open(f"{server.url}/?run=later")
        page.says("Waiting for later")
        assert page.page.locator(".aw-band").count() == 0
        with training(runs, "later", 10_000, 0.02):
            page.drawn(10)
            page.says("live,")
        assert page.troubles == []


def test_a_healthy_run_that_begins_to_fail_is_said_while_the_page_is_open(one, folders):
    runs = folders / "runs"
    with Server([runs]) as server, tab(one) as page, training(runs, "falls", 260, 0.02, 140):
        page.open(server.url)
        page.says("HEALTHY")
        page.says("FAILING")
        page.says("ended")
        run = store.open_run(runs / "falls")
        steps = run.read("steps", columns=("step", "skipped", "scale_after"))
        skipped = np.asarray(steps.column("skipped").to_numpy())
        page.says(f"{skipped.sum()} of {len(skipped)}")
        assert page.troubles == []


# In which refreshes of the chart band and sidebar say different verdicts.
WATCH = """() => { window.apart = new Set();
  const look = () => {
    const band = document.querySelector('.aw-band .aw-verdict')?.innerText.toLowerCase();
    const side = document.querySelector('.aw-switcher .aw-aloud')?.textContent;
    const drawn = document.querySelector('[data-drawn]')?.dataset.drawn;
    if (band && side && !band.includes(side)) window.apart.add(drawn);
  };
  new MutationObserver(look).observe(document, { childList: true, subtree: true,
    characterData: true, attributes: true }); }"""


def test_the_sidebar_says_what_the_band_says_from_the_first_refresh_on(one, folders):
    runs = folders / "runs"
    with Server([runs]) as server, tab(one) as page, training(runs, "falls", 10_000, 0.02, 5):
        page.open(server.url)
        page.says("FAILING")
        page.drawn(100)
        codes = {
            found.code for found in ampwatch.diagnose(ampwatch.open_run(runs / "falls")).findings
        }
        page.page.evaluate(WATCH)
        for turn in range(6):
            reason = None if turn % 2 else "known"
            store.edit_tags(runs / "falls", mute=dict.fromkeys(codes, reason))
            page.says("FAILING" if turn % 2 else "HEALTHY")
            page.refreshes(4)
        assert page.page.evaluate("() => window.apart.size") <= 6
        assert page.troubles == []


def test_a_training_on_another_machine_is_seen_over_the_feed_alone(one, folders, monkeypatch):
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "tcp://127.0.0.1:5983")
    here, there = folders / "runs", folders / "another machine"
    with Server([here]) as server, tab(one) as page:
        with training(there, "far", 10_000, 0.02, XDG_STATE_HOME=str(folders / "its state")):
            page.open(server.url)
            page.says("HEALTHY")
            page.drawn(20)
            page.refreshes(2)
            page.says(f"far · from {platform.node()}")
            page.says("live")
        assert list(here.glob("*")) == []
        assert page.troubles == []


def test_the_numbers_on_the_page_and_the_points_drawn_are_the_logs(one, folders):
    runs = folders / "runs"
    with training(runs, "ends", 120, 0.0, 100) as child:
        assert child.wait(120) == 0
    rows = store.open_run(runs / "ends").read(
        "steps", columns=("step", "loss", "scale", "scale_after", "grad_norm", "skipped", "lr")
    )
    with Server([runs]) as server, tab(one) as page:
        page.open(server.url)
        page.drawn(rows.num_rows)
        page.says("FAILING")
        numbers = page.numbers()
        skipped = int(np.sum(rows.column("skipped").to_numpy()))
        assert numbers["skipped"].startswith(f"{skipped} of {rows.num_rows}")
        assert numbers["learning rate"] == "0.01"
        scale, loss, norm, *_ = page.lines()
        log = np.log2(rows.column("scale").to_numpy())
        at = np.searchsorted(scale["x"], np.arange(len(log)), side="right") - 1
        assert np.allclose(np.array(scale["y"])[at], log)
        assert (
            page.ticks()
            == rows.column("step").to_numpy()[rows.column("skipped").to_numpy()].tolist()
        )
        for line, column in ((loss, "loss"), (norm, "grad_norm")):
            values = np.float32(rows.column(column).to_numpy())
            known = np.isfinite(values)
            drawn = [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if y is not None]
            assert [x for x, _ in drawn] == np.flatnonzero(known).tolist()
            assert np.allclose([y for _, y in drawn], values[known])
        assert re.search(r"run=ends", page.page.url) or page.page.url.rstrip("/") == server.url
        assert page.troubles == []
