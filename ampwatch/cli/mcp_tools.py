"""What agents may ask for by `ampwatch mcp`: each tool's answer as text, within a limit of bytes.

Runs are found in the opened folders and nowhere else. Names and texts of a run are data from
outside: each is made printable, and cut. Whatever is left out of an answer is counted in it.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from ampwatch.errors import AmpwatchError, NotARunError, RunError
from ampwatch.printable_text import cut, printable
from ampwatch.rows import Table

if TYPE_CHECKING:
    from ampwatch.follow import KeptEntries
    from ampwatch.store import Run, RunSummary
    from ampwatch.store.catalogue import Catalogue

WIDTH = 100  # of an answer's lines
LONGEST_NAME = 80
LONGEST_ASKED = 400  # of a name or a message that a client sends
MOST_LISTED = 20
MOST_COMPARED = 8
MOST_ROWS = 60
MOST_EVENTS = 200
_LONGEST_EVENT = 240
_SHORTEST_ID = 6
_LARGEST_STEP = 2**62


def safe(text: str, most: int = LONGEST_NAME) -> str:
    """Text from outside, printable and cut."""
    return cut(printable(text), most)


def within(text: str, most_bytes: int) -> str:
    """The text if it is short enough; else as many of its first lines, and how much is left out.

    A first line that is too long by itself is cut.
    """
    size = len(text.encode())
    if size <= most_bytes:
        return text
    lines = text.split("\n")
    room = most_bytes - len(_left_out(len(lines), size))
    shown = ""
    for line in lines:
        if len(shown.encode()) + len(line.encode()) >= room:
            break
        shown += f"{line}\n"
    if not shown.strip():
        shown = (
            text.lstrip("\n").encode()[: room - 1].decode(errors="ignore").partition("\n")[0] + "\n"
        )
    left = max(1, len(lines) - shown.count("\n"))
    return shown + _left_out(left, size - len(shown.encode()))


def _left_out(lines: int, size: int) -> str:
    return f"[Left out: {lines:,} lines, {size:,} bytes.]"


@dataclass(frozen=True)
class OpenedFolders:
    """The folders whose runs a client may ask about."""

    folders: tuple[Path, ...]

    @cached_property
    def catalogue(self) -> Catalogue:
        """Lists the runs of the folders again and again."""
        from ampwatch.store.catalogue import Catalogue

        return Catalogue(self.folders)

    def find(self, named: str) -> Path:
        """The folder of the run of this name, path or id; NotARunError if it lies elsewhere."""
        from ampwatch.store.run_info import RUN_FILE

        real_folders = {os.path.realpath(folder) for folder in self.folders}
        if len(named) <= LONGEST_ASKED and "\0" not in named:
            for path in (*(folder / named for folder in self.folders), Path(named)):
                real = Path(os.path.realpath(path))
                is_inside = {str(real), str(real.parent)} & real_folders
                if is_inside and os.path.lexists(real / RUN_FILE):
                    return real
            if len(named) >= _SHORTEST_ID:
                for run in self.catalogue.runs(thorough=False):
                    if run.id.startswith(named):
                        return self.find(str(run.path))
        where = ", ".join(safe(str(folder)) for folder in self.folders)
        raise NotARunError(
            f"{safe(named)!r} is not a run in the opened folders ({where}). list_runs gives their "
            "names. Only the user can open another folder, by `ampwatch mcp FOLDER`."
        )

    def open(self, named: str) -> Run:
        """The opened run of this name."""
        from ampwatch.store import Run

        return Run(self.find(named))


# --- the tools ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunTools:
    """The tools that read. What a client is told of each is its docstring, and its arguments."""

    folders: OpenedFolders

    @property
    def every(self) -> tuple[Callable[..., str], ...]:
        """All of them."""
        return (
            self.list_runs, self.report, self.explain, self.compare, self.events, self.values,
            self.plan,
        )  # fmt: skip

    def list_runs(self, search: str = "") -> str:
        """The newest runs, one JSON line each: name, verdict, worst finding."""
        from ampwatch.follow import KeptEntries

        every = self.folders.catalogue.runs()
        every = [run for run in every if search.lower() in run.path.name.lower()]
        kept = KeptEntries()
        lines = [_run_line(run, kept) for run in every[:MOST_LISTED]]
        kept.save()
        if len(every) > MOST_LISTED:
            lines.append(f"[Left out: {len(every) - MOST_LISTED:,} older runs; search finds them.]")
        return "\n".join(lines) or "There is no such run in the opened folders."

    def report(self, run: str, full: bool = False) -> str:  # noqa: FBT002
        """What is wrong with a run, why, what to do. full: every finding in full."""
        from ampwatch.recovery.proof import judge, sentence_of
        from ampwatch.report.terminal_report import report_text

        opened = self.folders.open(run)
        judged = judge(opened)
        shown = report_text(_name_of(opened), opened, judged.diagnosis, everything=full)
        proved = "" if judged.proof is None else sentence_of(judged.proof)
        if proved == judged.diagnosis.learning_rate.because:
            proved = ""  # the report says it
        return f"{_plain(shown)}\n{proved}".rstrip()

    def explain(self, code: str = "", run: str = "") -> str:
        """A finding's meaning, by code or by a training's message; with run: its evidence."""
        from ampwatch.cli.explain import page_of

        if len(code) > LONGEST_ASKED:
            raise AmpwatchError("The code or the message is too long.")
        return page_of(code or None, str(self.folders.find(run)) if run else None)

    def compare(self, runs: list[str]) -> str:
        """Where runs part, and which settings differ."""
        from ampwatch.report import compare
        from ampwatch.report.comparison_text import comparison_text

        if not 2 <= len(runs) <= MOST_COMPARED:
            raise RunError(f"compare takes two to {MOST_COMPARED} runs.")
        opened = [self.folders.open(name) for name in runs]
        compared = replace(compare(opened), names=tuple(map(_name_of, opened)))
        return _plain(comparison_text(compared, printable, WIDTH))

    def events(self, run: str, first: int | None = None, last: int | None = None) -> str:
        """Events between two steps: skips, overflows, checkpoints, errors."""
        rows = self.folders.open(run).read(Table.EVENTS, ("step", "rank", "kind", "detail"))
        rows = _span(rows, first, last)
        lines = [
            f"step {row['step']} rank {row['rank']} {row['kind']} {row['detail'] or ''}"
            for row in rows.slice(0, MOST_EVENTS).to_pylist()
        ]
        lines = [safe(line, _LONGEST_EVENT) for line in lines]
        lines += _more_rows(len(rows) - MOST_EVENTS, len(rows))
        return "\n".join(lines) or "There are no events in this span."

    def values(
        self,
        run: str,
        columns: list[str],
        first: int | None = None,
        last: int | None = None,
        layer: str | None = None,
    ) -> str:
        """Values between two steps, as CSV: loss, lr, grad_norm, scale, skipped, ..."""
        opened = self.folders.open(run)
        table = Table.STEPS if layer is None else Table.LAYERS
        names = [name for name in dict.fromkeys(columns) if name != "step"]
        rows = opened.read(
            table, ["step", *names, *(["layer"] if layer else [])], min(opened.ranks, default=0)
        )
        rows = _span(rows, first, last)
        if layer is not None:
            rows = rows.filter(pc.equal(rows.column("layer"), layer)).select(["step", *names])
        if not len(rows):
            raise RunError(f"The table {table.value} has no such row in this span.")
        return "\n".join([*_summaries(rows, names), *_sampled_rows(rows)])

    def plan(self, run: str) -> str:
        """Continue, restart or stop, with which changes, as JSON."""
        from ampwatch.recovery.restart_plan import plan

        return _json_line(plan(self.folders.open(run)).to_json())


def _run_line(summary: RunSummary, kept: KeptEntries) -> str:
    from ampwatch.cli.runs import run_as_json

    listed, name = run_as_json(summary, kept), summary.path.name
    shown = ("verdict", "finding", "steps", "loss", "live", "problem")
    row = {"run": name if safe(name) == name else summary.id[:12]}
    row |= {key: listed[key] for key in shown if listed[key] not in (None, "")}
    return _json_line(row)


def _json_line(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


def _name_of(run: Run) -> str:
    """What a run is called in answers, and by what a client may name it."""
    name = run.path.name
    return name if safe(name) == name else run.info.id[:12]


def _span(rows: Any, first: int | None, last: int | None) -> Any:
    """The rows of these steps."""
    for end, is_within in ((first, pc.greater_equal), (last, pc.less_equal)):
        if end is not None:
            step = max(-_LARGEST_STEP, min(end, _LARGEST_STEP))
            rows = rows.filter(is_within(rows.column("step"), step))
    return rows


def _summaries(rows: Any, columns: Sequence[str]) -> Iterator[str]:
    step = rows.column("step").to_pylist()
    for name in columns:
        pairs = zip(step, rows.column(name).to_pylist(), strict=True)
        known = [(value, at) for at, value in pairs if isinstance(value, (int, float))]
        finite = [pair for pair in known if math.isfinite(pair[0])]
        if finite:
            (low, low_at), (high, high_at) = min(finite), max(finite)
            yield (
                f"{safe(name)}: lowest {low:.6g} at step {low_at}, highest {high:.6g} at step "
                f"{high_at}; {len(known) - len(finite)} of {len(known)} not finite"
            )


def _sampled_rows(rows: Any) -> Iterator[str]:
    at = np.unique(np.linspace(0, len(rows) - 1, min(MOST_ROWS, len(rows))).round().astype(int))
    yield ",".join(map(safe, rows.column_names))
    for row in rows.take(at).to_pylist():
        yield ",".join(map(_cell, row.values()))
    yield from _more_rows(len(rows) - len(at), len(rows))


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else safe(str(value))


def _more_rows(left: int, every: int) -> list[str]:
    return [f"[Left out: {left:,} of {every:,} rows; ask for a shorter span.]"] if left > 0 else []


def _plain(shown: Any) -> str:
    """What a console prints, as plain lines."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=WIDTH,
        color_system=None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(shown)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))
