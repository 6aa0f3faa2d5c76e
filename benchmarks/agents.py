"""Do broken trainings train once a script has followed the printed advice to the letter?

    python benchmarks/agents.py --rows ROWS [--only NAME...]
    python benchmarks/agents.py --rows ROWS --out benchmarks/results/agents.md

Twelve trainings by authors who know neither code nor rules: the newest six whose author says that
the learning rate is to be lowered, and the newest six whose author names an output that leaves its
format (AMP203). No model and no person decides: with ampwatch, `report`, `prove` and `plan` are
called as an agent calls them, and what the plan says is done. Beside it two rules of thumb: divide
the learning rate by ten; do so if the mean loss of the second half is higher, else keep it.

The truth is this file's own: all of a training's losses, read where torch gets them, of full
trainings at lower learning rates, or without autocast where an output leaves its format. Cured is
what comes to its end with a loss at most a tenth of the possible decrease above the best of them.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts.first_looks import started
from parts.machine import ROOT, keep_state_in, machine
from parts.options import command_line
from parts.tables import table
from strangers import labels_of

sys.path.insert(0, str(ROOT))

from ampwatch.cli.prove import starter
from ampwatch.recovery.change import CHANGE, FLOAT32, LAYERS_BY, RATE, Change, Cure, changes_text

STRANGERS = ROOT / "examples" / "strangers"
OF_EACH_KIND = 6
LEAVES_FORMAT = "AMP203"
FACTORS = (0.25, 0.0625)
FLOAT32_ALL: Cure = ("autocast-off", True)
LAST = 20  # losses whose median is the loss at the end
CURED = 0.1  # of the possible decrease: what may be lacking
WORSE = 0.03  # of the first loss: by so much more than the broken training's end is harm
BUDGET, LONGEST_S = "15m", 600
_ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Case:
    """A stranger's training that fails, and what its author accepts as the cause."""

    name: str
    label: Mapping[str, Any]

    @property
    def is_of_rate(self) -> bool:
        """Whether its author says that the learning rate is to be lowered, and nothing else."""
        return list(self.label["learning_rate"]) == ["lower"]


def cases() -> list[Case]:
    """The twelve: the newest rounds first, in the order of their files."""
    files = sorted(STRANGERS.glob("round*.json"), key=lambda path: int(path.stem[5:].split("_")[0]))
    found = [
        Case(f"{path.stem}/{label['id']}", label)
        for path in reversed(files)
        for label in labels_of(path)
        if label["kind"] == "training" and not label["healthy"]
    ]
    of_rate = [one for one in found if one.is_of_rate]
    of_format = [one for one in found if one.label["finding"][:1] == [LEAVES_FORMAT]]
    return [*of_rate[:OF_EACH_KIND], *of_format[:OF_EACH_KIND]]


# --- a training -----------------------------------------------------------------------------------


def trained(script: Path, changes: Sequence[Cure], folder: Path) -> list[float]:
    """The losses of a full training with these changes, made as `prove` makes them."""
    folder.mkdir()
    book = folder / "losses.json"
    command = [sys.executable, str(ROOT / "benchmarks/agents_training.py"), str(book), str(script)]
    arguments, environment = starter(command)("nothing", None)(folder / "runs")
    told = [Change(name, value, str(folder / "outputs")) for name, value in changes]
    paths = os.pathsep.join([environment["PYTHONPATH"], str(ROOT)])
    environment = {**environment, **_ONE_CORE, "PYTHONPATH": paths}
    if told:
        environment[CHANGE] = changes_text(told)
    subprocess.run(
        list(arguments), cwd=folder, env=environment, check=False, timeout=LONGEST_S,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    losses: list[float] = json.loads(book.read_text())
    return losses


def end_of(losses: Sequence[float]) -> float:
    """The loss at the end; nan if it is not finite."""
    last = losses[-LAST:]
    return statistics.median(last) if last and all(map(math.isfinite, last)) else math.nan


def ampwatch(folder: Path, *words: str) -> tuple[int, Any]:
    """The exit code of a command, and the JSON that it prints; None if it prints none."""
    environment = {**os.environ, **_ONE_CORE, "PYTHONPATH": str(ROOT), "AMPWATCH_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ampwatch", *words, "--json"],
        cwd=folder, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    print(done.stderr, file=sys.stderr)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None


# --- the three ways to repair it ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repair:
    """What somebody changes, what they take for the cause, and the steps that it took to know."""

    changes: Sequence[Cure]
    is_cause_right: bool
    steps: int = 0
    words: str = ""


def with_ampwatch(case: Case, script: Path, folder: Path) -> Repair:
    """Report, prove, plan; what the plan says is done, and nothing else."""
    environment = {**os.environ, **_ONE_CORE, "PYTHONPATH": str(ROOT), "AMPWATCH_QUIET": "1"}
    folder.mkdir()
    subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, check=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LONGEST_S,
    )  # fmt: skip
    (run,) = (path.name for path in (folder / "ampwatch-runs").glob("*/"))
    _, report = ampwatch(folder, "report", run)
    _, proof = ampwatch(folder, "prove", run, "--budget", BUDGET)
    _, plan = ampwatch(folder, "plan", run)
    tries = proof["tries"] if proof else []
    weighty = [one["code"] for one in report["findings"] if one["severity"] != "info"]
    action = report["learning_rate"]["action"]
    accepted = {str(one).replace("_", "-").replace(" ", "-") for one in case.label["learning_rate"]}
    is_right = weighty[:1] != [] and weighty[0] in case.label["finding"] and action in accepted
    words = f"{weighty[0] if weighty else 'nothing'}, {action}"
    steps = sum(one["steps"] for one in tries)
    return Repair(list(changes_in(plan)), is_right, steps, words)


def changes_in(plan: Mapping[str, Any]) -> Iterable[Cure]:
    """The changes that a plan names; one that goes on may name some for the next start."""
    rate, scaler, settings = plan["learning_rate"], plan["scaler"], plan["settings"]
    if plan["keep_in_float32"]:
        yield FLOAT32, LAYERS_BY.join(plan["keep_in_float32"])
    if settings.get("autocast") in {"off", "bfloat16"}:
        yield {"off": "autocast-off", "bfloat16": "bfloat16"}[settings["autocast"]], True
    if settings.get("scaler") == "off":
        yield "scaler-off", True
    if rate["clip"]:
        yield "clip", rate["clip"]
    if scaler["init_scale"]:
        yield "init_scale", scaler["init_scale"]
    if rate["factor"]:
        yield RATE, rate["factor"]


def by_tenth(case: Case) -> Repair:
    """Divide the learning rate by ten, whatever happened."""
    return Repair([(RATE, 0.1)], case.is_of_rate, words="the learning rate")


def by_halves(case: Case, losses: Sequence[float]) -> Repair:
    """Divide it by ten if the mean loss of the second half is higher, or is no number."""
    half = len(losses) // 2
    first, second = (statistics.fmean(part) for part in (losses[:half], losses[half:]))
    if second > first or not math.isfinite(second):
        return by_tenth(case)
    return Repair([], is_cause_right=False, words="nothing wrong")


# --- a case ---------------------------------------------------------------------------------------


def row_of(case: Case) -> dict[str, Any]:
    """Everything measured on a case."""
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        script = home / case.label["file"]
        script.write_text(case.label["text"], encoding="utf-8")
        broken = trained(script, [], home / "broken")
        known = {"as it is": broken}
        lower: list[Cure] = [(RATE, factor) for factor in FACTORS]
        for change in lower if case.is_of_rate else [FLOAT32_ALL]:
            known[f"{change[0]} {change[1]}"] = trained(script, [change], home / _slug(change))
        repairs = {
            "ampwatch": with_ampwatch(case, script, home / "own"),
            "a tenth": by_tenth(case),
            "two halves": by_halves(case, broken),
        }
        ends = {}
        for name, repair in repairs.items():
            ends[name] = broken
            if repair.changes:
                ends[name] = trained(script, repair.changes, home / name.replace(" ", "-"))
    best = min(map(end_of, [*known.values(), *ends.values()]), key=_nan_last)
    return {
        "case": case.name,
        "about": case.label["about"],
        "is_of_rate": case.is_of_rate,
        "steps": len(broken),
        # Of a training whose first loss is NaN, what the others began with.
        "first": min(
            (losses[0] for losses in [broken, *known.values(), *ends.values()]), key=_nan_last
        ),
        "broken_end": end_of(broken),
        "best": best,
        "known": {name: end_of(losses) for name, losses in known.items()},
        "repairs": {
            name: {
                "words": repair.words,
                "changes": [list(one) for one in repair.changes],
                "cause_right": repair.is_cause_right,
                "end": end_of(ends[name]),
                "trained": len(ends[name]),
                "steps": repair.steps + (len(ends[name]) if repair.changes else 0),
            }
            for name, repair in repairs.items()
        },
    }


def _slug(change: Cure) -> str:
    return f"{change[0]}-{change[1]}"


def _nan_last(value: float) -> float:
    return value if math.isfinite(value) else math.inf


# --- figures --------------------------------------------------------------------------------------


def gap(row: Mapping[str, Any], end: float) -> float:
    """The lacking share of the possible decrease; nan if the training ended without a loss."""
    return (end - row["best"]) / abs(row["first"] - row["best"])


def is_cured(row: Mapping[str, Any], repair: Mapping[str, Any]) -> bool:
    """Whether the repaired training came to its end, as low as the truth asks."""
    return repair["trained"] >= row["steps"] and gap(row, repair["end"]) <= CURED


def does_harm(row: Mapping[str, Any], repair: Mapping[str, Any]) -> bool:
    """Whether the training ends worse than it did when it was broken."""
    before, after = _nan_last(row["broken_end"]), _nan_last(repair["end"])
    return bool(repair["changes"]) and after > before + WORSE * abs(row["first"])


def figures(rows: Sequence[Mapping[str, Any]]) -> str:
    """The sums, and a line for each case."""
    names = list(rows[0]["repairs"])
    sums = []
    for name in names:
        pairs = [(row, row["repairs"][name]) for row in rows]
        sums.append(
            [
                name,
                f"{sum(one['cause_right'] for _, one in pairs)} of {len(rows)}",
                f"{sum(is_cured(row, one) for row, one in pairs)} of {len(rows)}",
                f"{sum(one['steps'] for _, one in pairs):,}",
                sum(does_harm(row, one) for row, one in pairs),
            ]
        )
    lines = [
        [
            row["case"],
            row["about"].split(":")[0].split(";")[0],
            f"{row['broken_end']:.3g}",
            f"{row['best']:.3g}",
            *(_cell(row, row["repairs"][name]) for name in names),
        ]
        for row in rows
    ]
    head = f"case | what its author says | broken | best known | {' | '.join(names)}"
    return "\n\n".join(
        [
            table("repaired by | cause right | cured | steps | harm", sums),
            table(head, lines),
        ]
    )


def _cell(row: Mapping[str, Any], repair: Mapping[str, Any]) -> str:
    told = ", ".join(
        f"{name} x {value:.3g}" if name == RATE else f"{name} {value}"
        for name, value in repair["changes"]
    )
    mark = "cured" if is_cured(row, repair) else "harm" if does_harm(row, repair) else "not cured"
    cause = "" if repair["cause_right"] else " (cause wrong)"
    return f"{mark}, {repair['end']:.3g}: {told or 'no change'}{cause}"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="a file to add a line per case to")
    parser.add_argument("--only", nargs="*", help="these cases only")
    parser.add_argument("--out", type=Path, help="write the page from the rows")
    parser.add_argument("--note", default="", help="a sentence that stands on the page")
    options = parser.parse_args()
    if options.out:
        told = map(json.loads, options.rows.read_text().splitlines())
        measured = {row["case"]: row for row in told}
        rows = [measured[case.name] for case in cases() if case.name in measured]
        about = f"`python benchmarks/agents.py`, {started()}. {machine('torch')} {options.note}"
        text = f"# Repaired by a script\n\n{about.strip()}\n\n{figures(rows)}\n"
        options.out.write_text(text, encoding="utf-8")
        return
    done = options.rows.read_text() if options.rows.exists() else ""
    with tempfile.TemporaryDirectory() as state:
        keep_state_in(state)
        for case in cases():
            if f'"{case.name}"' in done or (options.only and case.name not in options.only):
                continue
            begun = time.monotonic()
            row = row_of(case)
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{case.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
