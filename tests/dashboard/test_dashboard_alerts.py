"""Alerts set up from the page: added, tried, heard of a real training, changed and removed."""

from __future__ import annotations

import re

import pytest
from alert_parts import wait_for, web_hook
from page_driver import needs_browser, tab, training

pytest.importorskip("apprise", reason="the extra `notify` is not installed")
pytestmark = [pytest.mark.slow_browser, needs_browser]

SIDEWAYS = "() => document.querySelector('.stMain').scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def place(folder):
    """No runs yet."""
    return folder


@pytest.fixture
def kept(place):
    """The file of the settings; there is none before a test."""
    path = place / ".state" / "ampwatch" / "alerts" / "settings.json"
    path.unlink(missing_ok=True)
    return path


@pytest.fixture
def alerts(page, server, kept):
    page.open(f"{server.url}/alerts")
    page.says("Nobody gets alerts yet")
    page.settled()
    return page


def add(page, address, name):
    page.page.locator("input[type=password]").fill(address)
    page.page.get_by_label("Name").fill(name)
    press(page, "Add")
    page.says(f"{name} (json://…) gets alerts from now on")


def press(page, name):
    page.page.get_by_role("button", name=name, exact=True).click()


def shows(page, secret):
    """Whether any part of the page holds it, what was typed included."""
    typed = page.page.evaluate("() => [...document.querySelectorAll('input')].map((i) => i.value)")
    return secret in page.page.content() + str(typed)


def test_one_is_added_tried_told_of_a_run_that_fails_changed_and_removed(alerts, place, kept):
    with web_hook() as hook:
        add(alerts, hook.address, "team chat")
        assert kept.stat().st_mode & 0o777 == 0o600
        press(alerts, "Send a test message")
        alerts.page.get_by_role("status").get_by_text("Accepted by JSON").wait_for()
        assert [told["title"] for told in hook.taken] == ["ampwatch: a test message"]
        spoken, age = (
            alerts.page.locator(part).element_handle() for part in (".aw-result", "h2.aw-receiver")
        )
        alerts.page.wait_for_function("(one) => !one.isConnected", arg=age)
        assert spoken.evaluate("(one) => one.isConnected")  # drawn anew, it would be read aloud
        with training(place, "falls-at-night", 100_000, 0.05, 20):
            wait_for(lambda: len(hook.taken) > 1)
            told = hook.taken[1]
            assert "falls-at-night" in told["title"]
            assert "AMP" in told["message"]
            told_of = re.compile(r"Last message .* ago: ampwatch: falls-at")
            alerts.page.locator(".aw-muted").get_by_text(told_of).wait_for()
    assert not shows(alerts, "s3cret")
    assert not shows(alerts, "t0ken")
    press(alerts, "Change")
    alerts.says("Change team chat")
    assert "alert=" in alerts.page.url
    assert not shows(alerts, "t0ken")
    alerts.page.reload()
    alerts.page.get_by_label("Name").fill("us all")
    alerts.page.get_by_text("errors only", exact=True).click()
    press(alerts, "Save")
    alerts.says("us all (json://…) is changed")
    assert "s3cret" in kept.read_text()  # an empty field keeps the address
    press(alerts, "Remove")
    press(alerts, "Keep it")
    press(alerts, "Remove")
    press(alerts, "Remove it")
    alerts.says("Nobody gets alerts yet")
    assert "s3cret" not in kept.read_text()


def test_a_server_that_hangs_freezes_nothing_and_one_that_refuses_is_said(alerts):
    with web_hook() as hook:
        hook.hangs = hook.refuses = True
        hook.status = 401
        add(alerts, hook.address, "slow")
        press(alerts, "Send a test message")
        alerts.says("on its way")
        alerts.page.get_by_text("On", exact=True).click()
        alerts.says("Off: nothing is sent.")
        assert not alerts.page.get_by_text("Not accepted").count()
        hook.over.set()
        alerts.says("Not accepted: it does not accept the password or token.")
        failure = re.compile("Last failure .* ago: it does not accept")
        alerts.page.get_by_text(failure).first.wait_for()


def test_a_wrong_address_is_said_and_kept_nowhere(alerts, kept):
    alerts.page.locator("input[type=password]").fill("https://s3cret.example")
    press(alerts, "Add")
    problem = alerts.page.locator(".aw-problem")
    problem.wait_for()
    assert "jsons:// for https" in problem.inner_text()
    assert "s3cret" not in alerts.page.locator("body").inner_text()  # but still in its field
    assert not kept.exists()


def test_two_pages_change_the_list_and_see_each_others_changes(one, alerts, server, kept):
    with tab(one) as other:
        other.open(f"{server.url}/alerts")
        other.says("Nobody gets alerts yet")
        other.settled()
        add(other, "json://h/1", "first")
        alerts.says("first")
        press(alerts, "Add another")
        other.page.get_by_text("On", exact=True).click()
        # Slowly: meanwhile this page is drawn anew.
        alerts.page.locator("input[type=password]").press_sequentially("json://h/2", delay=250)
        alerts.says("Off: nothing is sent.")
        assert alerts.page.locator("input[type=password]").input_value() == "json://h/2"
        add(alerts, "json://h/2", "second")
        other.says("second")
        kept.write_text("{")
        other.page.locator(".aw-problem").first.wait_for()
        assert "damaged" in other.page.locator(".aw-problem").first.inner_text()
        assert kept.read_text() == "{"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 420)])
def test_everything_is_reached_by_keys_and_readable(one, server, kept, scheme, width):
    with tab(one, scheme, (width, 1000)) as page:
        page.open(f"{server.url}/alerts")
        page.says("Nobody gets alerts yet")
        page.settled()
        page.page.locator("input[type=password]").focus()
        page.page.keyboard.type("json://h/1")
        for _ in range(40):
            page.page.keyboard.press("Tab")
            if page.page.evaluate("() => document.activeElement.innerText") == "Add":
                break
        page.page.keyboard.press("Enter")
        page.says("gets alerts from now on")
        press(page, "Change")
        page.says("Change json")
        press(page, "Remove")
        page.says("Its address is forgotten")
        page.settled()
        assert page.faults([scheme]) == []
        assert page.page.evaluate(SIDEWAYS) <= 0
        assert page.troubles == []
