"""Make docs/dashboard.png: train the demo, open the dashboard on its run, take the picture.

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
    """The page as it stands once its charts are drawn and its verdict is said."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(url)
        page.wait_for_selector("[data-drawn]", timeout=60_000)
        page.wait_for_selector(".aw-window", timeout=60_000)
        page.mouse.move(620, 500)  # the label that tells the step in all charts
        page.wait_for_timeout(1500)  # fonts
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
