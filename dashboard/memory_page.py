"""Memory and device: allocated, reserved and peak memory, utilisation, power, temperature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import open_runs
import run_chart
import streamlit as st
from html_text import said
from open_runs import RunSnapshot
from page_parts import refresh_run_part, show_problem
from run_chart import thinned_lines
from step_curves import StepCurves

from ampwatch.diagnosis.value_text import bytes_text, bytes_unit
from ampwatch.report.overview_chart import column_panel
from ampwatch.report.painter.message import Arrays, Guide, Panel, Picture, Stroke
from ampwatch.rows import Table, column

_EVERY_S = 2.0
_BYTES = {
    "allocated_bytes": "scale", "reserved_bytes": "rate", "peak_bytes": "skip",
    "used_bytes": "muted", "host_rss_bytes": "norm",
}  # fmt: skip
_RATES = {"utilisation": "norm", "power_w": "advice", "temperature_c": "skip"}
_READ = ("time_ns", "rank", "device", "name", "total_bytes", *_BYTES, *_RATES)


@dataclass(frozen=True, slots=True)
class SampledDevice:
    """One device of one rank: its memory and load over the seconds since the run began."""

    rank: int
    name: str
    curves: StepCurves  # of memory in `unit`
    total_bytes: int | None
    unit: str
    unit_bytes: float


def show(path: str) -> None:
    """Draw the page of memory and devices, and keep it up to date while the run goes on."""
    refresh_run_part(_draw_devices, path, _EVERY_S)


def _draw_devices(path: str) -> None:
    run = open_runs.snapshot(path)
    found = list(sampled_devices(run))
    if not found:
        show_problem(
            "No device was sampled yet: ampwatch samples about once a second, from a thread "
            "beside the training."
        )
    for number, device in enumerate(found):
        _draw_device(run, device, number)


def sampled_devices(run: RunSnapshot) -> Iterator[SampledDevice]:
    """The devices whose memory and load were sampled, rank by rank."""
    rows = run.read_table(Table.DEVICES, _READ)
    ranks = rows.column("rank").to_numpy()
    names = np.array(rows.column("device").to_pylist(), object)
    for rank, name in sorted({(int(r), str(n)) for r, n in zip(ranks, names, strict=True)}):
        mine = rows.filter(np.asarray((ranks == rank) & (names == name)))
        seconds = (mine.column("time_ns").to_numpy() - run.info.started_ns) / 1e9
        sizes = {size: np.array(mine.column(size).to_numpy(), np.float64) for size in _BYTES}
        totals = mine.column("total_bytes").drop_null()
        total = totals[-1].as_py() if len(totals) else None
        most = max(float(np.nanmax(values, initial=0.0)) for values in sizes.values())
        unit, unit_bytes = bytes_unit(max(most, total or 0))
        columns = {size: (values / unit_bytes).astype(np.float32) for size, values in sizes.items()}
        for rate in _RATES:
            factor = 100 if column(Table.DEVICES, rate).unit == "%" else 1
            columns[rate] = np.array(mine.column(rate).to_numpy(), np.float32) * factor
        present = frozenset(c for c, values in columns.items() if np.isfinite(values).any())
        curves = StepCurves(
            0, seconds.astype(np.int64), columns, np.zeros(0, np.int64), present, (),
        )  # fmt: skip
        card = next((n for n in reversed(mine.column("name").to_pylist()) if n), name)
        called = card if card == name else f"{card} ({name})"
        yield SampledDevice(rank, called, curves, total, unit, unit_bytes)


def _draw_device(run: RunSnapshot, device: SampledDevice, number: int) -> None:
    who = f"rank {device.rank} · " if len(run.ranks) > 1 else ""
    st.html(
        f'<p class="aw-title" role="heading" aria-level="2">{said(who + device.name)}</p>'
        f'<div class="aw-muted">{said(_peak_text(device))}</div>'
    )
    picture = Picture(
        name=f"{run.path} device {number}", panels=list(_device_panels(device)),
        ends=device.curves.ends,
        rows=len(device.curves), unit="second", reports=False,
    )  # fmt: skip
    arrays: Arrays = thinned_lines(device.curves)
    run_chart.show_still(picture, arrays, key=f"device {number}")


def _peak_text(device: SampledDevice) -> str:
    curves = device.curves
    column = next((c for c in ("peak_bytes", "used_bytes") if c in curves.present), None)
    if column is None:
        return "No GPU memory was sampled: this is the host."
    peak = float(np.nanmax(curves.columns[column])) * device.unit_bytes
    card = f" of {bytes_text(device.total_bytes)}" if device.total_bytes else ""
    return f"peak {bytes_text(peak)}{card}"


def _device_panels(device: SampledDevice) -> Iterator[Panel]:
    present = device.curves.present
    strokes = tuple(
        Stroke(name, column(Table.DEVICES, name).label, color)
        for name, color in _BYTES.items()
        if name in present
    )
    if strokes:
        title = [(f"Memory, {device.unit}", "ink")]
        if len(strokes) == 1:  # several have their labels
            title.append((f": {strokes[0].label}", strokes[0].color))
        yield Panel(
            tuple(title), strokes, height=150, unit=device.unit, guides=tuple(_card_size(device))
        )
    for name, color in _RATES.items():
        if name in present:
            yield column_panel(Table.DEVICES, name, color, height=80)


def _card_size(device: SampledDevice) -> Iterator[Guide]:
    if device.total_bytes:
        total = device.total_bytes / device.unit_bytes
        yield Guide(total, total, total, "muted", ", dotted: size of the card", fits=True)
