"""What the dashboard costs: to open a long run, to refresh a live one, to stay open for a day.

    python benchmarks/dashboard.py [open live tabs memory idle loss] [--quick] [--out FILE.md]

Headless Chromium looks at the page; TensorBoard, with its fast loader, shows the same losses in the
same run of this script. CPU time is that of all processes of the server, or of the browser.
`open` is the time from a new tab to its first chart's pixels, in a server that has shown nothing.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from dashboard_runs import CHUNK, chunks, spike_steps, write_run, write_tensorboard
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", choices=[*MEASURES, []], default=[])
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ |= {"AMPWATCH_ENDPOINT": "off", "OMP_NUM_THREADS": "1"}
    lines = ["| measure | value | to reach |", "|---|---:|---:|"]
    for name in options.what or MEASURES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_STATE_HOME"] = f"{folder}/state"
            for row in MEASURES[name](Path(folder), options.quick):
                lines.append("| " + " | ".join(row) + " |")
                print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


Row = tuple[str, str, str]


# --- opening -------------------------------------------------------------------------------------


def opening(folder: Path, quick: bool) -> Iterator[Row]:
    """A finished, compacted run, in a fresh server and a fresh tab; and TensorBoard's."""
    million, times = (100_000, 1) if quick else (1_000_000, 5)
    one = write_run(folder / "one", "one", million)
    ten = write_run(folder / "ten", "ten", 10 * million)
    board = write_tensorboard(folder, million)
    ours = median(lambda: open_ours(one.parent, million), times)
    long = median(lambda: open_ours(ten.parent, 10 * million), times)
    theirs = median(lambda: open_tensorboard(board), times)
    yield f"open {million:,} steps, s", f"{ours:.2f}", f"{theirs:.2f} (TensorBoard)"
    yield f"open {10 * million:,} steps, s", f"{long:.2f}", f"{1.5 * ours:.2f}"


def open_ours(folder: Path, rows: int) -> float:
    with Server([folder]) as server, browser() as (one, _):
        page = one.new_page(viewport=VIEW)
        began = time.perf_counter()
        page.goto(server.url)
        seen = until_coloured(page, ".aw-chart")
        page.wait_for_function(DRAWN, arg=rows)
        return seen - began


def open_tensorboard(folder: Path) -> float:
    with tensorboard(folder) as url, browser() as (one, _):
        page = one.new_page(viewport=VIEW)
        began = time.perf_counter()
        page.goto(f"{url}/#timeseries")
        return until_coloured(page, "line-chart .series-view") - began


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


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """TensorBoard with its fast loader, once it has loaded everything."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", f"--logdir={folder}", f"--port={port}",
         "--load_fast=true", "--samples_per_plugin=scalars=1000"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(port)
        yield f"http://localhost:{port}"
    finally:
        child.terminate()
        child.wait()


# --- live ----------------------------------------------------------------------------------------


def refreshing(folder: Path, quick: bool) -> Iterator[Row]:
    """Six charts of a run that logs 20 steps a second, refreshed once a second."""
    seconds = 10 if quick else 60
    with feeding(folder, steps_a_second=20), Server([folder]) as server, browser() as (one, pids):
        page = watching(one, server.url)
        cost = Cost(server_processes(server), pids)
        drawn = count_refreshes(page, seconds)
        server_ms, browser_ms = cost.milliseconds(drawn)
    yield "refreshes counted", str(drawn), f"about {seconds}"
    yield "server CPU a refresh, ms", f"{server_ms:.0f}", "75"
    yield "browser CPU a refresh, ms", f"{browser_ms:.0f}", "280"


def many_tabs(folder: Path, quick: bool) -> Iterator[Row]:
    """The server's CPU for ten tabs on one live run, against one."""
    seconds = 10 if quick else 40
    costs = {}
    for count in (1, 10):
        place = folder / str(count)
        with feeding(place, steps_a_second=20), Server([place]) as server, browser() as (one, pids):
            for _ in range(count):
                watching(one, server.url)
            cost = Cost(server_processes(server), pids)
            time.sleep(seconds)
            costs[count] = cost.server_share()
    yield "server CPU, one tab", f"{costs[1]:.1%}", ""
    yield "server CPU, ten tabs, times one", f"{costs[10] / costs[1]:.2f}", "4"


def staying(folder: Path, quick: bool) -> Iterator[Row]:
    """Twelve hours of a run of two steps a second, fed in minutes; memory after a tenth, and at
    the end."""
    hours, minutes = (1, 1) if quick else (12, 20)
    rate = hours * 3600 * 2 / (minutes * 60)
    samples: list[tuple[float, float]] = []
    with feeding(folder, steps_a_second=rate), Server([folder]) as server, browser() as (one, _):
        page = watching(one, server.url)
        session = page.context.new_cdp_session(page)
        for _ in range(100):
            time.sleep(minutes * 60 / 100)
            session.send("HeapProfiler.collectGarbage")
            heap = session.send("Runtime.getHeapUsage")["usedSize"]
            resident = sum(p.memory_info().rss for p in server_processes(server))
            samples.append((resident, heap))
    for name, at in (("server's memory", 0), ("tab's heap", 1)):
        early = statistics.median(sample[at] for sample in samples[8:13])
        late = statistics.median(sample[at] for sample in samples[-5:])
        shown = f"{early / 1e6:.0f} to {late / 1e6:.0f} MB, {late / early - 1:+.1%}"
        yield f"{name} over {hours} h, after the first tenth", shown, "+10 %"


def resting(folder: Path, quick: bool) -> Iterator[Row]:
    """A server that nobody looks at, and one with a finished run on the screen."""
    seconds = 10 if quick else 60
    write_run(folder, "ended", 10_000)
    with Server([folder]) as server:
        time.sleep(5)
        cost = Cost(server_processes(server), [])
        time.sleep(seconds)
        yield "server CPU, no tab", f"{cost.server_share():.2%}", "0"
        with browser() as (one, pids):
            page = one.new_page(viewport=VIEW)
            page.goto(server.url)
            page.wait_for_function(DRAWN, arg=10_000)
            time.sleep(5)
            cost = Cost(server_processes(server), pids)
            time.sleep(seconds)
            yield "server CPU, a finished run on the screen", f"{cost.server_share():.2%}", ""


# --- what is lost --------------------------------------------------------------------------------


def losing(folder: Path, quick: bool) -> Iterator[Row]:
    """Of 500 one-step spikes those drawn once zoomed in; and columns without their skip."""
    steps = 100_000 if quick else 1_000_000
    write_run(folder, "spiky", steps)
    spikes = spike_steps(steps)
    with Server([folder]) as server, browser() as (one, _):
        page = one.new_page(viewport=VIEW)
        empty, seen = 0, 0
        page.goto(server.url)
        page.wait_for_function(DRAWN, arg=steps)
        empty = columns_without_their_skip(page, steps)
        width = 1500
        for spike in spikes if not quick else spikes[:5]:
            first = max(0, int(spike) - width // 2)
            page.goto(f"{server.url}/?run=spiky&span={first}-{first + width}")
            page.wait_for_function(DRAWN, arg=steps)
            seen += bool(page.evaluate(SPIKE_DRAWN, int(spike)))
            if quick and seen == 5:
                break
    whole = 5 if quick else len(spikes)
    yield "one-step spikes seen after zooming", f"{seen} of {whole}", f"{whole}"
    yield "pixel columns with a skip and no tick", str(empty), "0"


SPIKE_DRAWN = """step => document.querySelector('.aw-plot').drawn.panels
    .flatMap(panel => panel.lines)
    .some(({key, x, y}) => key === 'grad_norm' && x.some((at, n) => at === step && y[n] > 30))"""
TICKS = """() => { const {panels, plotWidth} = document.querySelector('.aw-plot').drawn;
    return [panels.find(({rug}) => rug).rug.ticks.map(({step}) => step), plotWidth]; }"""


def columns_without_their_skip(page: Any, steps: int) -> int:
    drawn, pixels = page.evaluate(TICKS)
    skips = np.concatenate([columns["step"][columns["skipped"]] for columns in chunks(steps)])

    def columns_of(at: np.ndarray) -> set[int]:
        return set((np.asarray(at) / (steps - 1) * pixels).astype(int).tolist())

    return len(columns_of(skips) - columns_of(np.array(drawn)))


# --- tools ---------------------------------------------------------------------------------------


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
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            for one in [process, *process.children(recursive=True)]:
                times = one.cpu_times()
                total += times.user + times.system
    return total


def server_processes(server: Server) -> list[psutil.Process]:
    port = server.port
    found = [c for c in psutil.Process().children() if f"--server.port={port}" in c.cmdline()]
    assert found, "the server is a child of this process"
    return found


def wait_for_port(port: int) -> None:
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.1)


def median(measure: Callable[[], float], times: int) -> float:
    return statistics.median(measure() for _ in range(times))


MEASURES: dict[str, Callable[[Path, bool], Iterator[Row]]] = {
    "open": opening,
    "live": refreshing,
    "tabs": many_tabs,
    "memory": staying,
    "idle": resting,
    "loss": losing,
}

if __name__ == "__main__":
    main()
