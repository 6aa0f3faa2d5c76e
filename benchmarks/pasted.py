"""How much of pasted logs is read: recognised, and first, last and count of each value.

    python benchmarks/pasted.py FOLDER... [--first-look] [--round NAME] [--misses FILE]

A folder holds logs as people keep or post them and their `cases.json`, labelled by a person's own
reading before anything was run. `--first-look` adds the figures to `results/pasted.md`.
"""

from __future__ import annotations

import collections
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts.first_looks import RESULTS, add_options, share, started, tell
from parts.machine import ROOT
from parts.options import command_line
from parts.tables import table as markdown

sys.path.insert(0, str(ROOT))

import ampwatch
from ampwatch.errors import AmpwatchError
from ampwatch.importers import import_log
from ampwatch.rows import Table

BOOK = RESULTS / "pasted.md"
_COLUMNS = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"}
RIGHT, MISSED, WRONG = "right", "missed", "wrong"


@dataclass(frozen=True, slots=True)
class Read:
    """One log, whether it was recognised as it should be, and each figure's outcome."""

    name: str
    is_training: bool
    is_read: bool
    figures: dict[str, str]  # such as `loss last` -> right, missed, wrong
    told: dict[str, Any]


def main() -> None:
    """Read each log, compare, print."""
    parser = command_line(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="one collector's logs each")
    parser.add_argument("--round", default="A round", help="the heading of the figures")
    add_options(parser)
    options = parser.parse_args()
    begun = started()
    results = [read_of(folder, case) for folder in options.folders for case in cases_of(folder)]
    wrong = list(_misses(results))
    tell(options, BOOK, options.round, f"{begun}.", table(results), wrong)


def cases_of(folder: Path) -> list[dict[str, Any]]:
    """A collector's labels, each with its folder."""
    cases = json.loads((folder / "cases.json").read_text("utf-8"))
    return [{**case, "folder": folder} for case in cases]


# --- reading --------------------------------------------------------------------------------------


def read_of(folder: Path, case: dict[str, Any]) -> Read:
    """What is read of one log."""
    name, is_training = f"{folder.name}/{case['id']}", bool(case.get("is_training", True))
    told = values_of(folder / case["file"])
    figures = {} if told is None or not is_training else dict(_compared(case["values"], told))
    return Read(name, is_training, told is not None, figures, told or {})


def values_of(path: Path) -> dict[str, list[float]] | None:
    """The values that are read of a log, by name; None if it is not recognised."""
    with tempfile.TemporaryDirectory() as made:
        try:
            run = ampwatch.open_run(import_log(path, Path(made) / "runs"))
        except AmpwatchError:
            return None
        steps = run.read(Table.STEPS)
        columns = {name: steps.column(name).to_pylist() for name in steps.column_names}
        extras = run.read(Table.EXTRAS)
        told: dict[str, list[float]] = collections.defaultdict(list)
        for name, value in zip(
            extras.column("name").to_pylist(), extras.column("value").to_pylist(), strict=True
        ):
            told[name].append(value)
    printed = [name for name in _COLUMNS.values() if any(v is not None for v in columns[name])]
    told["step"] = [
        step
        for at, step in enumerate(columns["step"])
        if not printed or any(columns[name][at] is not None for name in printed)
    ]  # a row without any of them is implied by a counter or a scale
    for label, column in _COLUMNS.items():
        told[label] = [value for value in columns[column] if value is not None]
    scales = zip(columns["scale"], columns["scale_after"], strict=True)
    told["loss_scale"] = [value for pair in scales for value in pair if value is not None]
    return told


def _compared(wanted: dict[str, Any], told: dict[str, list[float]]) -> Iterator[tuple[str, str]]:
    for name, label in wanted.items():
        if name == "losses":
            for own, inner in label.items():
                values = told.get(_named_alike(own, told), [])
                if not values:  # one of them stands for the loss
                    values = told["loss"] if _is_close(told["loss"], inner) else []
                yield from _of_one(own, inner, values)
        elif name == "epoch":
            continue  # becomes a step that goes on through all epochs
        else:
            yield from _of_one(name, label, told.get(name, []))


def _named_alike(name: str, told: dict[str, list[float]]) -> str:
    plain = {"".join(filter(str.isalnum, other)).lower(): other for other in told}
    return plain.get("".join(filter(str.isalnum, name)).lower(), "")


def _is_close(values: list[float], label: dict[str, Any]) -> bool:
    return bool(values) and _is_same(values[0], label.get("first"))


def _of_one(name: str, label: dict[str, Any], values: list[float]) -> Iterator[tuple[str, str]]:
    found = {"first": values[0], "last": values[-1], "count": len(values)} if values else {}
    for what in ("first", "last", "count")[: 2 if name == "loss_scale" else 3]:
        if label.get(what) is not None:
            is_right = what in found and _is_same(found[what], label[what])
            yield f"{name} {what}", RIGHT if is_right else WRONG if found else MISSED


def _is_same(value: float, wanted: Any) -> bool:
    try:
        label = float(wanted)
    except (TypeError, ValueError):
        return False
    if math.isnan(label) or math.isinf(label):
        return math.isnan(value) if math.isnan(label) else value == label
    return math.isclose(value, label, rel_tol=1e-3, abs_tol=1e-12)


# --- figures --------------------------------------------------------------------------------------


def table(results: Sequence[Read]) -> str:
    """The figures of all logs."""
    trainings = [one for one in results if one.is_training]
    others = [one for one in results if not one.is_training]
    kinds = [kind for one in trainings for kind in one.figures.values()]
    rows = {
        "recognised": [one.is_read for one in trainings],
        "no training, and told so": [not one.is_read for one in others],
        "values of what was recognised: right": [kind == RIGHT for kind in kinds],
        "... missed": [kind == MISSED for kind in kinds],
        "... wrong or invented": [kind == WRONG for kind in kinds],
        "logs with every value right": [_is_whole(one) for one in trainings],
    }
    return markdown(" | ", ((name, share(marks)) for name, marks in rows.items()))


def _is_whole(one: Read) -> bool:
    return one.is_read and set(one.figures.values()) <= {RIGHT}


def _misses(results: Sequence[Read]) -> Iterator[str]:
    for one in results:
        if one.is_read != one.is_training:
            yield f"{one.name}: {'invented' if one.is_read else 'not recognised'}"
        bad = {name: kind for name, kind in one.figures.items() if kind != RIGHT}
        if bad:
            shown = {
                name: (values[0], values[-1], len(values))
                for name, values in one.told.items()
                if values
            }
            yield f"{one.name}: {bad}\n    read: {shown}"


if __name__ == "__main__":
    main()
