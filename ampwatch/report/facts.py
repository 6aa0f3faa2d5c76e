"""The facts of a run: its numbers, first and last, and what they rule out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.codec import scalar
from ampwatch.diagnosis.column_arrays import flags, integers, known, numbers
from ampwatch.diagnosis.record import detail_of
from ampwatch.diagnosis.value_text import (
    bytes_text,
    count_text,
    duration_text,
    list_text,
    scale_text,
    share_text,
    time_text,
)
from ampwatch.rows import EventKind, Table, column

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis, Record

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float] | npt.NDArray[np.float64], width: int) -> str:
    """Numbers as one line of blocks; each block shows the lowest of its part."""
    floats = np.asarray(values, dtype=np.float64)
    floats = floats[np.isfinite(floats)]
    if not len(floats):
        return ""
    parts = np.array_split(floats, min(width, len(floats)))
    lows = np.array([part.min() for part in parts])
    span = float(np.ptp(floats)) or 1.0
    heights = np.round((lows - floats.min()) / span * (len(BARS) - 1)).astype(int)
    return "".join(BARS[height] for height in heights)


@dataclass(frozen=True, slots=True)
class FactLine:
    """One line of the facts."""

    label: str
    text: str


CURVE_WIDTH = 40
_SHOWN_COLUMNS = ("loss", "grad_norm", "lr")
_COLUMNS = (
    "step",
    "scale_after",
    "loss",
    "grad_norm",
    "lr",
    "autocast_dtype",
    "step_time_ms",
    "time_ns",
)


def scale_curve(run: Record) -> str:
    """The loss scale of a run as one line of blocks, by powers of two; empty without a scale."""
    scale = numbers(rows_of_optimizer(run, ("scale_after",)), "scale_after")
    return sparkline(np.log2(np.maximum(scale, 2.0**-149)), CURVE_WIDTH)


def facts_of(run: Record, diagnosis: Diagnosis, *, arrow: str = "→") -> Iterator[FactLine]:
    """The facts of a run that the record holds; others have no line."""
    facts = diagnosis.run
    rows = rows_of_optimizer(run, _COLUMNS)
    if facts.first_scale is not None:
        ends = f"{scale_text(facts.first_scale)} {arrow} {scale_text(facts.final_scale)}"
        yield FactLine("loss scale", ends)
    if facts.first_scale is not None or facts.skipped:
        share = f", {share_text(facts.skipped, facts.steps)}" if facts.skipped else ""
        yield FactLine("skipped", f"{facts.skipped:,} of {count_text(facts.steps, 'step')}{share}")
    whose = _whose(run)
    for name in _SHOWN_COLUMNS:
        told = known(rows, name)
        present = numbers(rows, name)[told]
        if len(present):
            label = column(Table.STEPS, name).label
            old = "" if told[-1] else age_text(integers(rows, "step")[told][-1])
            yield FactLine(label, course_text(present, arrow) + old + whose.get(name, ""))
    yield from _setting(run, rows)
    if diagnosis.run.source != "ampwatch" and run.info.config:
        yield FactLine("settings", list_text([f"{k} {v}" for k, v in run.info.config.items()], 8))
    for note in run.notes:
        yield FactLine("note", note)


def _whose(run: Record) -> dict[str, str]:
    """Whose numbers each column shows, in words, where there are several optimizers or groups."""
    details = optimizer_details(run)
    count = len({detail.get("optimizer") for detail in details})
    first = next((detail for detail in details if detail.get("optimizer") == 0), {})
    name, groups = str(first.get("class") or ""), first.get("groups")
    words = [f"optimizer 0 of {count}{name and ', ' + name}"] if count > 1 else []
    owners = dict.fromkeys(_SHOWN_COLUMNS, words)
    if isinstance(groups, list) and len(groups) > 1:
        owners["lr"] = [*words, f"group 0 of {len(groups)}"]
    return {column: f" ({'; '.join(parts)})" for column, parts in owners.items() if parts}


def course_text(present: npt.NDArray[np.float64], arrow: str) -> str:
    """First and last value, and for how long the last ones are not finite."""
    finite = present[np.isfinite(present)]
    if not len(finite):
        return f"{present[-1]}, never finite"
    text = f"{finite[0]:.4g} {arrow} {finite[-1]:.4g}"
    if (present == present[0]).all():
        return f"{present[0]:.4g}"
    lost = len(present) - int(np.flatnonzero(np.isfinite(present))[-1]) - 1
    return f"{text}, then not finite for {count_text(lost, 'step')}" if lost else text


def age_text(step: int | None, *, is_broken: bool = False) -> str:
    """The step of a fact's number, in words, where it is not the newest step's."""
    if step is None:
        return ""
    return f" at step {step:,}, then not finite" if is_broken else f" at step {step:,}"


def rows_of_optimizer(
    run: Record, columns: Sequence[str], number: int | None = None, rank: int | None = None
) -> Any:
    """One row a step, of the optimizer of this number or the first: a GAN's losses would mix.

    They are those of the lowest rank if none is named.
    """
    rank = min(run.ranks, default=0) if rank is None else rank
    rows = run.read(Table.STEPS, columns=(*columns, "optimizer"), rank=rank)
    optimizer = rows.column("optimizer")
    present = optimizer.drop_null()
    if not len(present):
        return rows
    wanted = present[0] if number is None else pa.scalar(number, present.type)
    return rows.filter(
        pc.fill_null(pc.equal(optimizer, wanted), scalar(value=True, kind=pa.bool_()))
    )


def optimizer_details(run: Record) -> list[Mapping[str, Any]]:
    """What the lowest rank's events tell of each optimizer, the first one first."""
    events = run.read(Table.EVENTS, ("kind", "detail"), min(run.ranks, default=0))
    kind = scalar(EventKind.OPTIMIZER.value, pa.string())
    chosen = events.filter(pc.equal(events.column("kind"), kind))
    return [detail_of(text) for text in chosen.column("detail").to_pylist()]


def last_values(run: Record) -> dict[str, float]:
    """The newest loss, gradient norm and rate."""
    rows = rows_of_optimizer(run, _COLUMNS)
    last = {}
    for label, name in (("loss", "loss"), ("norm", "grad_norm"), ("lr", "lr")):
        cells = rows.column(name).drop_null()
        if len(cells):
            last[label] = float(cells[-1].as_py())
    return last


def _setting(run: Record, rows: Any) -> Iterator[FactLine]:
    precisions = [p for p in rows.column("autocast_dtype").unique().to_pylist() if p]
    times = numbers(rows, "step_time_ms")
    times = times[np.isfinite(times)]
    if precisions:
        yield FactLine("autocast", ", ".join(precisions))
    if len(times):
        median = time_text(float(np.median(times)))
        yield FactLine("step time", f"{median} (median)")
    if run.info.source != "ampwatch":
        yield from _by_stamps(rows, knows_step_time=len(times) > 0)
    devices = run.read(Table.DEVICES, columns=("device", "name", "used_bytes", "total_bytes"))
    for name, used, total in _latest_devices(devices):
        memory = f", {bytes_text(used)} of {bytes_text(total)}" if used and total else ""
        yield FactLine("device", f"{name}{memory}")


def _by_stamps(rows: Any, *, knows_step_time: bool) -> Iterator[FactLine]:
    """The duration from the times of a foreign log's lines, and so the time of a step."""
    stamped = rows.filter(rows.column("time_ns").is_valid())
    if not stamped.num_rows:
        return
    first, last = (stamped.slice(at, 1).to_pylist()[0] for at in (0, stamped.num_rows - 1))
    passed_ms = (last["time_ns"] - first["time_ns"]) / 1e6
    if passed_ms <= 0:
        return
    yield FactLine("duration", duration_text(passed_ms))
    steps = last["step"] - first["step"]
    began_anew = bool((np.diff(integers(stamped, "step")) < 0).any())
    if steps > 0 and not knows_step_time and not began_anew:
        mean = time_text(passed_ms / steps)
        yield FactLine("step time", f"{mean} (mean, by the log's times)")


def _latest_devices(devices: Any) -> list[tuple[str, int | None, int | None]]:
    """The facts on each device, as last sampled."""
    last: dict[str, tuple[str, int | None, int | None]] = {}
    tail = devices.slice(max(0, devices.num_rows - 64))
    for row in tail.to_pylist():
        if row["device"]:
            name = row["name"] or row["device"]
            last[row["device"]] = (name, row["used_bytes"], row["total_bytes"])
    return [last[device] for device in sorted(last)]


NEXT_SAMPLE = 50  # steps after which layers are sampled again


def telling_step(diagnosis: Diagnosis | None) -> int | None:
    """The step that explains most: where the trouble begins; None for a calm run."""
    head = None if diagnosis is None else diagnosis.headline
    return head.first_step if head is not None and head.severity.weight else None


# Findings that each suspicion would have caused.
_DATA = frozenset({"AMP206", "AMP209", "AMP605"})
_LOST_STATE = frozenset({"AMP108", "AMP306", "AMP416"})


def ruled_out(run: Record, diagnosis: Diagnosis) -> list[str]:
    """What the record rules out; nothing that it could not have shown."""
    codes = {finding.code for finding in diagnosis.findings}
    grave = {f.code for f in diagnosis.findings if f.severity.value != "info"}
    cleared = []
    if not codes & _DATA and _every_input_was_finite(run):
        cleared.append("inf or NaN in the inputs")
    scaled = diagnosis.run.source == "ampwatch" and diagnosis.run.first_scale is not None
    if scaled and not any(code.startswith("AMP4") for code in grave):
        cleared.append("wrong order of GradScaler calls")
    if scaled and diagnosis.run.skipped and not codes & _LOST_STATE and _was_resumed(run):
        cleared.append("scaler state lost on resume")
    if "AMP417" in codes and _rate_was_above_zero(run):
        cleared.append("a learning rate of 0")
    return cleared


def _rate_was_above_zero(run: Record) -> bool:
    """Whether every optimizer's learning rate was above zero in every step that recorded one."""
    rates = run.read(Table.STEPS, columns=("lr",)).column("lr").drop_null().to_numpy()
    return len(rates) > 0 and bool((rates > 0).all())


def _was_resumed(run: Record) -> bool:
    """Whether a state was loaded, the scaler replaced, or the recording begun again."""
    kinds = run.read(Table.EVENTS, ("kind",), min(run.ranks, default=0)).column("kind").to_pylist()
    loaded = EventKind.STATE_LOADED.value in kinds or EventKind.SCALER_REPLACED.value in kinds
    return loaded or kinds.count(EventKind.STARTED.value) > 1


def _every_input_was_finite(run: Record) -> bool:
    finite = flags(run.read(Table.STEPS, columns=("input_finite",)), "input_finite")
    return len(finite) > 0 and bool((finite == 1).all())
