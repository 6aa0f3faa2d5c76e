"""The page of alerts of a Python that has not the library that most receivers need."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from alert_parts import web_hook
from page_driver import needs_browser

from ampwatch.alerts import add_setting, new_setting

pytestmark = [pytest.mark.slow_browser, needs_browser]

MESSAGE = "Alerts to Slack, by e-mail and such need the library apprise, which is not installed"


@pytest.fixture(scope="module")
def place(folder):
    """A folder that holds a receiver from the days when the library was there."""
    add_setting(new_setting("slack://a/b/c", name="old chat"))
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """What finds all that is installed but that library, and nothing by itself (-S)."""
    packages = tmp_path_factory.mktemp("bare") / "site-packages"  # else Streamlit is in development
    packages.mkdir()
    for one in map(Path, {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        for part in one.iterdir():
            if not part.name.startswith("apprise") and not (packages / part.name).exists():
                (packages / part.name).symlink_to(part)
    python = [sys.executable, "-S"]
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    looked = subprocess.run(
        [*python, "-c", "import streamlit, apprise"], check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert "No module named 'apprise'" in looked.stderr
    return python, path


@pytest.fixture(scope="module")
def server(place, bare_python, forked_servers):
    from ampwatch.cli import dashboard

    python, path = bare_python
    line = dashboard.command_line
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setattr(dashboard, "command_line", lambda port: [*python, *line(port)[1:]])
        with dashboard.Server([place]) as started:
            yield started


def add(page, address, name):
    page.page.locator("input[type=password]").fill(address)
    page.page.get_by_label("Name").fill(name)
    page.page.get_by_role("button", name="Add", exact=True).click()


def test_it_is_said_once_and_a_web_hook_works_without_it(page, server):
    page.open(f"{server.url}/alerts")
    page.says("old chat")
    page.says("Nothing is sent: the library is missing.")
    page.settled()
    tries = page.page.get_by_role("button", name="Send a test message")
    assert tries.is_disabled()
    page.page.get_by_role("button", name="Add another").click()
    page.page.locator("input[type=password]").wait_for()
    assert "slack" not in page.page.locator("input[type=password]").get_attribute("placeholder")
    add(page, "slack://s3cret/b/c", "team chat")
    page.says("only a web hook of your own works")
    assert page.page.locator("body").inner_text().count(MESSAGE) == 1
    assert not page.page.get_by_text("team chat (").count()
    with web_hook() as hook:
        add(page, hook.address, "my hook")
        page.says("my hook (json://…) gets alerts from now on")
        assert page.page.locator("body").inner_text().count(MESSAGE) == 1
        page.settled()
        tries.last.click()
        page.page.get_by_role("status").get_by_text("Accepted by JSON").wait_for()
        assert [told["title"] for told in hook.taken] == ["ampwatch: a test message"]
