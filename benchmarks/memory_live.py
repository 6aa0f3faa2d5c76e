"""A run that goes on for ten million steps: memory of its trainer's side, of a recorder, of a page.

Three processes: one files and sends ready-made rows, as a courier does; a recorder files copies of
them; one follows the run, judges it and makes what the browser would be sent. The parent samples
their resident memory. Rows come as fast as the page takes them, so it is never far behind. The page
reads the trainer's own log, as on the machine that trains, or with `--copy` the recorder's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
from log_rows import step_columns

from ampwatch import feed, store
from ampwatch.codec import encode
from ampwatch.rows import FORMAT, Table

SHARES = (0.1, 0.5, 1.0)
RUN_ID = "ab" * 16
LAYERS, LAYER_EVERY = 8, 50
BATCH_STEPS = 500
AHEAD_STEPS, AHEAD_BATCHES = 100_000, 200  # of the page, and of the recorder
_EVERY_S = 0.2

RECORDER = """
import sys
from ampwatch.recorder import Recorder
with Recorder("tcp://127.0.0.1:*", sys.argv[1]) as recorder:
    print(recorder.endpoint, recorder.process_id, flush=True)
    sys.stdin.readline()
"""


def report(steps: int, *, copy: bool = False) -> str:
    """The figures, in markdown."""
    with tempfile.TemporaryDirectory() as folder:
        found, seconds, slowest_ms, log_mb = measure(Path(folder), steps, copy=copy)
    heads = [f"{share:.0%} | highest till then" for share in SHARES]
    lines = [
        f"Resident memory while a run of {steps:,} steps goes on, in MB:",
        "",
        f"| process | at its start | {' | '.join(heads)} |",
        f"|---|{'---:|' * (1 + 2 * len(SHARES))}",
    ]
    for name, (start, *samples) in found.items():
        cells = " | ".join(f"{now:.0f} | {peak:.0f}" for now, peak in samples)
        lines.append(f"| {name} | {start[0]:.0f} | {cells} |")
    slowest = ", ".join(f"{one:.0f}" for one in slowest_ms)
    return "\n".join(lines) + (
        f"\n\n{steps / seconds:,.0f} steps/s for {seconds:.0f} s; the log has {log_mb:.0f} MB; "
        f"load {os.getloadavg()[0]:.1f}. Median look of the page, its messages made, up to each "
        f"share: {slowest} ms."
    )


def measure(
    folder: Path, steps: int, *, copy: bool
) -> tuple[dict[str, list[tuple[float, float]]], float, list[float], float]:
    """Resident memory and its peak, in MB, by process at its start and at each share of the run."""
    os.environ["AMPWATCH_CONFIG_DIR"] = os.environ["XDG_STATE_HOME"] = str(folder / "home")
    os.environ["OMP_NUM_THREADS"] = "1"
    copies, taken = folder / "copies", folder / "taken"
    with contextlib.ExitStack() as stack:
        _, (endpoint, pid) = stack.enter_context(_child(["-c", RECORDER, str(copies)]))
        processes = {"recorder": psutil.Process(int(pid))}
        options = [__file__, f"--steps={steps}", f"--folder={folder}", f"--endpoint={endpoint}"]
        trainer, _ = stack.enter_context(_child([*options, "--child=trainer"]))
        processes = {"trainer's side": psutil.Process(trainer.pid), **processes}
        shown = ["--copy"] if copy else []
        page, _ = stack.enter_context(_child([*options, *shown, "--child=page"]))
        processes["page"] = psutil.Process(page.pid)
        found = {name: [(_rss_mb(one), 0.0)] for name, one in processes.items()}
        began, peaks = time.perf_counter(), dict.fromkeys(processes, 0.0)
        for share in SHARES:
            while _number(taken) < share * steps:
                assert page.poll() is None, "the page has ended"
                assert trainer.poll() is None, "the trainer has ended"
                time.sleep(_EVERY_S)
                peaks = {name: max(peaks[name], _rss_mb(p)) for name, p in processes.items()}
            for name, process in processes.items():
                found[name].append((_rss_mb(process), peaks[name]))
            print(f"{share:.0%}", found, file=sys.stderr, flush=True)
        seconds = time.perf_counter() - began
        slowest_ms = json.loads((folder / "looks").read_text())
        log = sum(path.stat().st_size for path in copies.rglob("*") if path.is_file())
    return found, seconds, slowest_ms, log / 1e6


@contextlib.contextmanager
def _child(arguments: list[str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A child that says a line when it is ready, and ends when its input is closed."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().split()
        finally:
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
            child.kill()


def _rss_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


def _number(path: Path) -> int:
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


# --- the children ---------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> None:
    """File and send the rows of a training, never far ahead of who takes them."""
    folder, chance = Path(options.folder), np.random.default_rng(0)
    info = store.RunInfo(id=RUN_ID, name="live")
    log = store.RankWriter(store.create_run(folder / "own", info), 0)
    sender = feed.Sender(options.endpoint, feed.Hello(RUN_ID, 0, info.to_json(), FORMAT, "0"), log)
    print("ready", flush=True)

    def put(table: Table, columns: dict) -> None:
        batch = encode(table, columns)
        sender.send(log.append(batch), batch)
        sender.poll()

    put(Table.EVENTS, {"step": [0], "time_ns": [0], "kind": ["started"], "detail": ["{}"]})
    names = {"name": [f"block.{n}" for n in range(LAYERS)], "order": list(range(LAYERS))}
    put(Table.LAYER_INFO, {"step": [0] * LAYERS, "layer": list(range(LAYERS)), **names})
    for first in range(0, options.steps, BATCH_STEPS):
        put(Table.STEPS, step_columns(first, BATCH_STEPS, chance))
        put(Table.LAYERS, _samples(first, chance))
        while (
            first - _number(folder / "taken") > AHEAD_STEPS
            or log.next_sequence - sender.stats.acknowledged > AHEAD_BATCHES
        ):
            sender.poll()
            time.sleep(0.005)
    while sender.stats.acknowledged < log.next_sequence:
        sender.poll()
        time.sleep(0.005)
    sys.stdin.readline()


def _samples(first: int, chance: np.random.Generator) -> dict:
    step = np.arange(first, first + BATCH_STEPS, LAYER_EVERY)
    count = len(step) * LAYERS
    numbers = {
        name: chance.lognormal(0, 1, count).astype(np.float32)
        for name in ("grad_norm", "act_amax", "log2_headroom", "update_ratio", "scale_low")
    }
    return {
        "step": np.repeat(step, LAYERS),
        "layer": np.tile(np.arange(LAYERS), len(step)),
        "scale_high": np.full(count, 2.0**20),
        **numbers,
    }


def follow(options: argparse.Namespace) -> None:
    """Look at the copy again and again, as the page's server does for one open tab."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "dashboard"))
    from address import Address
    from layer_chart_data import QUANTITIES, heatmap_grid
    from layer_choices import layer_view_message
    from open_runs import OpenRuns
    from run_chart import ThinnedBases, live_message, picture_of

    folder = Path(options.folder)
    runs, bases, looks_ms, medians_ms = OpenRuns(), ThinnedBases(), [], []
    print("ready", flush=True)
    place = folder / ("copies" if options.copy else "own")
    while not (found := list(place.glob("*/run.json"))):
        time.sleep(0.1)
    path, shares, taken = str(found[0].parent), list(SHARES), 0
    while shares:
        start = time.perf_counter()
        look = runs.snapshot_of(path)
        if len(look.curves):
            base = bases.base_for(look.name, look.curves, None)
            live_message(picture_of(look, Address()), look.curves, base, {}, whole=True)
            layer_view_message(look, Address())
            heatmap_grid(look, QUANTITIES[0], None)
        looks_ms.append((time.perf_counter() - start) * 1e3)
        judged = 0 if look.verdict is None else look.verdict.judged.run.steps
        taken = min(judged, len(look.curves))
        if taken >= shares[0] * options.steps:
            shares.pop(0)
            medians_ms.append(float(np.median(looks_ms)))
            looks_ms.clear()
            (folder / "looks").write_text(json.dumps(medians_ms))
        (folder / "taken").write_text(str(taken))
        time.sleep(0.4)
    sys.stdin.readline()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--child", choices=("trainer", "page"))
    parser.add_argument("--copy", action="store_true", help="the page follows the recorder's copy")
    parser.add_argument("--folder")
    parser.add_argument("--endpoint")
    options = parser.parse_args()
    if options.child is None:
        print(report(options.steps, copy=options.copy))
    else:
        {"trainer": train, "page": follow}[options.child](options)


if __name__ == "__main__":
    main()
