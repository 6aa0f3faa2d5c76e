"""Does the advised learning rate train? Asked by training again at it.

python benchmarks/learning_rate.py                  do what is missing, then print the table
python benchmarks/learning_rate.py --only mlp-sgd   these configurations only; may be repeated
python benchmarks/learning_rate.py --minutes 3      stop after about three minutes; go on next time
python benchmarks/learning_rate.py --report         only the table of what has been done

Truth first: every configuration is trained at 13 rates with 2 seeds. A rate is stable when it and
all lower ones train with every seed; the limit lies between the highest stable one and the next.
Then each unstable run of the first seed, 1.5 to 64 times over the limit, is advised on, and trained
again at the advised rate with a fresh seed, beside a quarter, a tenth and a thirty-second; and the
unstable run itself goes on from its checkpoint of the advised step, at the advised rate.

Each finished training is a line in `data/learning_rate/NAME.jsonl`, so a run that is cut short goes
on where it stopped. Lines that depend on the adviser carry its fingerprint and are made anew when
it changes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from learning_rate_report import report
from learning_rate_trainings import CONFIGURATIONS, Configuration, restart, train
from learning_rate_truth import SEEDS, Outcome, Truth, outcome_of, truth_of
from rich.progress import Progress

import ampwatch.diagnosis.learning_rate as adviser
from ampwatch.diagnosis.learning_rate import RateRows, RateState, Setup, advise, fold, rows_of
from ampwatch.diagnosis.learning_rate.advice import Advice
from ampwatch.diagnosis.learning_rate.rate_history import COLUMNS, Group

DATA = Path(__file__).parent / "data" / "learning_rate"
RESULT = Path(__file__).parent / "results" / "learning_rate.md"
RERUN_SEED = 100
FOLKLORE = (4.0, 10.0, 32.0)


@dataclass(frozen=True)
class Job:
    """One training that the benchmark wants."""

    kind: str  # sweep, look, first, second, restart, or a divisor
    rate: float
    seed: int
    origin: float | None = None  # the rate of the unstable run that it is the cure of

    @property
    def key(self) -> tuple[str, float, int, float | None]:
        origin = None if self.origin is None else round(math.log2(self.origin), 6)
        return (self.kind, round(math.log2(self.rate), 6), self.seed, origin)


@dataclass
class Book:
    """What has been done of one configuration; a line a training."""

    configuration: Configuration
    fingerprint: str
    rows_folder: Path | None = None
    lines: dict[tuple, dict] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return DATA / f"{self.configuration.name}.jsonl"

    def load(self) -> Book:
        if self.path.exists():
            for text in self.path.read_text().splitlines():
                line = json.loads(text)
                if line.get("adviser") in {None, self.fingerprint}:
                    job = Job(line["kind"], line["rate"], line["seed"], line.get("origin"))
                    self.lines[job.key] = line
        return self

    def forget_stale(self) -> None:
        """Take out of the file what another adviser said."""
        if self.path.exists():
            self.path.write_text("".join(json.dumps(x) + "\n" for x in self.lines.values()))

    def do(self, job: Job) -> dict:
        """The job's line, from the file or made now."""
        if job.key not in self.lines:
            line = self.restarted(job) if job.kind == "restart" else self.trained(job)
            self.lines[job.key] = line
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return self.lines[job.key]

    def trained(self, job: Job) -> dict:
        """The line of a training from random weights."""
        state = self.state(job)
        line = {**asdict(job), **asdict(outcome_of(state.head))}
        if job.kind in {"look", "first", "second"}:
            line |= {"adviser": self.fingerprint, "advice": _plain(advise(state))}
        return line

    def restarted(self, job: Job) -> dict:
        """The line of a failed training that went on from the advised step."""
        assert job.origin is not None
        at = self.advice(job.origin)["restart_from_step"]
        line = {**asdict(job), "adviser": self.fingerprint, "at": at}
        return line | asdict(outcome_of(self.restarted_rows(job, at)))

    def advice(self, rate: float) -> dict:
        """What was said of the first seed's training at this rate."""
        return self.lines[Job("look", rate, SEEDS[0]).key]["advice"]

    def state(self, job: Job) -> RateState:
        """The training's course; kept ones are read, so that a new adviser needs no training."""
        kept = self.kept(job.rate, job.seed)
        if kept is not None and Path(f"{kept}.npy").exists():
            return _read_state(kept)
        state = train(self.configuration, job.rate, job.seed)
        if kept is not None:
            _write_state(kept, state)
        return state

    def restarted_rows(self, job: Job, at: int) -> RateRows:
        """The same of a training that went on from a checkpoint."""
        assert job.origin is not None
        kept = self.kept(job.rate, job.seed, job.origin, at)
        if kept is not None and Path(f"{kept}.npy").exists():
            return RateRows(np.load(f"{kept}.npy"))
        rows = restart(self.configuration, job.origin, job.seed, at, job.rate)
        if kept is not None:
            np.save(f"{kept}.npy", rows.values)
        return rows

    def kept(self, rate: float, seed: int, origin: float | None = None, at: int = 0) -> Path | None:
        """Where a training's rows are kept, if they are."""
        if self.rows_folder is None:
            return None
        self.rows_folder.mkdir(parents=True, exist_ok=True)
        again = "" if origin is None else f"-{math.log2(origin):.4f}-at-{at}"
        return self.rows_folder / f"{self.configuration.name}-{math.log2(rate):.4f}-{seed}{again}"

    def outcome(self, job: Job) -> Outcome | None:
        line = self.lines.get(job.key)
        return None if line is None else Outcome(**{k: line[k] for k in Outcome.__annotations__})

    def sweep(self, rate: float, seed: int) -> Outcome | None:
        return self.outcome(Job("sweep", rate, seed))

    def truth(self) -> Truth | None:
        """The limit, once the whole sweep is done."""
        sweep = {(r, s): self.sweep(r, s) for r in self.configuration.rates for s in SEEDS}
        return None if None in sweep.values() else truth_of(self.configuration.rates, sweep)


def jobs(book: Book) -> Iterator[Job]:
    """What is to be done, in order; later jobs depend on earlier ones' lines."""
    rates = book.configuration.rates
    for seed in SEEDS:
        yield from (Job("sweep", rate, seed) for rate in rates)
    yield from (Job("look", rate, SEEDS[0]) for rate in rates)
    truth = book.truth()
    assert truth is not None
    for origin in truth.unstable(rates):
        for divisor in FOLKLORE:
            yield Job(f"/{divisor:g}", origin / divisor, RERUN_SEED, origin)
        advised = book.advice(origin)
        if advised["factor"] is None:
            continue
        # The factor, which holds for every group: the recommended rate is the leading group's.
        first = Job("first", origin * advised["factor"], RERUN_SEED, origin)
        yield first
        if advised["restart_from_step"] is not None:
            yield Job("restart", first.rate, SEEDS[0], origin)
        again = book.lines[first.key]["advice"]
        outcome = book.outcome(first)
        if not truth.is_stable(outcome, first.rate) and again["factor"]:
            yield Job("second", first.rate * again["factor"], RERUN_SEED, origin)


def fingerprint() -> str:
    """Stands for the adviser's code and constants."""
    digest = hashlib.sha256()
    room = Path(adviser.__file__).parent
    for path in sorted([*room.glob("*.py"), *room.parent.glob("rate_*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
    chosen = [c for c in CONFIGURATIONS if not options.only or c.name in options.only]
    books = [Book(c, fingerprint(), options.rows).load() for c in chosen]
    DATA.mkdir(parents=True, exist_ok=True)
    if not options.report:
        for book in books:
            book.forget_stale()
        end = time.monotonic() + 60 * options.minutes
        work(books, lambda: time.monotonic() > end, truth_only=options.truth)
    text = report(books, FOLKLORE)
    print(text)
    if not options.only:
        RESULT.write_text(text + "\n")


def work(books: Sequence[Book], is_over: Callable[[], bool], *, truth_only: bool) -> None:
    """Do what is missing, a training at a time, until it is done or over."""
    with Progress(disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("trainings", total=None)
        for book in books:
            for job in jobs(book):
                if is_over():
                    return
                if truth_only and job.kind != "sweep":
                    break
                progress.update(bar, description=f"{book.configuration.name} {job.kind}", advance=1)
                book.do(job)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", default=[], help="a configuration's name")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--truth", action="store_true", help="only the sweeps")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--rows", type=Path, help="keep each training's rows in this folder")
    return parser.parse_args(arguments)


def _plain(advice: Advice) -> dict:
    """An advice as JSON knows it, numbers to six digits."""
    shown = {k: v for k, v in asdict(advice).items() if k != "because"}
    shown["action"] = advice.action.value
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in shown.items()}


def _write_state(path: Path, state: RateState) -> None:
    np.save(f"{path}.npy", state.head.values.astype(np.float64))
    Path(f"{path}.json").write_text(json.dumps(asdict(state.setup)))


def _read_state(path: Path) -> RateState:
    values = np.load(f"{path}.npy")
    known = json.loads(Path(f"{path}.json").read_text())
    known["groups"] = tuple(Group(**group) for group in known["groups"])
    known["saved_steps"] = tuple(known["saved_steps"])
    columns = {name: values[:, at] for at, name in enumerate(COLUMNS)}
    rows: RateRows = rows_of(**columns)
    return fold(RateState(), rows, Setup(**known))


if __name__ == "__main__":
    main()
