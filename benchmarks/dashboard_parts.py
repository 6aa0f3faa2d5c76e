"""What benchmarks/dashboard.py looks with: a browser, a run that grows, CPU time."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from dashboard_runs import CHUNK, chunks
from PIL import Image
from playwright.sync_api import sync_playwright

from ampwatch.cli.dashboard import Server
from ampwatch.codec import encode
from ampwatch.rows import Table
from ampwatch.store import RankWriter, RunInfo, create_run

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
VIEW = {"width": 1400, "height": 1000}
DRAWN = "rows => Number(document.querySelector('[data-drawn]')?.dataset.drawn) >= rows"
BOX = """chart => {
    const box = document.querySelector(chart)?.getBoundingClientRect();
    return box && box.width > 50 && box.height > 50
        ? {x: box.x, y: box.y, width: box.width, height: box.height} : null; }"""
COLOURED = 25  # apart are a pixel's channels where a line or its title is; grids are grey
LEAST_PIXELS = 60
FEED_EVERY_S = 0.1
HIDE = """() => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => true });
    document.dispatchEvent(new Event('visibilitychange')); }"""
RESTS_AFTER_S = 13.0  # when a tab that was hidden has told the server


@contextmanager
def browser() -> Iterator[tuple[Any, list[int]]]:
    """Chromium, and the processes that are its."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        after = {child.pid for child in psutil.Process().children(recursive=True)}
        yield one, sorted(after - before)
        one.close()


@contextmanager
def feeding(folder: Path, steps_a_second: float) -> Iterator[None]:
    """A run that grows: a thread writes it as a trainer's courier does."""
    path = create_run(folder, RunInfo(id="ab" * 16, name="live", started_ns=time.time_ns()))
    writer, stop = RankWriter(path, 0), threading.Event()
    columns = next(chunks(CHUNK))

    def write() -> None:
        began, written = time.monotonic(), 0
        while not stop.wait(FEED_EVERY_S):
            due = int((time.monotonic() - began) * steps_a_second) + 1
            if due > written:
                writer.append(encode(Table.STEPS, piece(columns, written, due)))
                written = due
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def piece(columns: dict[str, np.ndarray], start: int, stop: int) -> dict[str, np.ndarray]:
    at = np.arange(start, stop)
    made = {name: values[at % CHUNK] for name, values in columns.items()}
    return {**made, "step": at, "time_ns": np.full(len(at), time.time_ns())}


def watching(one: Any, url: str) -> Any:
    page = one.new_page(viewport=VIEW)
    page.goto(url)
    page.wait_for_function(DRAWN, arg=10, timeout=60_000)
    return page


def hide(page: Any) -> None:
    """As a browser does that shows another tab; headless ones show all of theirs."""
    page.evaluate(HIDE)


def count_refreshes(page: Any, seconds: float) -> int:
    """How often the chart was drawn anew."""
    seen, last, until = 0, "", time.monotonic() + seconds
    while time.monotonic() < until:
        rows = page.evaluate("() => document.querySelector('[data-drawn]').dataset.drawn")
        seen += rows != last
        last = rows
        time.sleep(0.2)
    return seen


class Cost:
    """CPU time from now on."""

    def __init__(self, server: list[psutil.Process], browser_pids: list[int]) -> None:
        self._server = server
        self._browser = [psutil.Process(pid) for pid in browser_pids]
        self._began = time.monotonic()
        self._before = cpu_of(self._server), cpu_of(self._browser)

    def milliseconds(self, count: int) -> tuple[float, float]:
        server = cpu_of(self._server) - self._before[0]
        tab = cpu_of(self._browser) - self._before[1]
        return 1000 * server / count, 1000 * tab / count

    def server_share(self) -> float:
        return (cpu_of(self._server) - self._before[0]) / (time.monotonic() - self._began)


def cpu_of(processes: list[psutil.Process]) -> float:
    """What the processes and those that they started have used, each counted once."""
    found: set[psutil.Process] = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found |= {process, *process.children(recursive=True)}
    total = 0.0
    for one in found:
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total


def server_processes(server: Server) -> list[psutil.Process]:
    port = server.port
    found = [c for c in psutil.Process().children() if f"--server.port={port}" in c.cmdline()]
    assert found, "the server is a child of this process"
    return found


def until_coloured(page: Any, chart: str) -> float:
    """Look at the chart's pixels until some are coloured, and say when: the same for both. Asked
    at once and again: Playwright's own waiting looks every half second."""
    while True:
        box = page.evaluate(BOX, chart)
        if box:
            picture, seen = page.screenshot(clip=box), time.perf_counter()
            pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
            if (np.ptp(pixels, axis=2) > COLOURED).sum() >= LEAST_PIXELS:
                return seen
        time.sleep(0.01)
