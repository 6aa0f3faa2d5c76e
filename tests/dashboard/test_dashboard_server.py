"""A server that is frozen, killed or started again, seen from a page that stays open."""

from __future__ import annotations

import os
import re
import signal
from datetime import date, datetime, time, timedelta

import pytest
from page_driver import needs_browser, tab, training

from ampwatch.cli.dashboard import Server, free_port

pytestmark = [
    pytest.mark.slow_browser,
    needs_browser,
    pytest.mark.skipif(os.name != "posix", reason="freezes a process by its signals"),
]

SILENCE = ".aw-silence"
# The browser's clock alone is wrong: its timers run as they do for everybody.
FIVE_HOURS_SLOW = """{
    const late = 5 * 3600 * 1000;
    globalThis.Date = class extends Date {
        constructor(...parts) { parts.length ? super(...parts) : super(Date.now()); }
        static now() { return super.now() - late; }
    };
}"""
STREAMLITS_ADVICE = {  # by the host in the address
    "localhost": "Is Streamlit still running?",
    "127.0.0.1": "Are you connected to the internet?",
}


@pytest.fixture(scope="module")
def forked_servers():
    """None: a server's own process is frozen and killed here."""


@pytest.fixture(scope="module")
def place(folder):
    with training(folder, "goes", 100_000, 0.05):
        yield folder


@pytest.fixture
def own_server(place):
    with Server([place]) as started:
        yield started
        os.kill(started._child.pid, signal.SIGCONT)  # else it could not end


def test_a_frozen_server_is_said_within_three_seconds_and_comes_back(one, own_server):
    with tab(one) as page:
        page.open(f"{own_server.url}/?run=goes")
        page.drawn()
        page.page.locator(".aw-state").get_by_text("live").wait_for()
        page.page.evaluate("() => { window.stays = true; }")
        os.kill(own_server._child.pid, signal.SIGSTOP)
        page.page.locator(SILENCE).wait_for()
        assert not page.page.locator(".aw-state").is_visible()
        os.kill(own_server._child.pid, signal.SIGCONT)
        page.page.locator(SILENCE).wait_for(state="detached")
        page.page.locator(".aw-state").wait_for()
        page.refreshes(2)
        assert page.page.evaluate("() => window.stays")  # it was not loaded anew


@pytest.mark.parametrize("host", STREAMLITS_ADVICE)
def test_a_killed_server_is_said_with_the_command_that_starts_it_again(one, place, host):
    # Not the first port that others look for: it must be free again.
    with tab(one) as page, Server([place], free_port(0)) as killed:
        page.page.add_init_script(FIVE_HOURS_SLOW)
        page.open(f"{killed.url.replace('localhost', host)}/findings?run=goes&step=3")
        page.page.locator(".aw-state").get_by_text("live").wait_for()
        page.page.locator(".aw-run").wait_for()  # our script has come: it alone can tell
        with page.page.expect_response(lambda answer: "_stcore/health" in answer.url):
            pass  # it asks the server again and again, and has its time from the first answer on
        with page.page.expect_console_message(lambda told: STREAMLITS_ADVICE[host] in told.text):
            os.kill(killed._child.pid, signal.SIGKILL)
        band = page.page.locator(SILENCE)
        band.wait_for()
        (since,) = re.findall(r"since (\d\d:\d\d:\d\d)\.", band.inner_text())
        late = datetime.now() - datetime.combine(date.today(), time.fromisoformat(since))
        assert timedelta(0) <= late % timedelta(days=1) < timedelta(minutes=3)
        assert band.locator("code").inner_text() == killed.command
        assert str(place) in killed.command
        page.page.get_by_test_id("stDialog").wait_for(state="detached")
        band.get_by_role("button", name="copy the command").click()
        page.page.get_by_role("status").get_by_text("copied").wait_for()
        with Server([place], killed.port):
            band.wait_for(state="detached")
            page.page.locator(".aw-state").get_by_text("live").wait_for()
            assert "findings?run=goes&step=3" in page.page.url
            page.page.locator(".st-key-findings").wait_for()
