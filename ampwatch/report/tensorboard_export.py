"""A run for TensorBoard: its scalars, its layers', its devices', and the report as a text."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console

from ampwatch.report.settings import settings_of
from ampwatch.report.tensorboard_event_file import EventFile
from ampwatch.report.terminal_report import report_text
from ampwatch.rows import SCHEMAS, Table
from ampwatch.store import Run

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis

_STEPS = (
    "loss", "scale", "skipped", "lr", "grad_norm", "grad_norm_applied", "param_norm", "update_norm",
    "max_update_ratio", "update_alignment", "unmoved_share", "update_kept_share", "input_amax",
    "step_time_ms",
)  # fmt: skip
_LAYERS = (
    "grad_norm", "act_amax", "log2_headroom", "underflow_share", "update_ratio", "moment_ratio",
    "scale_low", "scale_high",
)  # fmt: skip
_DEVICES = (
    "allocated_bytes", "peak_bytes", "used_bytes", "utilisation", "power_w", "temperature_c",
    "host_rss_bytes",
)  # fmt: skip
_COLUMNS = 100  # of the report


def write_event_files(run: Run, diagnosis: Diagnosis, out: Path) -> list[Path]:
    """Write one file a rank, which TensorBoard shows as a run each; return their paths."""
    paths = []
    for rank in run.ranks or (0,):
        folder = out if len(run.ranks) < 2 else out / f"rank-{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{run.info.started_ns // 10**9:010d}.ampwatch"
        with EventFile(path) as file:
            if rank == min(run.ranks, default=0):
                _write_texts(file, run, diagnosis)
            _write_scalars(file, run, rank)
        paths.append(path)
    return paths


def _write_texts(file: EventFile, run: Run, diagnosis: Diagnosis) -> None:
    """The report and the settings, indented: Markdown leaves such a block as it is."""
    shown = io.StringIO()
    console = Console(file=shown, width=_COLUMNS, markup=False, emoji=False, highlight=False)
    console.print(report_text(run.info.name, run, diagnosis, fancy=False))
    settings = "\n".join(f"{name}: {value}" for name, value in settings_of(run).items())
    time_s = run.last_time_ns / 1e9
    for tag, text in (("findings", shown.getvalue()), ("settings", settings)):
        lines = "\n".join(line.rstrip() for line in text.split("\n"))
        file.text(f"{tag}/text_summary", 0, time_s, textwrap.indent(lines, "    "))


def _write_scalars(file: EventFile, run: Run, rank: int) -> None:
    users = [n for n in run.column_names(Table.STEPS) if n not in SCHEMAS[Table.STEPS].names]
    users = [name for name in users if name != "rank"]
    steps = run.read(Table.STEPS, ("step", "time_ns", "optimizer", *_STEPS, *users), rank)
    for number, rows in _by_optimizer(steps):
        prefix = f"optimizer {number}/" if number else ""
        for name in (*_STEPS, *users):
            _write(file, f"{prefix}{name}", rows, name)
    clock = _Clock(steps)
    layers = run.read(Table.LAYERS, ("step", "layer", *_LAYERS), rank)
    for layer, rows in _grouped(layers, "layer"):
        for name in _LAYERS:
            _write(file, f"layers {name}/{layer}", clock.timed(rows), name)
    devices = run.read(Table.DEVICES, ("time_ns", "device", *_DEVICES), rank)
    for device, rows in _grouped(devices, "device"):
        for name in _DEVICES:
            _write(file, f"device {device}/{name}", clock.placed(rows), name)


def _by_optimizer(steps: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each optimizer, the first as number 0."""
    numbers = steps.column("optimizer")
    known = numbers.drop_null().unique().to_pylist()
    if len(known) < 2:
        yield 0, steps
        return
    for place, number in enumerate(known):
        yield place, steps.filter(pc.equal(numbers, number))


def _grouped(rows: pa.Table, name: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each layer or device."""
    texts = rows.column(name).cast(pa.string())
    for one in texts.unique().drop_null().to_pylist():
        yield one, rows.filter(pc.equal(texts, one))


class _Clock:
    """The time of each step, and the step of each time."""

    def __init__(self, steps: pa.Table) -> None:
        known = steps.select(["step", "time_ns"]).drop_null()
        self._steps, self._times = (known.column(n).to_numpy() for n in ("step", "time_ns"))

    def timed(self, rows: pa.Table) -> pa.Table:
        """Rows of steps with their times."""
        order = np.argsort(self._steps, kind="stable")
        at = np.searchsorted(self._steps[order], rows.column("step").to_numpy())
        at = np.minimum(at, max(0, len(order) - 1))
        times = self._times[order][at] if len(order) else np.zeros(rows.num_rows, np.int64)
        return rows.append_column("time_ns", pa.array(times))

    def placed(self, rows: pa.Table) -> pa.Table:
        """Rows that have times, with the step at each time."""
        order = np.argsort(self._times, kind="stable")
        at = np.searchsorted(self._times[order], rows.column("time_ns").to_numpy())
        at = np.minimum(at, max(0, len(order) - 1))
        steps = self._steps[order][at] if len(order) else np.zeros(rows.num_rows, np.int64)
        return rows.append_column("step", pa.array(steps))


def _write(file: EventFile, tag: str, rows: pa.Table, name: str) -> None:
    """Write the known values of a column; nan is a value, null is not."""
    values = rows.column(name)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    known = _mask(values) & _mask(rows.column("step"))
    if known.any():
        steps, times = (rows.column(n).fill_null(0).to_numpy()[known] for n in ("step", "time_ns"))
        numbers = np.asarray(values.to_numpy(), np.float64)[known]
        file.scalars(tag, np.maximum(steps, 0), times / 1e9, numbers)


def _mask(column: Any) -> NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(), np.bool_)
