"""Do reports contradict the rows that they are about? Writes what somebody reads to find out.

    python benchmarks/report_audit.py FOLDER [--cases 120] [--readers 4] [--seed 7]

FOLDER gets a text for each reader: of strangers' streams and logs, at a random moment of each, the
rows (every so-many-th, the extremes of the loss, the skips) and below them the report as it is
printed. Two of five healthy ones are kept. A reader who knows neither code nor rules writes down
what contradicts, misleads, is unclear or missing, each with a weight from 1 to 3, and groups it by
what the cases have in common. Results: results/report_audit.md.
"""

from __future__ import annotations

import io
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from diagnosis import Prefix
from parts.machine import ROOT
from parts.options import command_line
from rich.console import Console
from rich.progress import track
from strangers import labels_of, recorded

sys.path.insert(0, str(ROOT))

import ampwatch
from ampwatch.report import print_report
from ampwatch.rows import Table

STRANGERS = ROOT / "examples" / "strangers"
SHARES = (0.35, 0.6, 0.85, 1.0, 1.0)  # of the record at which it is looked at
COLUMNS = ("step", "loss", "scale", "scale_after", "skipped", "grad_norm", "lr")
ROWS, HEALTHY_KEPT, LEAST = 22, 0.4, 6


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    draw = random.Random(options.seed)
    cases = [
        (path.stem, label)
        for path in sorted(STRANGERS.glob("round*.json"))
        for label in labels_of(path)
        if label["kind"] in {"stream", "log"}
    ]
    draw.shuffle(cases)
    texts: list[str] = []
    for author, label in track(cases, "cases", disable=not sys.stderr.isatty()):
        if len(texts) == options.cases:
            break
        told = text_of(label, draw.choice(SHARES))
        if told is not None and ("\nHEALTHY" not in told or draw.random() < HEALTHY_KEPT):
            texts.append(f"=== case {author}/{label['id']}\n\n{told}")
    for reader in range(options.readers):
        part = texts[reader :: options.readers]
        (options.folder / f"reader{reader}.txt").write_text("\n\n".join(part), encoding="utf-8")


def text_of(label: dict[str, Any], share: float) -> str | None:
    """The rows of a case up to this share of them, and the report on them; None if it has few."""
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / label["file"]
        file.write_text(label["text"], encoding="utf-8")
        path = recorded(file, label["kind"], Path(made))
        if path is None:
            return None
        run: Any = ampwatch.open_run(path)
        steps = run.read(Table.STEPS, columns=["step"]).column("step").to_pylist()
        if len(steps) < LEAST:
            return None
        record = run if share == 1.0 else Prefix(run, steps[int(len(steps) * share)])
        told = io.StringIO()
        console = Console(file=told, width=110, no_color=True, highlight=False)
        print_report(console, "run", record, ampwatch.diagnosis.diagnose(record), everything=False)
        return "\n".join([*rows_of(record), "", "REPORT", told.getvalue()])


def rows_of(record: Any) -> Iterator[str]:
    """The rows, thinned, and what the thinning may hide."""
    table = record.read(Table.STEPS, columns=list(COLUMNS))
    names = [name for name in COLUMNS if table.column(name).null_count < table.num_rows]
    yield f"{table.num_rows} rows, of which every so-many-th is shown: {' | '.join(names)}"
    for at in sorted(set(np.linspace(0, table.num_rows - 1, ROWS).astype(int).tolist())):
        yield " | ".join(_cell(table.column(name)[at].as_py()) for name in names)
    steps = np.array(table.column("step").to_pylist())
    loss = np.array(table.column("loss").to_pylist(), np.float64)
    finite = np.flatnonzero(np.isfinite(loss))
    if len(finite):
        low, high = finite[np.argmin(loss[finite])], finite[np.argmax(loss[finite])]
        yield f"loss: lowest {loss[low]:.5g} at step {steps[low]}"
        yield f"loss: highest {loss[high]:.5g} at step {steps[high]}"
        yield f"loss: not finite, or not printed, in {len(loss) - len(finite)} rows"
    skipped = steps[[bool(value) for value in table.column("skipped").to_pylist()]]
    yield f"skipped: {len(skipped)} steps, from {skipped[:3].tolist()} to {skipped[-3:].tolist()}"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
