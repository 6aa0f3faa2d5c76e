"""A run and its diagnosis as a letter for the terminal, or as JSON.

The letter is a good doctor's: how it stands, what it is and since when, what to do, then the facts,
on one screen. Names of runs and layers are data: they are shown, never interpreted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.words import count_text, scale_text, share_text
from ampwatch.rows import Table
from ampwatch.text import printable

if TYPE_CHECKING:
    from ampwatch.diagnosis import Advice, Diagnosis, Finding, Record

STYLES = {
    "failing": "bold #C8401E",
    "error": "bold #C8401E",
    "warning": "bold #C98A00",
    "incomplete": "bold #6B7280",
    "info": "#6B7280",
    "healthy": "bold #0E8A6D",
}
MARKS = {"error": "x", "warning": "!", "info": "-"}
BARS = "▁▂▃▄▅▆▇█"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Named(Protocol):
    """What a letter's title needs."""

    @property
    def name(self) -> str: ...  # noqa: D102


def to_json(diagnosis: Diagnosis) -> str:
    """The text that `report --json` prints."""
    return json.dumps(diagnosis.to_json(), indent=2, allow_nan=False, ensure_ascii=False)


def print_letter(console: Console, name: str, run: Record, diagnosis: Diagnosis) -> None:
    """Print the letter, as this console can show it."""
    fancy = console.is_terminal and "utf" in console.encoding.lower()
    console.print(letter(name, run, diagnosis, fancy=fancy), highlight=False, soft_wrap=False)


def letter(name: str, run: Record, diagnosis: Diagnosis, *, fancy: bool) -> RenderableType:
    """The whole letter; `fancy` writes powers as superscripts and draws small curves."""
    write = powers if fancy else str
    parts: list[RenderableType] = [_title(name, diagnosis)]
    parts += [_headline(diagnosis, write), Text()]
    parts += _others(diagnosis, write)
    parts.append(_rate(diagnosis, write))
    parts += [Text(), _facts(run, diagnosis, fancy=fancy)]
    return Group(*parts)


def powers(text: str) -> str:
    """2^16 as 2¹⁶."""
    return re.sub(r"\b2\^(-?\d+)(?!\d*\.\d)", lambda m: "2" + m[1].translate(_SUPERSCRIPTS), text)


def sparkline(values: Sequence[float] | npt.NDArray[np.float64], width: int) -> str:
    """The course of some numbers in one line of blocks; each block shows its part's lowest."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return ""
    parts = np.array_split(known, min(width, len(known)))
    lows = np.array([part.min() for part in parts])
    span = float(np.ptp(known)) or 1.0
    heights = np.round((lows - known.min()) / span * (len(BARS) - 1)).astype(int)
    return "".join(BARS[height] for height in heights)


def _title(name: str, diagnosis: Diagnosis) -> Text:
    verdict = diagnosis.verdict.value
    facts = diagnosis.run
    ranks = "" if len(facts.ranks) < 2 else f", {len(facts.ranks)} ranks"
    return Text.assemble(
        (verdict.upper(), STYLES[verdict]),
        ("  ", ""),
        (printable(name), "bold"),
        (f"  {count_text(facts.steps, 'step')}{ranks}", "dim"),
    )


_CALM = {
    "healthy": "Nothing is wrong with this run.",
    "incomplete": "The record ends before anything could be judged.",
}


def _headline(diagnosis: Diagnosis, write: Any) -> RenderableType:
    head = diagnosis.headline
    if head is None or (diagnosis.verdict.value in _CALM and head.severity.value == "info"):
        return Text(_CALM.get(diagnosis.verdict.value, ""))
    return Group(
        Text.assemble(
            (write(printable(head.summary)), "bold"), (f"  {head.code} {head.name}", "dim")
        ),
        *_paragraphs(head, write),
    )


def _paragraphs(finding: Finding, write: Any) -> Iterator[RenderableType]:
    since = "" if finding.first_step is None else f"Since step {finding.first_step}. "
    rows = [("why", since + finding.cause), ("do", finding.action)]
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(style="dim", min_width=4)
    grid.add_column()
    for label, text in rows:
        grid.add_row(label, Text(write(printable(text))))
    yield Padding(grid, (0, 0, 0, 2))


def _others(diagnosis: Diagnosis, write: Any) -> list[RenderableType]:
    """The other findings, a line each; consequences say whose."""
    head = diagnosis.headline
    calm = diagnosis.verdict.value in _CALM
    shown_above = head is not None and not (calm and head.severity.value == "info")
    rest = diagnosis.findings[1:] if shown_above else diagnosis.findings
    if not rest:
        return []
    grid = Grid.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(no_wrap=True)
    grid.add_column()
    for finding in rest:
        style = STYLES[finding.severity.value]
        because = f" (because of {finding.because_of})" if finding.because_of else ""
        text = finding.summary if finding.code != "AMP901" else finding.cause
        grid.add_row(
            Text(MARKS[finding.severity.value], style),
            Text(f"{finding.code} {finding.name}", style),
            Text(write(printable(text)) + because),
        )
    return [grid, Text()]


def _rate(diagnosis: Diagnosis, write: Any) -> Text:
    """The advice in numbers, and its arithmetic."""
    advice = diagnosis.learning_rate
    text = write(printable(f"{_advised(advice)}. {advice.because}"))
    return Text.assemble(("Learning rate: ", "dim"), text)


def _advised(advice: Advice) -> str:
    """The action, the rate and where to restart, as far as they are known."""
    parts = [advice.action.value.replace("-", " ")]
    if advice.recommended is not None and advice.current is not None:
        parts[0] += f" to {advice.recommended:.3g} (now {advice.current:.3g}"
        if advice.low is not None and advice.high is not None:
            parts[0] += f"; 90 % interval {advice.low:.2g} to {advice.high:.2g}"
        parts[0] += ")"
    step = advice.restart_checkpoint_step
    if step is not None:
        parts.append(f"restart from the checkpoint of step {step}")
    elif advice.restart_from_step is not None:
        parts.append(f"restart from step {advice.restart_from_step} or before")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the facts: its course, and how it stands now where that is shorter."""

    label: str
    text: str
    latest: str = ""

    @property
    def now(self) -> str:
        """How it stands now."""
        return self.latest or self.text


def _facts(run: Record, diagnosis: Diagnosis, *, fancy: bool) -> RenderableType:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    arrow = "→" if fancy else "to"
    for fact in facts_of(run, diagnosis, arrow=arrow, curves=fancy):
        text = powers(fact.text) if fancy else fact.text
        grid.add_row(fact.label, Text(printable(text)))
    return grid


CURVE_WIDTH = 40
_COURSES = {"loss": "loss", "gradient norm": "grad_norm", "learning rate": "lr"}
_COLUMNS = ("step", "scale_after", "loss", "grad_norm", "lr", "autocast_dtype", "step_time_ms")


def facts_of(
    run: Record, diagnosis: Diagnosis, *, arrow: str = "→", curves: bool = False
) -> Iterator[Fact]:
    """What the record holds, plainly; what it does not hold has no line."""
    facts = diagnosis.run
    rows = rows_of_first_optimizer(run, _COLUMNS)
    if facts.first_scale is not None:
        scale = np.log2(np.maximum(_floats(rows, "scale_after"), 2.0**-149))
        curve = f"   {sparkline(scale, CURVE_WIDTH)}" if curves else ""
        ends = f"{scale_text(facts.first_scale)} {arrow} {scale_text(facts.final_scale)}"
        yield Fact("loss scale", ends + curve, scale_text(facts.final_scale))
        share = f", {share_text(facts.skipped, facts.steps)}" if facts.skipped else ""
        yield Fact("skipped", f"{facts.skipped:,} of {count_text(facts.steps, 'step')}{share}")
    for label, column in _COURSES.items():
        present = _floats(rows, column)[rows.column(column).is_valid().to_numpy()]
        if len(present):
            yield Fact(label, course_text(present, arrow), latest_text(present))
    yield from _setting(run, rows)
    for note in run.notes:
        yield Fact("note", note)


def course_text(present: npt.NDArray[np.float64], arrow: str) -> str:
    """First and last value of those there are, and since when it was last not finite."""
    finite = present[np.isfinite(present)]
    if not len(finite):
        return f"{present[-1]}, never finite"
    text = f"{finite[0]:.4g} {arrow} {finite[-1]:.4g}"
    return text if math.isfinite(present[-1]) else f"{text}, then {latest_text(present)}"


def latest_text(present: npt.NDArray[np.float64]) -> str:
    """The last value of those there are, or since when there was no finite one."""
    if math.isfinite(present[-1]):
        return f"{present[-1]:.4g}"
    finite = np.flatnonzero(np.isfinite(present))
    if not len(finite):
        return f"{present[-1]}, never finite"
    return f"not finite for {count_text(len(present) - int(finite[-1]) - 1, 'step')}"


def rows_of_first_optimizer(run: Record, columns: Sequence[str]) -> Any:
    """One row a step: with several optimizers (a GAN) losses of different kinds would mix."""
    rows = run.read(Table.STEPS, columns=(*columns, "optimizer"), rank=min(run.ranks, default=0))
    optimizer = rows.column("optimizer")
    known = optimizer.drop_null()
    if not len(known):
        return rows
    return rows.filter(np.asarray(optimizer.fill_null(known[0]).to_numpy() == known[0].as_py()))


def last_values(run: Record) -> dict[str, float]:
    """The newest loss, gradient norm and rate there are."""
    rows = rows_of_first_optimizer(run, _COLUMNS)
    found = {}
    for label, column in (("loss", "loss"), ("norm", "grad_norm"), ("lr", "lr")):
        known = rows.column(column).drop_null()
        if len(known):
            found[label] = float(known[-1].as_py())
    return found


def _setting(run: Record, rows: Any) -> Iterator[Fact]:
    precisions = [p for p in rows.column("autocast_dtype").unique().to_pylist() if p]
    times = _floats(rows, "step_time_ms")
    times = times[np.isfinite(times)]
    if precisions:
        yield Fact("autocast", ", ".join(precisions))
    if len(times):
        median = f"{np.median(times):.3g} ms"
        yield Fact("step time", f"{median} (median)", median)
    devices = run.read(Table.DEVICES, columns=("device", "name", "used_bytes", "total_bytes"))
    for name, used, total in _latest_devices(devices):
        memory = f", {used / 2**30:.1f} of {total / 2**30:.1f} GiB" if used and total else ""
        yield Fact("device", f"{name}{memory}")


def _latest_devices(devices: Any) -> list[tuple[str, int | None, int | None]]:
    """Each device once, as last seen."""
    last: dict[str, tuple[str, int | None, int | None]] = {}
    tail = devices.slice(max(0, devices.num_rows - 64))
    for row in tail.to_pylist():
        if row["device"]:
            name = row["name"] or row["device"]
            last[row["device"]] = (name, row["used_bytes"], row["total_bytes"])
    return [last[device] for device in sorted(last)]


def _floats(rows: Any, name: str) -> npt.NDArray[np.float64]:
    return np.asarray(rows.column(name).to_numpy(), dtype=np.float64)
