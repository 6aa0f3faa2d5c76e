"""Memory and device: allocated, reserved and peak memory, utilisation, power, temperature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import open_runs
import run_chart
import streamlit as st
from html_text import said
from open_runs import RunSnapshot
from page_parts import refresh_run_part, show_as_text, show_problem
from run_chart import thinned_lines
from step_curves import StepCurves
from verdict_band import state_html

from ampwatch.diagnosis.value_text import bytes_text, bytes_unit, percent_text
from ampwatch.report.overview_chart import column_panel
from ampwatch.report.painter.message import Arrays, Guide, Panel, Picture, Stroke
from ampwatch.rows import Table, column

_EVERY_S = 2.0
_BYTES = {
    "allocated_bytes": "scale", "reserved_bytes": "rate", "peak_bytes": "skip",
    "used_bytes": "muted", "host_rss_bytes": "norm",
}  # fmt: skip
_RATES = {"utilisation": "norm", "power_w": "advice", "temperature_c": "skip"}
# The first that was sampled is the peak, and who held it.
_HELD = {
    "peak_bytes": "tensors", "used_bytes": "all programs", "host_rss_bytes": "the process",
}  # fmt: skip
_GROWS = ("allocated_bytes", "used_bytes", "host_rss_bytes")
_FEWEST_SAMPLES, _FEWEST_STEPS = 16, 200  # of fewer a growth is not told from the start
_GROWN_SHARE = 0.01  # from one quarter of the samples to the next: less is noise
_FLOOR = Guide(0.0, 0.0, 0.0, "grid", "", fits=True)  # memory is drawn from 0
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
        return
    text = "".join(figures_html(run, device) for device in found)
    # The figures of a run that is over are of then, and no longer of now.
    st.html(text if run.is_live else f"{state_html(run)}{text}")
    _draw_chart(run, found)
    show_as_text(text)


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


# --- a sentence and figures -----------------------------------------------------------------------


def figures_html(run: RunSnapshot, device: SampledDevice) -> str:
    """What a device's memory came to, as HTML: a sentence, then the figures."""
    cells = [
        f'<div class="aw-number"><span>{said(label)} </span><b>{said(text)}</b></div>'
        for label, text in _figures(run, device)
    ]
    strip = f'<div class="aw-strip">{"".join(cells)}</div>' if len(cells) > 1 else ""
    title, sentence = said(_title(run, device)), said(_sentence(run, device))
    return f'<section aria-label="{title}"><p><b>{title}</b>: {sentence}</p>{strip}</section>'


def _title(run: RunSnapshot, device: SampledDevice) -> str:
    return f"rank {device.rank} · {device.name}" if len(run.ranks) > 1 else device.name


def _sentence(run: RunSnapshot, device: SampledDevice) -> str:
    peak = _peak(device)
    if peak is None:
        return "no memory was sampled."
    size, who = peak
    held = f"{who} held at most {bytes_text(size)}"
    if device.total_bytes:
        share = percent_text(size / device.total_bytes)
        held += f" of {bytes_text(device.total_bytes)}, {share}"
    growth = _growth_bytes(run, device)
    if growth is None:
        return f"{held}."
    if run.is_live:
        return f"{held}, and it {'still grows' if growth > 0 else 'does not grow'}."
    return f"{held}, and it {'still grew' if growth > 0 else 'did not grow'} at the end."


def _figures(run: RunSnapshot, device: SampledDevice) -> Iterator[tuple[str, str]]:
    peak, growth = _peak(device), _growth_bytes(run, device)
    if peak is not None:
        yield "peak", bytes_text(peak[0])
        if device.total_bytes:
            yield "share of the device", percent_text(peak[0] / device.total_bytes)
    if growth is not None:
        yield "growth per 1,000 steps", f"about {bytes_text(growth)}" if growth > 0 else "none"
    busy = device.curves.columns["utilisation"]
    if np.isfinite(busy).any():
        yield "waits", percent_text(1.0 - float(np.nanmedian(busy)) / 100)


def _peak(device: SampledDevice) -> tuple[float, str] | None:
    """The most memory in bytes, and who held it; None if none was sampled."""
    name = next((one for one in _HELD if one in device.curves.present), None)
    if name is None:
        return None
    return float(np.nanmax(device.curves.columns[name])) * device.unit_bytes, _HELD[name]


def _growth_bytes(run: RunSnapshot, device: SampledDevice) -> float | None:
    """By how much memory grows in 1,000 steps, an estimate; 0 if it is too little to tell.

    The medians of the third and the last quarter of the samples are compared: a start that fills
    caches is no growth.
    """
    name = next((one for one in _GROWS if one in device.curves.present), None)
    if name is None:
        return None
    values = device.curves.columns[name]
    values = values[np.isfinite(values)] * device.unit_bytes
    steps = run.curves.ends[1] - run.curves.ends[0] + 1
    if len(values) < _FEWEST_SAMPLES or steps < _FEWEST_STEPS:
        return None
    third, last = (float(np.median(part)) for part in np.array_split(values, 4)[2:])
    grown = last - third
    return grown / (steps / 4) * 1000 if grown > _GROWN_SHARE * third else 0.0


# --- the chart ------------------------------------------------------------------------------------


def _draw_chart(run: RunSnapshot, devices: Sequence[SampledDevice]) -> None:
    """Draw the devices of all ranks in one chart over the same seconds."""
    arrays: Arrays = {}
    for number, device in enumerate(devices):
        arrays |= thinned_lines(device.curves, prefix=f"{number}.")
    ends = [device.curves.ends for device in devices]
    picture = Picture(
        name=f"{run.path} devices",
        panels=[
            panel for number, device in enumerate(devices)
            for panel in _device_panels(run, device, number, several=len(devices) > 1)
        ],
        ends=(min(first for first, _ in ends), max(last for _, last in ends)),
        rows=sum(len(device.curves) for device in devices), unit="second", reports=False,
    )  # fmt: skip
    run_chart.show_still(picture, arrays, key="devices")


def _device_panels(
    run: RunSnapshot, device: SampledDevice, number: int, *, several: bool
) -> Iterator[Panel]:
    present = device.curves.present
    strokes = tuple(
        Stroke(f"{number}.{name}", column(Table.DEVICES, name).label, color)
        for name, color in _BYTES.items()
        if name in present
    )
    who = f"{_title(run, device)}: " if several else ""
    if strokes:
        title = [(f"{who}Memory, {device.unit}", "ink")]
        if len(strokes) == 1:  # several have their labels
            title.append((f": {strokes[0].label}", strokes[0].color))
        guides = (_FLOOR, *_card_size(device))
        yield Panel(tuple(title), strokes, height=150, unit=device.unit, guides=guides)
    for name, color in _RATES.items():
        if name in present:
            one = column_panel(Table.DEVICES, name, color, height=80)
            stroke = replace(one.strokes[0], column=f"{number}.{name}")
            yield replace(one, title=((who, "ink"), *one.title), strokes=(stroke,))


def _card_size(device: SampledDevice) -> Iterator[Guide]:
    if device.total_bytes:
        total = device.total_bytes / device.unit_bytes
        yield Guide(total, total, total, "muted", ", dotted: size of the card", fits=True)
