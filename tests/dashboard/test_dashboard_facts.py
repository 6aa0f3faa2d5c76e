"""Each page gives its facts as plain text."""

from __future__ import annotations

import pytest
from page_driver import PAGES, needs_browser
from written_runs import write_run

pytestmark = [pytest.mark.slow_browser, needs_browser]

# What the text of each page has to say of the run, or of the runs.
WORDS = {
    "Runs": "stormy",
    "Overview": "AMP",
    "Layers": None,  # these runs have none
    "Findings": "AMP",
    "Memory and device": None,  # none was sampled
    "Timeline": "attempt 1",
    "Settings": "scaler",
    "Compare": "stormy",
    "Fleet": None,  # nothing is published
    "Alerts": "finding",
}


@pytest.fixture(scope="module")
def place(folder):
    write_run(folder, "calm", accepted=200, age_s=900)
    write_run(folder, "stormy", accepted=200, skipped=60)
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_a_page_gives_its_facts_as_text(kept_page, name):
    path, part = PAGES[name]
    kept_page.show(f"/{path}?run=stormy")
    kept_page.page.locator(".aw-problem" if name == "Layers" else part).first.wait_for()
    kept_page.settled()
    if WORDS[name] is not None:
        text = kept_page.page.locator("[data-testid=stExpander] [data-testid=stText]")
        assert WORDS[name] in text.first.text_content()
