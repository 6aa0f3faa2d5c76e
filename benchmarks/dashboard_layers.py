"""What thousands of layers cost the page: to open, and until each press and letter is seen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dashboard_parts import VIEW, Cost, browser, server_processes, until_coloured
from dashboard_runs import layer_names, write_layers_run

from ampwatch.cli.dashboard import Server

Row = tuple[str, str, str]

FEW, MANY = 20, 2_000
MAP = ".aw-map-body"
LISTED = "() => document.querySelector('.aw-heatmap')?.dataset.rows > 0"
# What the browser itself says: from an input until the frame that shows what came of it.
LISTEN = """() => { window.delays = [];
    new PerformanceObserver((list) => { for (const one of list.getEntries()) {
        if (one.interactionId || one.name === 'input') window.delays.push(one.duration); } })
        .observe({ type: 'event', durationThreshold: 16, buffered: false }); }"""
# How long the longest frame was while the rows passed by.
SCROLL = """async () => { const map = document.querySelector('.aw-map-scroll'); let longest = 0;
    const frame = () => new Promise(requestAnimationFrame);
    for (let turn = 0, before = await frame(); turn < 60; turn++) {
        map.scrollTop += 730; const now = await frame();
        longest = Math.max(longest, now - before); before = now; }
    return longest; }"""
SHORTEST_MS = 16  # that the browser tells


def many_layers(folder: Path, quick: bool) -> Iterator[Row]:
    """The same run with few layers and with thousands, opened by turns; then walked and searched.

    Both have more rows than are diagnosed before the page is drawn.
    """
    steps, times = (2_000, 1) if quick else (25_000, 7)
    few = write_layers_run(folder / "few", "few", FEW, steps)
    many = write_layers_run(folder / "many", "many", MANY, steps)
    opened = [(opening(few), opening(many)) for _ in range(times)]  # by turns: both bear the load
    few_s, many_s = ([seconds for seconds, _ in one] for one in zip(*opened, strict=True))
    first_s = [opening(many, page="", part=".aw-chart")[0] for _ in range(times)]
    ratio, best = statistics.median(many_s) / statistics.median(few_s), min(many_s) / min(few_s)
    yield f"open the layers of {FEW}, s: median, best", both(few_s), ""
    yield f"open the layers of {MANY:,}, s: median, best", both(many_s), "2"
    yield f"{MANY:,} layers, times {FEW}: medians, best ones", f"{ratio:.2f}, {best:.2f}", ""
    cpu = statistics.median(one[1] for _, one in opened)
    yield f"server CPU to open {MANY:,} layers, s", f"{cpu:.2f}", ""
    yield f"open the overview of {MANY:,} layers, s: median, best", both(first_s), "2"
    yield from walking(many)


def opening(path: Path, page: str = "layers", part: str = MAP) -> tuple[float, float]:
    """Seconds from a fresh tab to pixels of a part, in a server that has shown nothing; its CPU."""
    with Server([path.parent]) as server, browser() as (one, _):
        tab = one.new_page(viewport=VIEW)
        cost = Cost(server_processes(server), [])
        began = time.perf_counter()
        tab.goto(f"{server.url}/{page}?run={path.name}")
        seen = until_coloured(tab, part)
        return seen - began, cost.milliseconds(1)[0] / 1000


def both(seconds: list[float]) -> str:
    """The best one is what other work on the machine disturbed least."""
    return f"{statistics.median(seconds):.2f}, {min(seconds):.2f}"


def walking(path: Path) -> Iterator[Row]:
    """The slowest of each kind of input, from the press to the frame that shows it."""
    with Server([path.parent]) as server, browser() as (one, _):
        page = one.new_page(viewport=VIEW)
        page.goto(f"{server.url}/layers?run={path.name}")
        page.wait_for_function(LISTED)
        page.evaluate(LISTEN)
        for name, act in ACTS.items():
            page.evaluate("() => { window.delays = []; }")
            act(page)
            page.wait_for_timeout(600)
            worst = max(page.evaluate("() => window.delays"), default=SHORTEST_MS)
            yield f"{name}, {MANY:,} layers: the slowest, ms", f"{worst:.0f}", "200"
        page.get_by_role("button", name="Unfold all").click()
        longest = page.evaluate(SCROLL)
        yield f"scroll {MANY:,} rows: the longest frame, ms", f"{longest:.0f}", "200"
        yield f"choose one of {MANY:,} layers, until its page is there, ms", chosen(page), ""


def unfold(page: Any) -> None:
    for _ in range(5):
        page.get_by_role("button", name="Unfold all").click()
        page.get_by_role("button", name="Fold all", exact=True).click()


def turn(page: Any) -> None:
    for _ in range(10):
        page.locator(".aw-map-body .aw-map-fold[aria-expanded]").first.click()


def order(page: Any) -> None:
    for way in ("worst first", "in the model's order") * 3:
        page.get_by_label("Order of the layers").select_option(way)
        page.locator(".aw-map-scroll").press("ArrowDown")


def search(page: Any) -> None:
    field = page.get_by_role("searchbox", name="Find a layer")
    field.press_sequentially("blocks.17.attn.q", delay=60)
    for _ in range(16):
        field.press("Backspace")


def walk(page: Any) -> None:
    for key in ("ArrowDown", "ArrowLeft", "PageDown", "Home", "End", "ArrowUp") * 5:
        page.locator(".aw-map-scroll").press(key)


ACTS: dict[str, Callable[[Any], None]] = {
    "fold and unfold all": unfold,
    "fold one": turn,
    "order": order,
    "search, a letter": search,
    "a key on the map": walk,
}


def chosen(page: Any) -> str:
    """How long it takes to see another layer's own page, in milliseconds."""
    took = []
    for layer in layer_names(MANY)[100:1900:300]:
        field = page.get_by_role("searchbox", name="Find a layer")
        field.fill(layer)
        began = time.perf_counter()
        field.press("Enter")
        page.get_by_role("heading", name=layer).wait_for()
        took.append(1000 * (time.perf_counter() - began))
    return f"{statistics.median(took):.0f}"
