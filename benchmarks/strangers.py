"""How right the conclusions are on cases by authors who know neither code nor rules.

    python benchmarks/strangers.py FOLDER... [--first-look] [--note TEXT] [--misses FILE]

A folder holds one author's `cases.json` and the files that it names; a file of
`examples/strangers/` holds the same in one. A training runs in an empty
folder, a stream prints a table, a log is read as it is. `--first-look` adds the figures to
`results/strangers.md`; `--misses` writes each wrong answer, to be read only after that.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ampwatch  # noqa: E402 - the checkout's own, found above
from ampwatch.errors import AmpwatchError  # noqa: E402
from ampwatch.importers import import_log  # noqa: E402

BOOK = ROOT / "benchmarks" / "results" / "strangers.md"
_HEAD = """# Strangers' cases

What a commit said of cases whose authors know neither code nor rules, before any miss was read.
Added to by `benchmarks/strangers.py`, never replaced.
"""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each case, ask, judge, print."""
    options = read_options(arguments)
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else "")
    cases = [(folder, label) for folder in options.folders for label in labels_of(folder)]
    results = [
        Judged(f"{folder.stem}/{label['id']}", label, answer_to(folder, label))
        for folder, label in track(cases, "cases", disable=not sys.stderr.isatty())
    ]
    when = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    about = f"{when}, commit `{commit}`: {len(results)} cases. {options.note}".strip()
    text = f"## {options.round}\n\n{about}\n\n{table(results)}\n"
    print(text)
    if options.misses:
        options.misses.write_text("\n".join(_wrong(results)) + "\n", encoding="utf-8")
    if options.first_look:
        before = BOOK.read_text(encoding="utf-8") if BOOK.exists() else _HEAD
        BOOK.write_text(f"{before.rstrip()}\n\n{text}", encoding="utf-8")
    return 0


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folders", nargs="+", type=Path, help="one author's cases each")
    parser.add_argument("--round", default="A round", help="the heading of the figures")
    parser.add_argument("--first-look", action="store_true", help=f"add the figures to {BOOK.name}")
    parser.add_argument("--note", default="", help="a sentence to print with the figures")
    parser.add_argument("--misses", type=Path, help="write each wrong answer to this file")
    return parser.parse_args(arguments)


def labels_of(author: Path) -> list[dict[str, Any]]:
    """One author's labels: of a folder, or of a file that holds the cases' text as well."""
    path = author if author.is_file() else author / "cases.json"
    labels: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return labels


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


# --- asking ---------------------------------------------------------------------------------------


def answer_to(author: Path, label: dict[str, Any]) -> Answer:
    """What ampwatch says of one case."""
    with tempfile.TemporaryDirectory() as made:
        file = (author / label["file"]).resolve()
        if "text" in label:
            file = Path(made) / label["file"]
            file.write_text(label["text"], encoding="utf-8")
        path = _recorded(file, label["kind"], Path(made))
        if path is None:
            return Answer(UNREAD, UNREAD, None, None, "")
        told = ampwatch.diagnose(ampwatch.open_run(path)).to_json()
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


def _recorded(file: Path, kind: str, made: Path) -> Path | None:
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


def table(results: Sequence[Judged]) -> str:
    """The figures, kind by kind, as a table of Markdown."""
    kinds = sorted({one.kind for one in results})
    rows = [("all", list(results)), *((k, [r for r in results if r.kind == k]) for k in kinds)]
    body = [f"| {name} | {' | '.join(_cells(mine))} |" for name, mine in rows]
    return "\n".join([f"| | {' | '.join(_FIGURES)} |", f"|---|{'---|' * len(_FIGURES)}", *body])


_FIGURES: dict[str, Callable[[Sequence[Judged]], str]] = {
    "cases": lambda rs: str(len(rs)),
    "read": lambda rs: _share(r.answer.verdict != UNREAD for r in rs),
    "verdict": lambda rs: _share(r.is_right("verdict") for r in _read(rs)),
    "faults told": lambda rs: _share(r.is_told for r in _read(rs) if not r.is_healthy),
    "told and at fault": lambda rs: _share(not r.is_healthy for r in _read(rs) if r.is_told),
    "plainly failing told so": lambda rs: _share(
        r.answer.verdict == "failing" for r in _read(rs) if r.is_plainly_failing
    ),
    "... called healthy": lambda rs: _share(
        r.answer.verdict == "healthy" for r in _read(rs) if r.is_plainly_failing
    ),
    "false errors": lambda rs: _share(
        r.answer.verdict == "failing" for r in _read(rs) if r.is_healthy
    ),
    "first finding": lambda rs: _share(r.is_right("first_finding") for r in _read(rs)),
    "layer": lambda rs: _share(r.is_right("layer") for r in _read(rs)),
    "learning rate": lambda rs: _share(r.is_right("learning_rate") for r in _read(rs)),
    "lower, where right": lambda rs: _share(
        r.answer.learning_rate == "lower"
        for r in _read(rs)
        if r.label["learning_rate"][:1] == ["lower"]
    ),
    "lower, where wrong": lambda rs: _share(
        r.answer.learning_rate == "lower"
        for r in _read(rs)
        if "lower" not in r.label["learning_rate"]
    ),
}


def _cells(results: Sequence[Judged]) -> list[str]:
    return [figure(results) for figure in _FIGURES.values()]


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
    sys.exit(main())
