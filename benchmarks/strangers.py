"""How right are the conclusions on cases by authors who know neither code nor rules?

    python benchmarks/strangers.py FOLDER... [--first-look] [--note TEXT] [--misses FILE]

A folder holds one author's `cases.json` and the files that it names; a file of
`examples/strangers/` holds the same in one. A training runs in an empty
folder, a stream prints a table, a log is read as it is. `--first-look` adds the figures to
`results/strangers.md`; `--misses` writes each wrong answer, to be read only after that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts.first_looks import RESULTS, add_options, started, tell
from parts.machine import ROOT
from parts.options import command_line
from parts.tables import table as markdown
from rich.progress import track

sys.path.insert(0, str(ROOT))

import ampwatch
from ampwatch.errors import AmpwatchError
from ampwatch.importers import import_log
from ampwatch.report.letter import letter_of

BOOK = RESULTS / "strangers.md"
_ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_LONGEST_S = 300
UNREAD = "unread"  # no training was recognised in a log, or no run was recorded


@dataclass(frozen=True, slots=True)
class Answer:
    """What ampwatch says of a case."""

    verdict: str
    learning_rate: str
    first_finding: str | None
    layer: str | None
    title: str


@dataclass(frozen=True, slots=True)
class Judged:
    """One case with its label and its answer."""

    name: str
    label: dict[str, Any]
    answer: Answer

    @property
    def kind(self) -> str:
        """What the case is made of: training, stream, log, thread or file."""
        return str(self.label["kind"])

    @property
    def is_healthy(self) -> bool:
        """Whether its author calls the training fine as it is."""
        return bool(self.label["healthy"])

    @property
    def is_plainly_failing(self) -> bool:
        """Whether no milder verdict than failing is right."""
        return self.label["verdict"] == ["failing"] or bool(self.label.get("plainly_failing"))

    @property
    def is_told(self) -> bool:
        """Whether the answer is that something is wrong."""
        return self.answer.verdict in {"warning", "failing"}

    def is_right(self, what: str) -> bool | None:
        """Whether the verdict, finding, layer or learning rate is one that the author accepts."""
        wanted, said = self.label.get(_LABELS[what]), getattr(self.answer, what)
        if not wanted or (what == "first_finding" and self.is_healthy):
            return None
        accepted = wanted if isinstance(wanted, list) else [wanted]
        return said in (*accepted, *(str(answer).replace(" ", "_") for answer in accepted))


_LABELS = {
    "verdict": "verdict", "learning_rate": "learning_rate", "first_finding": "finding",
    "layer": "layer",
}  # fmt: skip


def main() -> None:
    """Run each case, ask, judge, print."""
    parser = command_line(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="one author's cases each")
    parser.add_argument("--round", default="A round", help="the heading of the figures")
    add_options(parser)
    options = parser.parse_args()
    begun = started()
    cases = [(folder, label) for folder in options.folders for label in labels_of(folder)]
    results = [
        Judged(f"{folder.stem}/{label['id']}", label, answer_to(folder, label))
        for folder, label in track(cases, "cases", disable=not sys.stderr.isatty())
    ]
    about = f"{begun}: {len(results)} cases."
    tell(options, BOOK, options.round, about, table(results), list(_wrong(results)))


def labels_of(author: Path) -> list[dict[str, Any]]:
    """One author's labels: of a folder, or of a file that holds the cases' text as well."""
    path = author if author.is_file() else author / "cases.json"
    labels: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return labels


# --- asking ---------------------------------------------------------------------------------------


def answer_to(author: Path, label: dict[str, Any]) -> Answer:
    """What ampwatch says of one case."""
    with tempfile.TemporaryDirectory() as made:
        file = (author / label["file"]).resolve()
        if "text" in label:
            file = Path(made) / label["file"]
            file.write_text(label["text"], encoding="utf-8")
        path = recorded(file, label["kind"], Path(made))
        if path is None:
            return Answer(UNREAD, UNREAD, None, None, "")
        run = ampwatch.open_run(path)
        diagnosis = ampwatch.diagnose(run)
        letter_of(run.info.name, run, diagnosis)  # there has to be one
        told = diagnosis.to_json()
    weighty = [one for one in told["findings"] if one["severity"] != "info"]
    head = weighty[0] if weighty else None
    chain = [one for one in weighty if one is head or one["because_of"] == head["code"]]
    return Answer(
        verdict=told["verdict"],
        learning_rate=str(told["learning_rate"]["action"]).replace("-", "_"),
        first_finding=head and head["code"],
        layer=next((one["layer"] for one in chain if one["layer"]), None),
        title=head["summary"] if head else "",
    )


def recorded(file: Path, kind: str, made: Path) -> Path | None:
    """The folder of the run that a case makes; None if it makes none."""
    if kind in {"training", "program"}:
        _run(file, made)
        runs = sorted((made / "ampwatch-runs").glob("*/"))
        return runs[0] if runs else None
    if kind == "stream":
        table = made / "log.csv"
        table.write_text(_run(file, made), encoding="utf-8")
        file = table
    try:
        return import_log(file, made / "out")
    except AmpwatchError:
        return None


def _run(file: Path, folder: Path) -> str:
    """Run a program as its user would; it may well fail. What it printed."""
    environment = os.environ | _ONE_CORE | {"AMPWATCH_QUIET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(file)], cwd=folder, env=environment, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=_LONGEST_S,
    )  # fmt: skip
    return done.stdout


# --- figures --------------------------------------------------------------------------------------


_FIGURES = (
    "cases | read | verdict | faults told | told and at fault | plainly failing told so "
    "| ... called healthy | false errors | first finding | layer | learning rate "
    "| lower, where right | lower, where wrong"
)


def table(results: Sequence[Judged]) -> str:
    """The figures, kind by kind, as a table of Markdown."""
    kinds = sorted({one.kind for one in results})
    groups = [("all", list(results)), *((k, [r for r in results if r.kind == k]) for k in kinds)]
    return markdown(f" | {_FIGURES}", ([name, *_figures(of)] for name, of in groups))


def _figures(results: Sequence[Judged]) -> Iterator[str]:
    read = _read(results)
    failing = [r.answer.verdict for r in read if r.is_plainly_failing]
    lowered = [(r.answer.learning_rate == "lower", r.label["learning_rate"]) for r in read]
    yield str(len(results))
    yield _share(r.answer.verdict != UNREAD for r in results)
    yield _share(r.is_right("verdict") for r in read)
    yield _share(r.is_told for r in read if not r.is_healthy)
    yield _share(not r.is_healthy for r in read if r.is_told)
    yield _share(verdict == "failing" for verdict in failing)
    yield _share(verdict == "healthy" for verdict in failing)
    yield _share(r.answer.verdict == "failing" for r in read if r.is_healthy)
    for what in ("first_finding", "layer", "learning_rate"):
        yield _share(r.is_right(what) for r in read)
    yield _share(is_lowered for is_lowered, right in lowered if right[:1] == ["lower"])
    yield _share(is_lowered for is_lowered, right in lowered if "lower" not in right)


def _read(results: Iterable[Judged]) -> list[Judged]:
    return [one for one in results if one.answer.verdict != UNREAD]


def _share(marks: Iterable[bool | None]) -> str:
    known = [mark for mark in marks if mark is not None]
    if not known:
        return "-"
    return f"{sum(known) / len(known):.2f} ({sum(known)}/{len(known)})".replace("0.", ".", 1)


def _wrong(results: Iterable[Judged]) -> Iterable[str]:
    for one in results:
        bad = [what for what in _LABELS if one.is_right(what) is False]
        if bad or (one.is_healthy and one.is_told):
            wanted = {key: one.label.get(key) for key in _LABELS.values()}
            yield f"{one.name} {one.kind} {'healthy' if one.is_healthy else 'at fault'}: {bad}"
            yield f"    said    {one.answer}"
            yield f"    wanted  {wanted}"
            yield f"    about   {one.label['about']}"
            yield f"    reason  {one.label['reason']}"


if __name__ == "__main__":
    main()
