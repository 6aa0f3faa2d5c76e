"""What the dashboard costs: to open a long run, to refresh a live one, to stay open for a day.

    python benchmarks/dashboard.py [open live delay tabs memory idle loss list layers] [--quick]

Headless Chromium looks at the page; TensorBoard, with its fast loader, shows the same losses in the
same run of this script. CPU time is that of all processes of the server, or of the browser.
`open` is the time from a new tab to its first chart's pixels, in a server that has shown nothing.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from dashboard_layers import many_layers
from dashboard_lists import listing
from dashboard_parts import (
    DRAWN,
    RESTS_AFTER_S,
    VIEW,
    Cost,
    browser,
    count_refreshes,
    feeding,
    hide,
    server_processes,
    until_coloured,
    watching,
)
from dashboard_runs import chunks, spike_steps, write_run, write_tensorboard

import ampwatch
from ampwatch.cli.dashboard import Server


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


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """TensorBoard with its fast loader, once it has loaded everything."""
    port = free_port()
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


def delays(folder: Path, quick: bool) -> Iterator[Row]:
    """From a step of a real training to its being drawn: over the log on this disk, and over the
    feed from a trainer whose own log the server does not see."""
    steps = 200 if quick else 1000
    for way, trainer_folder in (("log", folder / "log"), ("feed", folder / "away")):
        place = folder / way
        endpoint = f"tcp://127.0.0.1:{free_port()}" if way == "feed" else "off"
        os.environ["AMPWATCH_ENDPOINT"] = endpoint
        place.mkdir(exist_ok=True)
        with Server([place]) as server, browser() as (one, _):
            page = one.new_page(viewport=VIEW)
            page.goto(server.url)
            with trained(trainer_folder, steps, endpoint):
                seen = watch_rows(page, steps)
        times = ampwatch.open_run(trainer_folder / "delayed").read("steps", columns=("time_ns",))
        late = lateness(times.column("time_ns").to_numpy() / 1e9, seen)
        yield (
            f"a step on the screen, over the {way}: median, 95 %, worst, s",
            ", ".join(f"{np.quantile(late, q):.2f}" for q in (0.5, 0.95, 1)), "1.5",
        )  # fmt: skip
    os.environ["AMPWATCH_ENDPOINT"] = "off"


@contextmanager
def trained(folder: Path, steps: int, endpoint: str) -> Iterator[None]:
    """A real training of 20 steps a second, in a process of its own."""
    script = Path(__file__).parents[1] / "tests" / "dashboard" / "slow_training.py"
    child = subprocess.Popen(
        [sys.executable, str(script), "delayed", str(steps), "0.05"],
        env={**os.environ, "AMPWATCH_DIR": str(folder), "AMPWATCH_ENDPOINT": endpoint},
    )
    try:
        yield
    finally:
        child.wait(600)


ROWS = "() => Number(document.querySelector('[data-drawn]')?.dataset.drawn ?? 0)"


def watch_rows(page: Any, steps: int) -> list[tuple[float, int]]:
    """How many rows were drawn at which time, until all are."""
    seen = [(time.time(), 0)]
    while seen[-1][1] < steps:
        drawn = page.evaluate(
            "() => Number(document.querySelector('[data-drawn]')?.dataset.drawn ?? 0)"
        )
        seen.append((time.time(), drawn))
        time.sleep(0.02)
    return seen


def lateness(times_s: np.ndarray, seen: list[tuple[float, int]]) -> np.ndarray:
    """Seconds from each step to the first look that had it; the page's own start left out."""
    looks, rows = np.array(seen).T
    first = np.searchsorted(rows, np.arange(len(times_s)) + 1)
    began = int(rows[rows > 0][0])
    return (looks[first] - times_s)[began:]


def many_tabs(folder: Path, quick: bool) -> Iterator[Row]:
    """The server's CPU for ten tabs on one live run, all in view or only one, against one."""
    seconds = 10 if quick else 40
    costs = {}
    for count, in_view in ((1, 1), (10, 10), (10, 1)):
        place = folder / f"{count} {in_view}"
        with feeding(place, steps_a_second=20), Server([place]) as server, browser() as (one, pids):
            for page in [watching(one, server.url) for _ in range(count)][in_view:]:
                hide(page)
            time.sleep(RESTS_AFTER_S if in_view < count else 0)
            cost = Cost(server_processes(server), pids)
            time.sleep(seconds)
            costs[count, in_view] = cost.server_share()
    yield "server CPU, one tab", f"{costs[1, 1]:.1%}", ""
    yield "server CPU, ten tabs in view, times one", f"{costs[10, 10] / costs[1, 1]:.2f}", "3"
    yield "server CPU, ten tabs, one in view, times one", f"{costs[10, 1] / costs[1, 1]:.2f}", "3"


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    "delay": delays,
    "tabs": many_tabs,
    "memory": staying,
    "idle": resting,
    "loss": losing,
    "list": listing,
    "layers": many_layers,
}

if __name__ == "__main__":
    main()
