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
from ampwatch.cli.demo import SCENARIOS, train

PICTURE = Path(__file__).parent / "dashboard.png"
SIZE = {"width": 1280, "height": 1060}


def main() -> None:
    """Train, serve, look."""
    os.environ["AMPWATCH_ENDPOINT"] = "off"
    with tempfile.TemporaryDirectory() as folder:
        train(SCENARIOS[0], Path(folder), seed=1)
        with Server([Path(folder)]) as server:
            take_picture(server.url)


def take_picture(url: str) -> None:
    """The page as it stands once its chart is drawn."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(url)
        page.wait_for_selector(".js-plotly-plot", timeout=60_000)
        page.wait_for_timeout(1500)  # fonts and the chart's first layout
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
