"""A real browser on a real server: open the page, see what it says and draws."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import children
import pytest
from streamlit.testing.v1 import app_test

import ampwatch

CHROMIUM = shutil.which("chromium")
# One process draws all pages of a site, which has Streamlit's scripts compiled after the first.
ARGUMENTS = [
    "--process-per-site",
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE_MS = 60_000
# Whether the page has been settled for half a second: no script runs, and each chart is drawn.
UNSETTLED = "() => { window.settledSince = null; }"
SETTLED = (
    "() => { const settled = document.querySelector('[data-test-script-state=notRunning]')"
    " && [...document.querySelectorAll('.aw-plot')].every(plot => plot.drawn);"
    " window.settledSince = settled ? window.settledSince ?? performance.now() : null;"
    " return settled && performance.now() - window.settledSince > 500; }"
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the page in")

needs_components = pytest.mark.skipif(
    not hasattr(app_test, "BidiComponentManager"),
    reason="this Streamlit's AppTest knows no components; the browser's tests see them drawn",
)

# Each page's path, and something that it alone has.
PAGES = {
    "Runs": ("runs", ".aw-runs.all"),
    "Overview": ("", ".aw-strip"),
    "Layers": ("layers", ".aw-map-name, .aw-problem"),
    "Findings": ("findings", ".st-key-findings"),
    "Memory and device": ("memory", "[class*='st-key-device'], .aw-problem"),
    "Timeline": ("timeline", ".aw-lanes"),
    "Settings": ("settings", ".aw-part .aw-settings"),
    "Compare": ("compare", ".st-key-compare-table, .aw-run-chips"),
    "Fleet": ("fleet", ".aw-strip, .stCode"),
    "Alerts": ("alerts", ".aw-receiver"),
}

# Colours change slowly.
WEARS = """scheme => {
    const { color } = getComputedStyle(document.querySelector('.stApp'));
    const [red, green, blue] = color.match(/\\d+/g).map(Number);
    const isChanging = document.getAnimations().some((one) => one instanceof CSSTransition);
    return (red + green + blue > 380) === (scheme === 'dark') && !isChanging;
}"""

# Streamlit itself looks for its health address under a page's own path first, and is told 404.
_STREAMLITS_OWN = ("404 (Not Found)",)


class Tab:
    """One open page, and every error that its console tells of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.troubles: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", self._note)

    def open(self, url: str) -> None:
        self.page.goto(url)

    def show(self, address: str) -> None:
        """Open this address of the server within the page, as the browser's Back does.

        It comes from the Alerts, so that nothing is left of what was shown, opened and pointed at.
        """
        self._go("/alerts")
        self.page.locator(".aw-title", has_text="Alerts").wait_for()
        self.page.wait_for_function("() => !document.querySelector('.aw-plot, .aw-heatmap')")
        self.page.mouse.move(0, 0)
        self.settled()
        self._go(address)

    def says(self, text: str) -> None:
        """Wait until the page says this."""
        self.page.get_by_text(text).first.wait_for()

    def go(self, name: str) -> None:
        """Open a page by its link, and wait until it is there."""
        path, part = PAGES[name]
        self.sidebar.get_by_role("link", name=re.compile(rf"^{name}( \d+)?$")).click()
        self.page.wait_for_url(re.compile(rf"/{path}(\?|$)"))
        self.page.locator(part).first.wait_for()

    @property
    def sidebar(self) -> Any:
        """The sidebar."""
        return self.page.get_by_test_id("stSidebar")

    def choose_run(self, name: str) -> None:
        """Choose another run in the sidebar."""
        self.page.locator(".aw-switcher").click()
        self.page.get_by_role("dialog", name="Choose a run").get_by_role(
            "link", name=re.compile(rf" {re.escape(name)} ")
        ).click()

    def drawn(self, at_least: int = 1) -> None:
        """Wait until the chart shows so many rows, and what lies below it is there too."""
        self.page.wait_for_function(
            "rows => Number(document.querySelector('[data-drawn]')?.dataset.drawn) >= rows",
            arg=at_least,
        )
        self.page.wait_for_function(
            "() => !document.querySelector('[data-test-script-state=running]')"
        )

    def refreshes(self, count: int) -> None:
        """Wait until the chart was drawn anew so often, each time with more rows."""
        for _ in range(count):
            rows = int(self.page.locator("[data-drawn]").first.get_attribute("data-drawn"))
            self.drawn(rows + 1)

    def settled(self) -> None:
        """Wait until the server has nothing more to say, and a chart that is there is drawn."""
        self.page.wait_for_function(
            "() => document.querySelector('[data-test-script-state=notRunning]')"
            " && [...document.querySelectorAll('.aw-plot')].every(plot => plot.drawn)"
        )

    def at_rest(self) -> None:
        """Wait until the page has been settled for half a second, as it is for a person's hand.

        An answer may still be on its way when the server is idle; one that tells of an address
        after the browser's Back makes a new entry, and takes Forward away.
        """
        self.page.evaluate(UNSETTLED)
        self.page.wait_for_function(SETTLED)

    def back(self) -> None:
        """Press the browser's Back once the page is at rest."""
        self.at_rest()
        self.page.go_back()

    def forward(self) -> None:
        """Press the browser's Forward once the page is at rest."""
        self.at_rest()
        self.page.go_forward()

    def lines(self) -> list[dict[str, list[float | None]]]:
        """The points of every line as they were drawn, from the top."""
        return self.page.evaluate(
            "() => document.querySelector('.aw-plot').drawn.panels.flatMap(({lines}) => lines)"
            ".map(({x, y}) => ({x: Array.from(x), y: Array.from(y)}))"
        )

    def ticks(self) -> list[float]:
        """The skipped steps that were drawn."""
        return self.page.evaluate(
            "() => document.querySelector('.aw-plot').drawn.panels"
            ".flatMap(({rug}) => rug ? rug.ticks.map(({step}) => step) : [])"
        )

    def axis(self) -> list[float]:
        """The steps in view."""
        return self.page.evaluate("() => document.querySelector('.aw-plot').drawn.span")

    def faults(
        self, schemes: Sequence[str] = ("light", "dark")
    ) -> list[tuple[str, str, list[str]]]:
        """What some readers cannot use here: the scheme of colours, the rule, the elements."""
        from axe_playwright_python.sync_playwright import Axe

        found = []
        for scheme in schemes:
            self.wear(scheme)
            told = Axe().run(self.page, options={"resultTypes": ["violations"]}).response
            assert len(told["passes"]) > 10
            found += [
                (scheme, rule["id"], *(node["html"] for node in rule["nodes"]))
                for rule in told["violations"]
                if rule["impact"] in {"serious", "critical"}
            ]
        return found

    def wear(self, scheme: str) -> None:
        """Have the reader's system light or dark, and wait until the page is."""
        self.page.emulate_media(color_scheme=scheme)
        self.page.wait_for_function(WEARS, arg=scheme)

    def numbers(self) -> dict[str, str]:
        """The strip of current numbers."""
        self.page.locator(".aw-number").first.wait_for()  # it is drawn after the band
        cells = self.page.locator(".aw-number").all()
        return dict(cell.inner_text().split("\n", 1) for cell in cells)

    def _go(self, address: str) -> None:
        self.page.evaluate(
            "address => { history.pushState(null, '', address);"
            " dispatchEvent(new PopStateEvent('popstate', { state: null })); }",
            address,
        )

    def _note(self, message: Any) -> None:
        if message.type == "error" and not any(own in message.text for own in _STREAMLITS_OWN):
            self.troubles.append(message.text)


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        stays = one.new_context().new_page()  # and with it the process that draws the site
        stays.route("**/*", lambda route: route.fulfill(body=""))
        stays.goto("http://localhost/")
        yield one
        one.close()


@contextmanager
def tab(
    one: Any, scheme: str = "light", size: tuple[int, int] = (1400, 1000), *, stranger: bool = False
) -> Iterator[Tab]:
    """A new page; a stranger's is of a browser that has seen none before.

    The others share what the browser has loaded and compiled, and no more: after each, what pages
    have kept and were allowed is forgotten.
    """
    context = one.new_context() if stranger else one.contexts[0]
    page = context.new_page() if stranger else _opened_by(context.pages[0])
    try:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=scheme)
        yield Tab(page)
    finally:
        page.close()
        _forget(context)
        if stranger:
            context.close()


def _opened_by(stays: Any) -> Any:
    """A new page in the process of that one: another way it would have one of its own at first."""
    with stays.expect_popup() as opened:
        stays.evaluate("() => { window.open('about:blank').opener = null; }")
    return opened.value


def _forget(context: Any) -> None:
    context.clear_cookies()
    context.clear_permissions()
    for page in context.pages[:1]:
        session = context.new_cdp_session(page)
        session.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
        session.detach()


@contextmanager
def training(
    folder: Path,
    name: str,
    *words: object,
    script: str = "slow_training.py",
    **environment: str,
) -> Iterator[Any]:
    """A real training in a process of its own; killed if it still runs at the end."""
    child = children.start(
        Path(__file__).with_name(script), name, *words,
        env={
            **os.environ, "AMPWATCH_DIR": str(folder), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]), **environment,
        },
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield child
    finally:
        child.kill()
        child.wait()
