"""A reader's test of the page: ten failures, and whether the first screen answers.

python benchmarks/reader make DIR           train the ten runs into DIR
python benchmarks/reader check DIR          are cause, layer and action in words on the screen?
python benchmarks/reader ask DIR --out OUT  pictures in chance order, and the questions, for people
python benchmarks/reader answers OUT        what was to be said of each picture, once it is answered
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from failures import FAILURES, QUESTIONS, Failure

sys.path.insert(0, str(Path(__file__).parents[2]))  # where the examples are

SIZE = {"width": 1400, "height": 1000}
PATIENCE_MS = 60_000
KEY = "key.json"
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
# The words in view: those whose box lies within the window and that nothing hides.
IN_VIEW = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const words = [], range = document.createRange();
  while (walker.nextNode()) {
    const node = walker.currentNode, text = node.textContent.trim();
    if (!text || node.parentElement.closest('script, style, noscript')) continue;
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    const style = getComputedStyle(node.parentElement);
    const inside = box.width > 1 && box.height > 1 && box.top >= 0 && box.bottom <= innerHeight
      && box.left >= 0 && box.left < innerWidth;
    if (inside && style.visibility !== 'hidden' && style.opacity !== '0') words.push(text);
  }
  return words.join(' ');
}"""


def make(folder: Path, seed: int = 0) -> None:
    """Train what is not there yet."""
    from ampwatch.cli.demo import SCENARIOS, train
    from examples.gallery.performing import chosen, perform_missing
    from examples.gallery.registry import all_cases

    os.environ["AMPWATCH_ENDPOINT"] = "off"
    demo, *gallery = FAILURES
    if not (folder / demo.name).exists():
        train(next(s for s in SCENARIOS if s.name == demo.name), folder / demo.name, seed=seed)
    for failure in gallery:
        for case in perform_missing(chosen(all_cases(), failure.name), folder, seed):
            print(f"{case.name}: there")


def missing(failure: Failure, text: str) -> list[str]:
    """Which of the answers are not in the words."""
    words = re.sub(r"\s+", " ", text)
    answers = {"cause": failure.cause, "layer": failure.layer, "action": failure.action}
    return [
        what
        for what, pattern in answers.items()
        if pattern is not None and not re.search(pattern, words, re.IGNORECASE)
    ]


def check(folder: Path, width: int) -> int:
    """Print a line for each failure; the number of those with an answer missing."""
    wrong = 0
    with _screens(folder, {**SIZE, "width": width}) as open_page:
        for failure in FAILURES:
            lacking = missing(failure, open_page(failure.name).evaluate(IN_VIEW))
            print(
                f"{failure.name:30} {'all there' if not lacking else 'no ' + ', no '.join(lacking)}"
            )
            wrong += bool(lacking)
    print(f"{len(FAILURES) - wrong} of {len(FAILURES)} first screens say all of it")
    return wrong


def ask(folder: Path, out: Path, seed: int) -> None:
    """Pictures without their names, and a sheet of questions."""
    out.mkdir(parents=True, exist_ok=True)
    order = random.Random(seed).sample([f.name for f in FAILURES], len(FAILURES))
    with _screens(folder, SIZE) as open_page:
        for number, name in enumerate(order, 1):
            open_page(name).screenshot(path=out / f"{number:02}.png")
    (out / KEY).write_text(json.dumps(order), encoding="utf-8")
    lines = ["# What does each page say?", "", "Look at each picture for half a minute.", ""]
    for number in range(1, len(order) + 1):
        lines += [f"## {number:02}.png", "", *(f"- {one}" for one in QUESTIONS), ""]
    (out / "questions.md").write_text("\n".join(lines), encoding="utf-8")
    print(f"{out / 'questions.md'}; the answers: python benchmarks/reader answers {out}")


def answers(out: Path) -> None:
    """What each picture was of, and what is right."""
    by_name = {failure.name: failure for failure in FAILURES}
    for number, name in enumerate(json.loads((out / KEY).read_text("utf-8")), 1):
        failure = by_name[name]
        layer = f"; layer: {failure.layer}" if failure.layer else ""
        print(f"{number:02}.png {name}: cause: {failure.cause}{layer}; do: {failure.action}")


@contextmanager
def _screens(folder: Path, size: Any) -> Iterator[Any]:
    """Opens a run's page, and waits until its verdict and its charts are there."""
    from playwright.sync_api import sync_playwright

    from ampwatch.cli.dashboard import Server

    os.environ["AMPWATCH_ENDPOINT"] = "off"
    with Server([folder]) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        page = browser.new_page(viewport=size)
        page.set_default_timeout(PATIENCE_MS)

        def open_page(name: str) -> Any:
            page.goto(f"{server.url}/?run={name}")
            page.wait_for_selector(".aw-band")
            page.wait_for_selector("[data-drawn]")
            page.wait_for_function(
                "() => document.querySelector('[data-test-script-state=notRunning]')"
            )
            return page

        yield open_page
        browser.close()


def main() -> int:
    """Do what the first argument says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("make", "check", "ask", "answers"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="where the pictures go")
    parser.add_argument("--seed", type=int, default=0, help="of the trainings, or of the order")
    parser.add_argument("--width", type=int, default=SIZE["width"], help="of the first screen")
    asked = parser.parse_args()
    if asked.verb == "make":
        make(asked.folder, asked.seed)
    elif asked.verb == "check":
        return int(check(asked.folder, asked.width) > 0)
    elif asked.verb == "ask":
        ask(asked.folder, asked.out or asked.folder / "pictures", asked.seed)
    else:
        answers(asked.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
