"""A run that goes on for ten million steps: memory of its trainer's side, of a recorder, of a page.

Part of memory.py. Three processes: one files and sends ready-made rows, as a trainer does; a
recorder files copies of them; one follows the run, judges it and makes what the browser would be
sent. The parent samples their resident memory. Rows come as fast as the page takes them, so it is
never far behind. The page reads the trainer's own log, as on the machine that trains, or with
`--copy` the recorder's.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from log_rows import step_columns
from parts.children import kept, recorder
from parts.machine import ROOT, folder_bytes, keep_state_in
from parts.ranks import Rank, event_batch, until_filed
from parts.tables import table

from ampwatch.codec import encode
from ampwatch.rows import Table

SHARES = (0.1, 0.5, 1.0)
LAYERS, LAYER_EVERY = 8, 50
BATCH_STEPS = 500
AHEAD_STEPS, AHEAD_BATCHES = 100_000, 200  # of the page, and of the recorder
LOOK_S = 0.2
Samples = dict[str, list[float]]  # MB, by process: at its start; at each share, and its peak


def report(steps: int, *, copy: bool) -> str:
    """The figures, in markdown."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples, seconds = measure(folder, steps, copy=copy)
        looks_ms = json.loads((folder / "looks").read_text())
        log_mb = folder_bytes(folder / "copies") / 1e6
    heads = " | ".join(f"{share:.0%} | highest till then" for share in SHARES)
    rows = [(name, *(f"{mb:.0f}" for mb in each)) for name, each in samples.items()]
    return (
        f"Resident memory while a run of {steps:,} steps goes on, in MB:\n\n"
        f"{table(f'process | at its start | {heads}', rows)}\n\n"
        f"{steps / seconds:,.0f} steps/s for {seconds:.0f} s; the log has {log_mb:.0f} MB; "
        f"load {os.getloadavg()[0]:.1f}. Median look of the page, its messages made, up to each "
        f"share: {', '.join(f'{ms:.0f}' for ms in looks_ms)} ms."
    )


def measure(folder: Path, steps: int, *, copy: bool) -> tuple[Samples, float]:
    keep_state_in(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    with contextlib.ExitStack() as stack:
        endpoint, pid = stack.enter_context(recorder(folder / "copies"))
        part = {"folder": str(folder), "steps": steps, "endpoint": endpoint, "copy": copy}
        processes = {"recorder": psutil.Process(pid)}
        for name in ("trainer's side", "page"):
            child, _ = stack.enter_context(kept(__file__, name, json.dumps(part)))
            processes[name] = psutil.Process(child.pid)
        samples = {name: [_rss_mb(process)] for name, process in processes.items()}
        peaks, began = dict.fromkeys(processes, 0.0), time.perf_counter()
        for share in SHARES:
            while _taken(folder) < share * steps:
                time.sleep(LOOK_S)
                peaks = {name: max(peaks[name], _rss_mb(p)) for name, p in processes.items()}
            for name, process in processes.items():
                samples[name] += [_rss_mb(process), peaks[name]]
            print(f"{share:.0%}", samples, file=sys.stderr, flush=True)
    return samples, time.perf_counter() - began


def _rss_mb(process: psutil.Process) -> float:
    """It raises where the process has ended."""
    if process.status() == psutil.STATUS_ZOMBIE:
        raise psutil.NoSuchProcess(process.pid)
    return float(process.memory_info().rss) / 1e6


def _taken(folder: Path) -> int:
    """How many steps the page has judged and drawn."""
    path = folder / "taken"
    return int(path.read_text() or 0) if path.exists() else 0


# --- the children ---------------------------------------------------------------------------------


def train(part: Mapping[str, Any]) -> None:
    """File and send the rows of a training, never far ahead of who takes them."""
    folder, chance = Path(part["folder"]), np.random.default_rng(0)
    rank = Rank(folder / "own", part["endpoint"], "ab" * 16)
    print("ready", flush=True)
    rank.send(event_batch("started", 0))
    names = {"name": [f"block.{n}" for n in range(LAYERS)], "order": list(range(LAYERS))}
    layers = {"step": [0] * LAYERS, "layer": list(range(LAYERS)), **names}
    rank.send(encode(Table.LAYER_INFO, layers))
    for first in range(0, part["steps"], BATCH_STEPS):
        rank.send(encode(Table.STEPS, step_columns(first, BATCH_STEPS, chance)))
        rank.send(encode(Table.LAYERS, _samples(first, chance)))
        while first - _taken(folder) > AHEAD_STEPS or rank.unfiled > AHEAD_BATCHES:
            time.sleep(0.005)
    until_filed([rank])
    sys.stdin.readline()


def _samples(first: int, chance: np.random.Generator) -> dict[str, np.ndarray]:
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


def follow(part: Mapping[str, Any]) -> None:
    """Look at the run again and again, as the page's server does for one open tab."""
    sys.path.insert(0, str(ROOT / "dashboard"))
    from address import Address
    from layer_chart_data import QUANTITIES, heatmap_grid
    from layer_choices import whole_view
    from open_runs import OpenRuns
    from run_chart import ThinnedBases, live_message, picture_of

    folder, shares, taken = Path(part["folder"]), list(SHARES), 0
    runs, bases, looks_ms, medians_ms = OpenRuns(), ThinnedBases(), [], []
    print("ready", flush=True)
    place = folder / ("copies" if part["copy"] else "own")
    while not (found := list(place.glob("*/run.json"))):
        time.sleep(0.1)
    path = str(found[0].parent)
    while shares:
        began = time.perf_counter()
        look = runs.snapshot_of(path)
        if len(look.curves):
            base = bases.base_for(look.name, look.curves, None)
            live_message(picture_of(look, Address()), look.curves, base, {}, whole=True)
            whole_view(look, Address())
            heatmap_grid(look, QUANTITIES[1], None)
        looks_ms.append((time.perf_counter() - began) * 1e3)
        judged = 0 if look.verdict is None else look.verdict.judged.run.steps
        taken = min(judged, len(look.curves))
        if taken >= shares[0] * part["steps"]:
            shares.pop(0)
            medians_ms.append(float(np.median(looks_ms)))
            looks_ms.clear()
            (folder / "looks").write_text(json.dumps(medians_ms))
        (folder / "taken").write_text(str(taken))
        time.sleep(0.4)
    sys.stdin.readline()


if __name__ == "__main__":
    {"trainer's side": train, "page": follow}[sys.argv[1]](json.loads(sys.argv[2]))
