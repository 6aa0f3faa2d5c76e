"""The page says what earlier runs that are alike have shown."""

from __future__ import annotations

import pytest
from page_driver import needs_browser
from structured_runs import write_structured
from written_runs import write_run

from ampwatch import store
from ampwatch.follow import diagnose, keep_for_later

pytestmark = [pytest.mark.slow_browser, needs_browser]


@pytest.fixture(scope="module")
def place(folder):
    """A sweep whose runs were judged, a run after it, and one that is like none."""
    for hour, (rate, fails) in enumerate([(1e-3, False), (3e-3, False), (0.1, True)]):
        run = store.open_run(
            write_structured(folder, f"r{hour}", rate=rate, fails=fails, hour=hour)
        )
        keep_for_later(run, diagnose(run))
    write_structured(folder, "next", hour=9)
    write_structured(folder, "failed", rate=0.2, fails=True, hour=10)
    write_run(folder, "bare")
    return folder


@pytest.fixture
def page(kept_page):
    """What is tested is what the page does, not how one comes there."""
    return kept_page


def test_the_findings_page_says_at_which_rates_earlier_runs_held_and_failed(page, server):
    page.show("/findings?run=next")
    told = "3 earlier runs alike: stable up to 0.003 (120 steps), failing from 0.1 on."
    page.page.get_by_text(told, exact=True).wait_for()
    page.show("/findings?run=bare")
    page.page.get_by_text("Learning rate:").first.wait_for()
    assert page.page.get_by_text("earlier run").count() == 0


def test_the_page_bounds_the_advised_rate_by_what_they_showed(page, server):
    page.show("/findings?run=failed")
    page.page.get_by_text("How it was estimated", exact=True).click()
    page.page.get_by_text("failed at 0.1, which bounds the interval").first.wait_for()
