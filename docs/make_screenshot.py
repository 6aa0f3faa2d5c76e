"""Make the pictures of the dashboard: train the demo, and open the dashboard on its run.

docs/dashboard.png is the page as it stands; in docs/pictures/dashboard_numbered.png its parts have
the numbers that docs/dashboard.md explains.

python docs/make_screenshot.py (needs the extra `dev` and a chromium on the path)
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from ampwatch.cli.dashboard import Server
from ampwatch.cli.demo import SCENARIOS, free_path, train

PICTURE = Path(__file__).parent / "dashboard.png"
NUMBERED = Path(__file__).parent / "pictures" / "dashboard_numbered.png"
# What has a number in the picture, in order: a selector, and where in its box the number stands.
PARTS = [
    ("[data-testid=stSidebar]", 0.93, 0.076),
    (".aw-band", 0.97, 0.35),
    (".aw-strip", 0.97, 0.3),
    ("[data-drawn]", 0.755, 0.07),
    ("[data-drawn]", 0.755, 0.327),
    ("[data-drawn]", 0.61, 0.697),
]
BADGE = """([selector, x, y, number]) => {
  const box = document.querySelector(selector).getBoundingClientRect();
  const badge = document.createElement("b");
  badge.textContent = number;
  const style = {position: "fixed", left: `${box.left + x * box.width - 13}px`, zIndex: 9999999,
    top: `${box.top + y * box.height - 13}px`, width: "26px", borderRadius: "50%", color: "white",
    background: "#1B1F24", font: "bold 15px/26px sans-serif", textAlign: "center"};
  Object.assign(badge.style, style);
  document.body.append(badge);
}"""
WAIT_MS = 300_000
SIZE = {"width": 1400, "height": 985}
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def main() -> None:
    """Train, serve, look."""
    os.environ["AMPWATCH_ENDPOINT"] = "off"
    with tempfile.TemporaryDirectory() as folder:
        run = train(SCENARIOS[0], free_path(SCENARIOS[0], Path(folder)), seed=1)
        with Server([Path(folder)]) as server:
            take_picture(f"{server.url}/?run={run.name}")


def take_picture(url: str) -> None:
    """The page as it stands once its charts are drawn and its verdict is said, twice."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(url, timeout=WAIT_MS)
        page.wait_for_selector("[data-drawn]", timeout=WAIT_MS)
        page.mouse.move(620, 500)  # the label that tells the step in all charts
        page.wait_for_timeout(1500)  # fonts
        page.screenshot(path=PICTURE)
        page.mouse.move(700, 28)  # where nothing answers
        for number, part in enumerate(PARTS, start=1):
            page.evaluate(BADGE, [*part, number])
        page.screenshot(path=NUMBERED)
        browser.close()


if __name__ == "__main__":
    main()
