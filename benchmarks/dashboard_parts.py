"""What benchmarks/dashboard.py looks with and at: a browser, CPU time, many steps, many runs."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image
from playwright.sync_api import sync_playwright

import ampwatch
from ampwatch.cli.dashboard import Server
from ampwatch.codec import encode
from ampwatch.rows import Table
from ampwatch.store import RankWriter, RunInfo, compact, create_run

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
VIEW = {"width": 1400, "height": 1000}
DRAWN = "rows => Number(document.querySelector('[data-drawn]')?.dataset.drawn) >= rows"
QUIET = "() => document.querySelector('[data-test-script-state=notRunning]')"
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


# --- runs ----------------------------------------------------------------------------------------

CHUNK = 100_000
SPIKES = 500  # one-step spikes of the gradient norm, in the whole run
SKIP_EVERY = 997  # steps
SEED = 1
SHORT_STEPS, SHORT_BATCH = 1000, 50


def chunks(steps: int) -> Iterator[dict[str, np.ndarray]]:
    """The run's columns, a stretch at a time."""
    chance = np.random.default_rng(SEED)
    spikes = np.random.default_rng(SEED + 1).choice(steps, SPIKES, replace=False)
    for first in range(0, steps, CHUNK):
        step = np.arange(first, min(first + CHUNK, steps))
        skipped = step % SKIP_EVERY == SKIP_EVERY - 1
        norm = 1.0 + 0.1 * chance.standard_normal(len(step))
        norm[np.isin(step, spikes)] = 40.0
        yield {
            "step": step,
            "time_ns": 10**18 + step * 100_000_000,
            "scale": np.where(skipped, 2.0**17, 2.0**16),
            "scale_after": np.full(len(step), 2.0**16),
            "skipped": skipped,
            "found_inf": skipped,
            "loss": 2.5 / (1 + step / 50_000) + 0.02 * chance.standard_normal(len(step)),
            "lr": 1e-3 * np.cos(step / steps),
            "grad_norm": norm,
            "grad_norm_applied": np.minimum(norm, 2.0),
            "step_time_ms": chance.gamma(9, 10, len(step)),
        }


def write_run(folder: Path, name: str, steps: int) -> Path:
    """A finished and compacted run."""
    path = create_run(folder, RunInfo(id=name.encode().hex()[:32].ljust(32, "0"), name=name))
    writer = RankWriter(path, 0)
    writer.append(encode(Table.EVENTS, event(0, "started")))
    for columns in chunks(steps):
        writer.append(encode(Table.STEPS, columns))
    writer.append(encode(Table.EVENTS, event(steps, "ended")))
    writer.close()
    compact(path)
    return path


def write_short_runs(folder: Path, count: int) -> None:
    """Many runs of a thousand steps each, as a courier logs them; every eleventh was cut off."""
    columns = next(chunks(SHORT_STEPS))
    began_ns = time.time_ns() - count * 60_000_000_000
    for number in range(count):
        started_ns = began_ns + number * 60_000_000_000
        made = {**columns, "time_ns": started_ns + columns["step"] * 100_000_000}
        name = f"sweep-{number:06d}"
        info = RunInfo(id=f"{number:032x}", name=name, started_ns=started_ns)
        path = create_run(folder / f".{number // 500}", info)  # it looks at all its neighbours
        writer = RankWriter(path, 0)
        writer.append(encode(Table.EVENTS, event(0, "started")))
        for first in range(0, SHORT_STEPS, SHORT_BATCH):
            part = {key: values[first : first + SHORT_BATCH] for key, values in made.items()}
            writer.append(encode(Table.STEPS, part))
        if number % 11:
            writer.append(encode(Table.EVENTS, event(SHORT_STEPS, "ended")))
        writer.close()
        path.rename(folder / name)


def train_sweep(folder: Path, count: int, steps: int) -> None:
    """Real trainings in fp16 that differ in their learning rate, from too low to too high."""
    import torch

    for number, lr in enumerate(np.geomspace(1e-4, 3.0, count)):
        torch.manual_seed(number)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=float(lr))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=50)
        with ampwatch.attach(scaler, model, run=f"lr-{lr:.5f}", log_dir=folder):
            for _ in range(steps):
                x = torch.randn(32, 8)
                with torch.autocast("cpu", dtype=torch.float16):
                    out = model(x)
                loss = ((out.float() - x.sum(1, keepdim=True)) ** 2).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()


def event(step: int, kind: str) -> dict[str, list[object]]:
    return {
        "step": [step], "time_ns": [time.time_ns()], "kind": [kind], "detail": [json.dumps({})],
    }  # fmt: skip


def write_tensorboard(folder: Path, steps: int) -> Path:
    """The same losses as TensorBoard events."""
    from torch.utils.tensorboard import SummaryWriter

    path = folder / f"tensorboard-{steps}"
    with SummaryWriter(str(path), max_queue=10_000) as writer:
        for columns in chunks(steps):
            for step, value in zip(columns["step"], columns["loss"], strict=True):
                writer.add_scalar("loss", float(value), int(step))
    return path


# --- looking --------------------------------------------------------------------------------------


@contextmanager
def browser() -> Iterator[tuple[Any, list[int]]]:
    """Chromium, and the processes that are its."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        after = {child.pid for child in psutil.Process().children(recursive=True)}
        yield one, sorted(after - before)
        one.close()


Pace = Callable[[float], float]  # how many steps are due after so many seconds


def steady(steps_a_second: float) -> Pace:
    return lambda seconds: seconds * steps_a_second


@contextmanager
def feeding(folder: Path, pace: Pace) -> Iterator[None]:
    """A run that grows: a thread writes it as a trainer's courier does."""
    path = create_run(folder, RunInfo(id="ab" * 16, name="live", started_ns=time.time_ns()))
    writer, columns = RankWriter(path, 0), next(chunks(CHUNK))

    def write(start: int, stop: int) -> None:
        writer.append(encode(Table.STEPS, piece(columns, start, stop)))

    with growing(write, pace):
        yield
    writer.close()


@contextmanager
def feeding_tensorboard(folder: Path, pace: Pace) -> Iterator[Path]:
    """The same losses as TensorBoard events that grow."""
    from torch.utils.tensorboard import SummaryWriter

    losses = next(chunks(CHUNK))["loss"]
    with SummaryWriter(str(folder)) as writer:

        def write(start: int, stop: int) -> None:
            for step in range(start, stop):
                writer.add_scalar("loss", float(losses[step % CHUNK]), step)
            writer.flush()

        with growing(write, pace):
            yield folder


@contextmanager
def growing(write: Callable[[int, int], None], pace: Pace) -> Iterator[None]:
    """A thread that writes the steps that are due."""
    stop = threading.Event()

    def keep_up() -> None:
        began, written = time.monotonic(), 0
        while not stop.wait(FEED_EVERY_S):
            due = int(pace(time.monotonic() - began)) + 1
            if due > written:
                write(written, due)
                written = due

    thread = threading.Thread(target=keep_up)
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


# Notes how long each frame took in which the chart was painted anew: from one frame's callbacks to
# the next one's. Ours come first in a frame, the chart's after it.
_FRAMES = """() => {
    window.frameTimes = [];
    let [before, seen] = [null, null];
    const look = () => {
        const part = document.querySelector('.aw-plot .moving:not(:empty)');
        const [now, place] = [performance.now(), part.style.transform];
        if (seen !== null && place !== seen) window.frameTimes.push(now - before);
        [before, seen] = [now, place];
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look); }"""


def pan(page: Any, moves: int) -> np.ndarray:
    """Drag the chart to and fro with Shift and the mouse; how long frames took that painted, ms."""
    box = page.evaluate(BOX, ".aw-plot")
    middle, down = box["x"] + box["width"] / 2, box["y"] + min(box["height"], VIEW["height"]) / 4
    page.keyboard.down("Shift")
    page.mouse.move(middle, down)
    page.mouse.down()
    page.mouse.move(middle + 10, down)
    page.evaluate(_FRAMES)
    for number in range(moves):
        page.mouse.move(middle + 0.3 * box["width"] * np.sin(number / 15), down)
    times = page.evaluate("() => window.frameTimes")
    page.mouse.up()
    page.keyboard.up("Shift")
    return np.array(times)


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
