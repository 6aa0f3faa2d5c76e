"""What the trials of benchmarks/chaos.py damage copies of: runs of each form, made once.

`live` is a real training's log of two ranks, `compacted` the same compacted, `grown` a compacted
run that was resumed, `copy` a recorder's; `long` takes a while to compact, export and report.
"""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import chaos_training as training
import numpy as np
import pyarrow as pa
from chaos_trials import die_with_parent, end_descendants

import ampwatch.cli
import ampwatch.diagnosis
import ampwatch.importers
import ampwatch.recorder
import ampwatch.report
from ampwatch.codec import encode
from ampwatch.rows import Table
from ampwatch.store import (
    CopyNote,
    RankWriter,
    RunInfo,
    compact,
    create_run,
    open_run,
    write_copies,
)

SAMPLES = Path(__file__).parents[1] / "tests" / "importers" / "samples"
RUNS = ("live", "compacted", "grown", "copy")
_STEPS = 40
_LONG_STEPS, _LONG_CHUNK = 30_000, 250


def made(material: Path, kinds: Sequence[str]) -> Path:
    """Make all of it, in a process of its own: what forks must have no threads or sockets."""
    material.mkdir()
    (material / "runs").mkdir()
    pa.array(["x"])  # loads pandas, which each fork would have to do
    ampwatch.cli.build()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            die_with_parent()
            training.train_without_us(material)
            _make_runs(material)
            if any(name.startswith("kill-") for name in kinds):
                _make_long(material)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    try:
        _, status = os.waitpid(pid, 0)
    except BaseException:
        end_descendants()
        raise
    if status:
        how = os.waitstatus_to_exitcode(status)
        raise SystemExit(f"the material could not be made ({how}, see above)")
    return material


def a_run(material: Path, name: str, place: Path) -> Path:
    """A copy of a run, to be damaged."""
    return Path(shutil.copytree(material / "runs" / name, place))


@functools.cache
def content_of(path: Path) -> bytes:
    """A sample's bytes, unpacked."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@functools.cache
def samples() -> tuple[Path, ...]:
    """Foreign logs of every format, as they were printed."""
    return tuple(sorted(p for p in SAMPLES.rglob("*") if p.is_file() and p.suffix != ".json"))


def _make_runs(material: Path) -> None:
    folder = material / "runs"
    plan = training.Plan(
        folder, steps=_STEPS, attach={"run": "live", "config": {"lr": 1e-3, "why": "chaos"}}
    )
    child = training.start(plan, material / "said.txt")
    child.wait()
    assert child.code == 0, (material / "said.txt").read_text()
    live = folder / "live"
    shutil.copytree(live / "rank-0", live / "rank-1")
    shutil.copytree(live, folder / "copy")
    for name in ("compacted", "grown"):
        shutil.copytree(live, folder / name)
        shutil.rmtree(folder / name / "rank-1")
    compact(folder / "compacted")
    compact(folder / "grown")
    grown = RankWriter(folder / "grown", 0)
    for first in range(200, 230, 10):
        grown.append(_steps(np.arange(first, first + 10)))
    grown.close()
    notes = {rank: CopyNote(((4, 6),), None) for rank in (0, 1)}
    write_copies(folder / "copy", notes)
    for name in RUNS:
        assert open_run(folder / name).steps.num_rows >= _STEPS


def _make_long(material: Path) -> None:
    chance = np.random.default_rng(1)
    run = create_run(material / "runs", RunInfo(id="ab" * 16, name="long"))
    writer = RankWriter(run, 0)
    for first in range(0, _LONG_STEPS, _LONG_CHUNK):
        writer.append(_steps(np.arange(first, first + _LONG_CHUNK), chance))
    times = [10**18, 10**18 + _LONG_STEPS]
    columns = {"step": [0, _LONG_STEPS], "time_ns": times, "kind": ["started", "ended"]}
    writer.append(encode(Table.EVENTS, {**columns, "detail": ["{}", "{}"]}))
    writer.close()


def _steps(numbers: np.ndarray, chance: np.random.Generator | None = None) -> object:
    chance = chance or np.random.default_rng(int(numbers[0]))
    loss = 1.0 + chance.random(len(numbers))
    return encode(
        Table.STEPS,
        {
            "step": numbers, "time_ns": 10**18 + numbers, "loss": loss, "lr": loss * 0 + 0.1,
            "scale": loss * 0 + 65536.0, "scale_after": loss * 0 + 65536.0, "grad_norm": loss / 3,
        },
    )  # fmt: skip


def ended(pid: int, seconds: float) -> int | None:
    """The exit code of a child of ours, once it has ended; None if it does not within the time."""
    deadline = time.monotonic() + seconds
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(found[1])
