"""What does the dashboard cost: to open a long run, to refresh a live one, to stay open for a day?

    python benchmarks/dashboard.py [first open live delay tabs pan memory idle list] [--quick]

Headless Chromium looks at the page; TensorBoard, with its fast loader, shows the same losses in the
same run of this script. CPU time is that of all processes of the server, or of the browser.
`open` is the time from a new tab to its first chart's pixels, in a server that has shown nothing.
`first` is that beside TensorBoard's, of a finished run and of one that goes on, in turn; cold in a
fresh server and browser, warm in the next tab of both. `pan` is how long a frame takes in which
fifty compared runs, of real trainings, are moved under a mouse. `memory` feeds twelve hours of a
run in minutes, and looks after hour one and after the last, while rows come as slowly as in life.
Results: results/dashboard.md.
"""

from __future__ import annotations

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
from dashboard_parts import (
    DRAWN,
    QUIET,
    RESTS_AFTER_S,
    VIEW,
    Cost,
    browser,
    count_refreshes,
    feeding,
    feeding_tensorboard,
    hide,
    pan,
    server_processes,
    steady,
    train_sweep,
    until_coloured,
    watching,
    write_run,
    write_short_runs,
    write_tensorboard,
)
from parts.machine import keep_state_in, machine
from parts.options import command_line
from parts.tables import page

import ampwatch
from ampwatch.cli.dashboard import Server


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("what", nargs="*", choices=[*MEASURES, []], default=[])
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ |= {"AMPWATCH_ENDPOINT": "off", "AMPWATCH_QUIET": "1", "OMP_NUM_THREADS": "1"}
    rows: list[Row] = []
    for name in options.what or MEASURES:
        with tempfile.TemporaryDirectory() as folder:
            keep_state_in(folder)
            for row in MEASURES[name](Path(folder), options.quick):
                rows.append(row)
                print(*row, sep="; ", flush=True)
    page("The dashboard", machine(), "measure | value | to reach", rows, options.out)


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
        seen = until_coloured(page, OUR_CHART)
        page.wait_for_function(DRAWN, arg=rows)
        return seen - began


def open_tensorboard(folder: Path) -> float:
    with tensorboard(folder) as url, browser() as (one, _):
        page = one.new_page(viewport=VIEW)
        began = time.perf_counter()
        page.goto(f"{url}/#timeseries")
        return until_coloured(page, THEIR_CHART) - began


OUR_CHART, THEIR_CHART = ".aw-chart", "line-chart .series-view"


def first_charts(folder: Path, quick: bool) -> Iterator[Row]:
    """Seconds until the first chart of the same losses, ours over TensorBoard's; 1.0 or less."""
    times, steps = (1, 10_000) if quick else (5, 100_000)
    write_run(folder / "ended", "ended", steps)
    board = write_tensorboard(folder / "board", steps)
    yield from beside("finished", folder / "ended", board, times)
    live = folder / "live"
    live.mkdir()
    with feeding(live, steady(20)), feeding_tensorboard(folder / "fed", steady(20)) as fed:
        time.sleep(10)
        yield from beside("live", live, fed, times)


def beside(what: str, ours: Path, theirs: Path, times: int) -> Iterator[Row]:
    """The ratios of a run's first charts, and what they are of; one after the other, in turn."""
    seconds: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for _ in range(times):
        with Server([ours]) as server:
            seconds["ours"].append(cold_and_warm(server.url, OUR_CHART))
        with tensorboard(theirs) as url:
            seconds["theirs"].append(cold_and_warm(f"{url}/#timeseries", THEIR_CHART))
    for at, when in enumerate(("cold", "warm")):
        mine, other = (statistics.median(one[at] for one in seconds[who]) for who in seconds)
        text = f"{mine / other:.2f} ({mine:.2f} s over {other:.2f} s)"
        yield f"first chart of a {what} run, {when}, over TensorBoard's", text, "1.0"


def cold_and_warm(url: str, chart: str) -> tuple[float, float]:
    """Seconds until the first tab of a browser shows the chart, and until its second one does."""
    seconds = []
    with browser() as (one, _):
        context = one.new_context(viewport=VIEW)
        for _ in range(2):
            page = context.new_page()
            began = time.perf_counter()
            page.goto(url)
            seconds.append(until_coloured(page, chart) - began)
            page.close()
    return seconds[0], seconds[1]


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
    with feeding(folder, steady(20)), Server([folder]) as server, browser() as (one, pids):
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
        drawn = page.evaluate(ROWS)
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
        with feeding(place, steady(20)), Server([place]) as server, browser() as (one, pids):
            for page in [watching(one, server.url) for _ in range(count)][in_view:]:
                hide(page)
            time.sleep(RESTS_AFTER_S if in_view < count else 0)
            cost = Cost(server_processes(server), pids)
            time.sleep(seconds)
            costs[count, in_view] = cost.server_share()
    yield "server CPU, one tab", f"{costs[1, 1]:.1%}", ""
    yield "server CPU, ten tabs in view, times one", f"{costs[10, 10] / costs[1, 1]:.2f}", "3"
    yield "server CPU, ten tabs, one in view, times one", f"{costs[10, 1] / costs[1, 1]:.2f}", "3"


def panning(folder: Path, quick: bool) -> Iterator[Row]:
    """Fifty runs over one another, half of their steps in view, dragged to and fro."""
    count, steps, moves = (6, 100, 60) if quick else (50, 400, 600)
    train_sweep(folder, count, steps)
    names = ",".join(path.name for path in folder.iterdir() if path.name.startswith("lr-"))
    with Server([folder]) as server, browser() as (one, _):
        page = one.new_page(viewport=VIEW)
        page.goto(f"{server.url}/compare?runs={names}&span={steps // 4}-{3 * steps // 4}")
        page.wait_for_function(DRAWN, arg=count * steps, timeout=300_000)
        page.wait_for_function(QUIET, timeout=300_000)
        times = pan(page, moves)
    assert len(times) >= moves / 10, f"only {len(times)} frames were painted in {moves} moves"
    shown = ", ".join(f"{np.quantile(times, q):.0f}" for q in (0.5, 0.95, 1))
    yield (
        f"frame of {count} runs panned: median, 95 %, worst of {len(times)}, ms",
        shown,
        "33 (95 %)",
    )


HOURS, STEPS_AN_HOUR = 12, 2 * 3600


def staying(folder: Path, quick: bool) -> Iterator[Row]:
    """A run of two steps a second: its first hour fed in one stretch, the other eleven in a longer
    one, and after each a rest at life's own pace, in whose second half memory is looked at.

    So both looks are at a page that is as busy. What grows with rows shows; what would grow with
    hours on the clock alone does not: here these are minutes.
    """
    hour_s, rest_s, day_s = (10, 10, 20) if quick else (60, 80, 300)
    rest_steps = 2 * rest_s
    times_s = np.cumsum([0, hour_s, rest_s, day_s, rest_s])
    steps = np.cumsum([0, STEPS_AN_HOUR, rest_steps, (HOURS - 1) * STEPS_AN_HOUR, rest_steps])
    looks: list[tuple[float, float]] = []
    with (
        feeding(folder, lambda seconds: float(np.interp(seconds, times_s, steps))),
        Server([folder]) as server,
        browser() as (one, _),
    ):
        page = watching(one, server.url)
        for fed in steps[[1, 3]]:
            page.wait_for_function(DRAWN, arg=int(fed), timeout=600_000)
            time.sleep(rest_s / 2)
            looks.append(memory_of(server, page, 0.4 * rest_s))
    for name, early, late in zip(("server's memory", "tab's heap"), *looks, strict=True):
        shown = f"{early / 1e6:.0f} to {late / 1e6:.0f} MB, {late / early - 1:+.1%}"
        yield f"{name} at hour {HOURS} over hour 1", shown, "+5 %"


def memory_of(server: Server, page: Any, seconds: float) -> tuple[float, float]:
    """What the server and the tab's heap hold: the medians of some looks, in bytes."""
    session = page.context.new_cdp_session(page)
    resident, heap = [], []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        session.send("HeapProfiler.collectGarbage")
        heap.append(session.send("Runtime.getHeapUsage")["usedSize"])
        resident.append(sum(p.memory_info().rss for p in server_processes(server)))
        time.sleep(1)
    return statistics.median(resident), statistics.median(heap)


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


# --- many runs ------------------------------------------------------------------------------------

# Prints how long the first listing of a process took, the next, and one in haste.
_LISTING = """
import sys, time
from pathlib import Path
from ampwatch.store import Catalogue
listing = Catalogue([Path(sys.argv[1])])
for thorough in (True, True, False):
    began = time.perf_counter()
    found = listing.runs(thorough=thorough)
    print(time.perf_counter() - began)
assert len(found) == int(sys.argv[2])
"""


def listing(folder: Path, quick: bool) -> Iterator[Row]:
    """Runs of 1,000 steps each, on a disk that has them cached."""
    for count in (100, 200) if quick else (1_000, 100_000):
        place = folder / str(count)
        place.mkdir()
        write_short_runs(place, count)
        yield from of_folder(place, count)


def of_folder(place: Path, count: int) -> Iterator[Row]:
    """What these runs cost."""
    first, _, _ = listed(place, count)
    again, next_one, hasty = listed(place, count)
    yield f"list {count:,} runs for the first time ever, s", f"{first:.2f}", ""
    yield f"list {count:,} runs in a new process, s", f"{again:.2f}", "1 (of 1,000)"
    yield f"list {count:,} runs again, s", f"{next_one:.3f}", ""
    yield f"list {count:,} runs again, ended ones taken on trust, s", f"{hasty:.3f}", ""
    opened, whole, far, sent = seen(place, count)
    yield f"page of {count:,} runs, from a new tab to its first row, s", f"{opened:.2f}", ""
    yield f"page of {count:,} runs, until it has them all, s", f"{whole:.2f}", ""
    yield f"page of {count:,} runs, from a leap to its end to the last row, s", f"{far:.2f}", ""
    yield f"rows in the browser, of {count:,}", f"{sent}", ""


def listed(folder: Path, count: int) -> list[float]:
    """The times of three listings in a process of their own."""
    command = [sys.executable, "-c", _LISTING, str(folder), str(count)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(line) for line in printed.split()]


_ROW = ".aw-runs.all tbody tr[data-go]"
_LEAP = "() => { const box = document.querySelector('.aw-box'); box.scrollTop = box.scrollHeight; }"


_HAS_ALL = "rows => document.querySelector('.aw-runs.all').ariaRowCount == rows"


def seen(folder: Path, count: int) -> tuple[float, float, float, int]:
    """How long a tab of a fresh server takes to show a row, all, and the end; and the rows sent."""
    with Server([folder]) as server, browser() as (one, _):
        page = one.new_page(viewport=VIEW)
        began = time.perf_counter()
        page.goto(f"{server.url}/runs")
        page.locator(_ROW).first.wait_for(timeout=300_000)
        opened = time.perf_counter() - began
        page.wait_for_function(_HAS_ALL, arg=count + 1, timeout=300_000)
        whole = time.perf_counter() - began
        began = time.perf_counter()
        page.evaluate(_LEAP)
        page.locator(f"{_ROW}[aria-rowindex='{count + 1}']").wait_for(timeout=300_000)
        return opened, whole, time.perf_counter() - began, page.locator(_ROW).count()


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
    "first": first_charts,
    "open": opening,
    "live": refreshing,
    "delay": delays,
    "tabs": many_tabs,
    "pan": panning,
    "memory": staying,
    "idle": resting,
    "list": listing,
}

if __name__ == "__main__":
    main()
