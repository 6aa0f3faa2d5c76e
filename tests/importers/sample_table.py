"""Every sample against its truth, field by field, and the table of it.

python tests/importers/sample_table.py      writes docs/samples.md
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ampwatch import Run, diagnose, open_run
from ampwatch.importers import import_log
from ampwatch.rows import Table

FOLDER = Path(__file__).parent / "samples"
TRUTHS = sorted(FOLDER.glob("*.json"))
TABLE = Path(__file__).parents[2] / "docs" / "samples.md"
_RUN_FIELDS = ("source", "first_scale", "final_scale", "overflows", "skipped", "steps")
_PRINTED = 5e-3  # numbers are printed with three digits at least: half of the third one of 1.00
_BY_EYE = 0.02

_HEAD = """\
# Foreign logs against their truth

{samples} samples, {real} of them printed by the framework itself, run for the purpose (the truth is
what its own objects held); the others are its literal lines around a course whose truth is known,
{public} of them the course of a log that somebody has pasted in a public issue.
{checked:,} fields are compared, {right:,} are right. A field is one fact: the source, the first and
last scale, the number of overflows, skips, steps or attempts, a setting, each loss, norm, rate,
scale and step number where the truth holds them one by one, a finding that must be there, and the
verdict. Where the truth leaves a verdict open, none is given.

Made by `python tests/importers/sample_table.py`; a test keeps it equal.

| sample | format | printed by | fields | right | true verdict | told | to be found | headline |
|---|---|---|---:|---:|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Field:
    """One fact of a truth, and what was told of it."""

    name: str
    truth: Any
    told: Any
    tolerance: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether the two agree, as far as the log prints."""
        if self.truth == self.told or not self.tolerance:
            return self.truth == self.told
        if self.truth is None or self.told is None:
            return False
        if math.isnan(self.truth):
            return math.isnan(self.told)
        return math.isclose(self.truth, self.told, rel_tol=self.tolerance, abs_tol=1e-12)


@dataclass(frozen=True, slots=True)
class Compared:
    """A sample, imported and judged, beside its truth."""

    name: str
    source: str
    verdict: str
    headline: str
    truth: dict[str, Any]
    fields: tuple[Field, ...]

    @property
    def is_real(self) -> bool:
        """Whether the framework itself has printed it."""
        return self.name.startswith("real_")

    @property
    def is_public(self) -> bool:
        """Whether its course is that of a public thread."""
        return self.name.startswith("public_")

    @property
    def right(self) -> int:
        """How many of the fields are."""
        return sum(field.is_right for field in self.fields)

    def row(self) -> str:
        """Its line of the table."""
        wanted = "" if self.truth["verdict"] == "*" else self.truth["verdict"]
        must = ", ".join(self.truth.get("must", ()))
        literal = "literal lines, a public thread's" if self.is_public else "literal lines"
        printed = "the framework" if self.is_real else literal
        cells = (
            self.name, self.source, printed, len(self.fields), self.right, wanted, self.verdict,
            must, self.headline,
        )  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


def sample_of(name: str) -> Path:
    """The file beside a truth; some must be called as their framework calls them."""
    if (folder := FOLDER / name).is_dir():
        return next(folder.iterdir())
    return next(p for p in FOLDER.glob(f"{name}.*") if p.name != f"{name}.json")


@cache
def compared(path: Path) -> Compared:
    """Import the sample of this truth and compare."""
    truth = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as out:
        run = open_run(import_log(sample_of(path.stem), Path(out)))
        told = diagnose(run)
        report, codes = told.to_json(), {finding.code for finding in told.findings}
        facts = (
            *_of_report(truth, report, codes), *_of_run(truth, run), *_of_rows(truth, run),
        )  # fmt: skip
    headline = told.headline.code if told.headline else ""
    return Compared(path.stem, report["run"]["source"], report["verdict"], headline, truth, facts)


def _of_report(
    truth: dict[str, Any], report: dict[str, Any], codes: set[str]
) -> Iterator[Field]:  # fmt: skip
    for name in _RUN_FIELDS:
        if name in truth:
            yield Field(name, truth[name], report["run"][name])
    if truth["verdict"] != "*":
        yield Field("verdict", truth["verdict"], report["verdict"])
    for code in truth.get("must", ()):
        yield Field(code, True, code in codes)


def _of_run(truth: dict[str, Any], run: Run) -> Iterator[Field]:
    for name, value in truth.get("config", {}).items():
        yield Field(f"config {name}", value, dict(run.info.config).get(name))
    events = run.read(Table.EVENTS).column("kind").to_pylist()
    yield Field("attempts", truth.get("attempts", 1), events.count("started"))
    if "note" in truth:
        yield Field("note", True, any(truth["note"] in note for note in run.notes))


def _of_rows(truth: dict[str, Any], run: Run) -> Iterator[Field]:
    """Every number that the framework's own objects held, in order; printed ones are rounded."""
    for column, expected in truth.get("values", {}).items():
        rows = run.read(Table.STEPS, columns=dict.fromkeys((column, "loss")))
        if column == "step":
            rows = rows.filter(rows.column("loss").is_valid())
        told = [float(v) for v in rows.column(column).to_pylist() if v is not None]
        yield from _one_by_one(column, expected, told, _PRINTED)
    if "scales" in truth:
        rows = run.read(Table.STEPS, columns=("scale", "skipped")).to_pylist()
        told = [row["scale"] for row in rows if row["skipped"]]
        yield from _one_by_one("scale of a skip", truth["scales"], told, 0.0)
    if "last_loss" in truth:
        losses = run.read(Table.STEPS, columns=("loss",)).column(0).drop_null().to_pylist()
        yield Field("last loss", truth["last_loss"], losses[-1], _BY_EYE)


def _one_by_one(
    name: str, truth: Sequence[float], told: Sequence[float], tolerance: float
) -> Iterator[Field]:
    yield Field(f"number of {name}", len(truth), len(told))
    for number, value in enumerate(truth):
        found = told[number] if number < len(told) else None
        yield Field(f"{name} {number}", value, found, tolerance)


def document(every: Sequence[Compared]) -> str:
    """The whole page."""
    head = _HEAD.format(
        samples=len(every),
        real=sum(one.is_real for one in every),
        public=sum(one.is_public for one in every),
        checked=sum(len(one.fields) for one in every),
        right=sum(one.right for one in every),
    )
    return head + "".join(f"{one.row()}\n" for one in every)


if __name__ == "__main__":
    TABLE.write_text(document([compared(path) for path in TRUTHS]))
