"""A run as TensorBoard's event files, written without TensorFlow: its scalars, the report as text.

A record is its length, a checksum, an event, a checksum. All events of one tag have the same
length, so their bytes are the rows of a matrix, and all checksums are computed at once, column by
column. `importers/tables` reads such files.
"""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console

from ampwatch.codec import column
from ampwatch.diagnosis.column_arrays import integers, known, numbers
from ampwatch.files import draft_of
from ampwatch.report.settings import settings_of
from ampwatch.report.terminal_report import report_text
from ampwatch.rows import SCHEMAS, Table
from ampwatch.store import Run

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis

Bytes = NDArray[np.uint8]

_VERSION = b"brain.Event:2"
_ROWS_AT_ONCE = 1 << 16
_CASTAGNOLI = 0x82F63B78  # CRC-32C, bits reversed
_MASK = 0xA282EAD8  # a checksum of bytes that hold checksums would be weak: they are masked
_DT_STRING = 7


class EventStream:
    """Events written to a file one after the other; TensorBoard reads it while it grows."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._write(_field(3, _VERSION), time_s=0.0)

    def flush(self) -> None:
        """Let readers see what was written."""
        self._file.flush()

    def close(self) -> None:
        """End the event file."""
        self._file.close()

    def scalars(
        self,
        tag: str,
        steps: NDArray[np.int64],
        times_s: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> None:
        """Values of a tag, an event each; steps are not negative."""
        for start in range(0, len(steps), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            events = _scalar_events(_named(tag), steps[part], times_s[part], values[part])
            self._file.write(_framed(events).tobytes())

    def text(self, tag: str, step: int, time_s: float, text: str) -> None:
        """A text in Markdown, shown by TensorBoard's page of texts."""
        shape = _field(2, _field(2, _varint_field(1, 1)))
        tensor = _varint_field(1, _DT_STRING) + shape + _field(8, _named(text))
        plugin = _field(9, _field(1, _field(1, b"text")))
        value = _field(1, _named(tag)) + _field(8, tensor) + plugin
        self._write(_varint_field(2, step) + _field(5, _field(1, value)), time_s)

    def _write(self, event: bytes, time_s: float) -> None:
        whole = b"\x09" + struct.pack("<d", time_s) + event
        self._file.write(_framed(np.frombuffer(whole, np.uint8)[None, :]).tobytes())


@contextlib.contextmanager
def event_file(path: Path) -> Iterator[EventStream]:
    """One event file; it appears whole under its name when the block ends without an error."""
    with draft_of(path) as draft, contextlib.closing(EventStream(draft)) as file:
        yield file


def _named(text: str) -> bytes:
    return text.encode("utf-8", "replace")


# --- events --------------------------------------------------------------------------------------


def _scalar_events(
    tag: bytes, steps: NDArray[np.int64], times_s: NDArray[np.float64], values: NDArray[np.float64]
) -> Bytes:
    """Each event as a row: time, step, and a summary of one value, which ends the row."""
    value = _field(1, tag) + b"\x15" + bytes(4)
    summary = _field(5, _field(1, value))
    with np.errstate(over="ignore"):
        numbers = values.astype("<f4").view(np.uint8).reshape(-1, 4)
    count = len(steps)
    head = np.frombuffer(summary[:-4], np.uint8)
    parts = (
        _repeated(b"\x09", count),
        times_s.astype("<f8").view(np.uint8).reshape(-1, 8),
        _repeated(b"\x10", count),
        _varints(steps),
        np.broadcast_to(head, (count, len(head))),
        numbers,
    )
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def _repeated(data: bytes, count: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(data, np.uint8), (count, len(data)))


def _varints(numbers: NDArray[np.int64]) -> Bytes:
    """Numbers of an event file, seven bits a byte, all as long as the longest."""
    width = max(1, -(-int(numbers.max()).bit_length() // 7))
    shifts = 7 * np.arange(width)
    bits = (numbers[:, None] >> shifts) & 0x7F
    bits[:, :-1] |= 0x80
    return bits.astype(np.uint8)


def _varint(number: int) -> bytes:
    varint = bytearray()
    while number >= 0x80:
        varint.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*varint, number])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


# --- records -------------------------------------------------------------------------------------


def _framed(events: Bytes) -> Bytes:
    """Each event's row with its length before it and both checksums."""
    count, length = events.shape
    size = np.frombuffer(struct.pack("<Q", length), np.uint8)[None, :]
    head = np.broadcast_to(np.concatenate([size, _checksums(size)], axis=1), (count, 12))
    return np.concatenate([head, events, _checksums(events)], axis=1)


def _checksums(rows: Bytes) -> Bytes:
    """Each event's masked CRC-32C, as four bytes."""
    table, crc = _table(), np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for byte in rows.T:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    masked = ((crc >> 15) | (crc << 17)) + np.uint32(_MASK)
    return np.asarray(masked.astype("<u4")[:, None].view(np.uint8))


@functools.cache
def _table() -> NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_CASTAGNOLI), values >> 1)
    return values.astype(np.uint32)


# --- a whole run ----------------------------------------------------------------------------------

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
        with event_file(path) as file:
            if rank == min(run.ranks, default=0):
                _write_texts(file, run, diagnosis)
            _write_scalars(file, run, rank)
        paths.append(path)
    return paths


def _write_texts(file: EventStream, run: Run, diagnosis: Diagnosis) -> None:
    """The report and the settings, indented: Markdown leaves such a block as it is."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=_COLUMNS, markup=False, emoji=False, highlight=False)
    console.print(report_text(run.info.name, run, diagnosis, everything=True))
    settings = "\n".join(f"{name}: {value}" for name, value in settings_of(run).items())
    time_s = run.last_time_ns / 1e9
    for tag, text in (("findings", buffer.getvalue()), ("settings", settings)):
        lines = "\n".join(line.rstrip() for line in text.split("\n"))
        file.text(f"{tag}/text_summary", 0, time_s, textwrap.indent(lines, "    "))


def _write_scalars(file: EventStream, run: Run, rank: int) -> None:
    users = [n for n in run.column_names(Table.STEPS) if n not in SCHEMAS[Table.STEPS].names]
    users = [name for name in users if name != "rank"]
    steps = run.read(Table.STEPS, ("step", "time_ns", "optimizer", *_STEPS, *users), rank)
    for number, rows in _by_optimizer(steps):
        prefix = f"optimizer {number}/" if number else ""
        for name in (*_STEPS, *users):
            _write(file, f"{prefix}{name}", rows, name)
    clock = steps.select(["step", "time_ns"]).drop_null()
    layers = run.read(Table.LAYERS, ("step", "layer", *_LAYERS), rank)
    for layer, rows in _grouped(layers, "layer"):
        timed = _looked_up(rows, clock, "step", "time_ns")
        for name in _LAYERS:
            _write(file, f"layers {name}/{layer}", timed, name)
    devices = run.read(Table.DEVICES, ("time_ns", "device", *_DEVICES), rank)
    for device, rows in _grouped(devices, "device"):
        placed = _looked_up(rows, clock, "time_ns", "step")
        for name in _DEVICES:
            _write(file, f"device {device}/{name}", placed, name)


def _by_optimizer(steps: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows to write of each optimizer, the first as number 0."""
    optimizer = steps.column("optimizer")
    different = optimizer.drop_null().unique()
    if len(different) < 2:
        yield 0, steps
        return
    for place, number in enumerate(different):
        yield place, steps.filter(pc.equal(optimizer, number))


def _grouped(rows: pa.Table, name: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows to write of each layer or device."""
    texts = rows.column(name).cast(pa.string())
    for one in texts.unique().drop_null():
        yield one.as_py(), rows.filter(pc.equal(texts, one))


def _looked_up(rows: pa.Table, steps: pa.Table, by: str, name: str) -> pa.Table:
    """Rows with the time of their step, or with the step at their time, appended."""
    keys, values = (integers(steps, one) for one in (by, name))
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], integers(rows, by))
    at = np.minimum(at, max(0, len(order) - 1))
    values_at = values[order][at] if len(order) else np.zeros(rows.num_rows, np.int64)
    return rows.append_column(name, column(values_at, pa.int64()))


def _write(file: EventStream, tag: str, rows: pa.Table, name: str) -> None:
    """Write the known values of a column as events; nan is a value, null is not."""
    present = known(rows, name) & known(rows, "step")
    if present.any():
        steps, times = (integers(rows, n, 0)[present] for n in ("step", "time_ns"))
        file.scalars(tag, np.maximum(steps, 0), times / 1e9, numbers(rows, name)[present])
