"""Is the learning-rate advice right on families that nothing was fitted on?

    python benchmarks/learning_rate.py --runs FOLDER [--quick] [--group GROUP] [--out FILE]

Each family is trained at rates an octave apart with two seeds, then once half an octave above the
highest stable rate; that gives its limit. The runs at 3, 6, 12 and 24 times the highest stable rate
that do fail are diagnosed, and a fresh seed trains at what is advised. FOLDER keeps every run, so
that a new adviser needs only the reruns. Results: results/learning_rate_unfitted.md.
"""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from learning_rate_families import FAMILIES, HELD_OUT, LOOKED_AT, Family, begin
from parts.options import command_line
from parts.tables import table

import ampwatch
from ampwatch.diagnosis import Advice, Diagnosis, Engine
from ampwatch.diagnosis.earlier_runs import (
    EarlierRun,
    Signature,
    lesson_of,
    steps_held,
    with_lesson,
)
from ampwatch.diagnosis.earlier_runs import outcome_of as earlier_outcome
from ampwatch.diagnosis.learning_rate import RateRows

GRID = tuple(2.0**k for k in range(-3, 7))
TIMES_OVER = (3.0, 6.0, 12.0, 24.0)
SEEDS, RERUN_SEED = (0, 1), 100
FINAL = 20  # steps whose median is the final loss
LEARNT = 0.5  # of the best decrease: less, at a rate above the best one, is no training
RELAPSED = 0.5  # of its own progress lost at the end ...
PROGRESS = 0.1  # ... where that was more than noise
HARDLY = 0.75  # of the first loss left at the best rate: the task was hardly learnt
EARLIER_COUNTS = (0, 1, 2, 4)
NEAR_OCTAVES = 5.0
SAME = Signature("k", "f", 6.0, 2.0, 5.0)


@dataclass(frozen=True)
class Outcome:
    """One training's course in a few numbers."""

    first: float
    final: float | None  # none where it is not finite
    best: float
    end_skips: int  # of the last FINAL steps


def outcome_of(rows: RateRows) -> Outcome:
    loss, bad = rows.of("loss"), rows.of("loss_bad") > 0
    finite = loss[np.isfinite(loss)]
    smooth = [float(np.median(finite[max(0, at - 9) : at + 1])) for at in range(len(finite))]
    end = loss[-FINAL:][np.isfinite(loss[-FINAL:])]
    lost = bad[-FINAL:].sum() > FINAL // 2 or not len(end)
    first = float(finite[0]) if len(finite) else math.inf
    return Outcome(
        first=_short(first),
        final=None if lost else _short(float(np.median(end))),
        best=_short(min(smooth, default=first)),
        end_skips=int(rows.of("skipped")[-FINAL:].sum()),
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")


@dataclass(frozen=True)
class Truth:
    """A family's stable range, out of its sweep."""

    best: float  # the lowest final loss of the sweep
    best_rate: float
    first: float
    highest_stable: float | None = None
    lowest_unstable: float | None = None

    @property
    def is_learnt(self) -> bool:
        """Whether the task was learnt at all: else "stable" and "gap" stand on noise."""
        return self.best < HARDLY * self.first

    @property
    def limit(self) -> float | None:
        """The middle, in octaves, between the highest stable rate and the next one."""
        if self.highest_stable is None or self.lowest_unstable is None:
            return None
        return math.sqrt(self.highest_stable * self.lowest_unstable)

    def gap(self, outcome: Outcome) -> float:
        """The share of the possible decrease that was missed; at most 1."""
        if outcome.final is None:
            return 1.0
        return float(np.clip((outcome.final - self.best) / (self.first - self.best), 0.0, 1.0))

    def is_stable(self, outcome: Outcome, rate: float) -> bool:
        """Whether it trained: finite to the end, no relapse, and not worse for being too high."""
        if outcome.final is None or outcome.end_skips > FINAL // 4:
            return False
        progress = outcome.first - outcome.best
        learnt = progress > PROGRESS * outcome.first
        if learnt and outcome.final > outcome.best + RELAPSED * progress:
            return False
        return rate <= self.best_rate or self.gap(outcome) < LEARNT


def truth_of(rates: Sequence[float], sweep: Mapping[tuple[float, int], Outcome]) -> Truth:
    finals = {rate: np.mean([_final(sweep[rate, seed]) for seed in SEEDS]) for rate in rates}
    best_rate = min(rates, key=lambda rate: finals[rate])
    first = float(np.mean([outcome.first for outcome in sweep.values()]))
    truth = Truth(float(finals[best_rate]), best_rate, first)
    stable = [all(truth.is_stable(sweep[r, s], r) for s in SEEDS) for r in rates]
    count = stable.index(False) if False in stable else len(rates)
    return Truth(
        truth.best,
        best_rate,
        first,
        rates[count - 1] if count else None,
        rates[count] if count < len(rates) else None,
    )


def _final(outcome: Outcome) -> float:
    return math.inf if outcome.final is None else outcome.final


@dataclass(frozen=True)
class Runs:
    """A family's runs in a folder; what is missing is trained."""

    family: Family
    folder: Path

    def trained(self, rate: float, seed: int) -> Path:
        name = f"{self.family.name.replace(' ', '-')}_{math.log2(rate):.3f}_{seed}"
        outcome = self.folder / f"{name}.json"
        if not outcome.exists():
            training = begin(self.family, rate, seed)
            with ampwatch.attach(
                training.scaler, training.task.model, optimizer=training.optimizer, run=name,
                log_dir=str(self.folder), endpoint="off", start_step=self.family.resumed_after,
            ) as watch:  # fmt: skip
                training.run(watch.log)
            rows = Engine().feed(ampwatch.open_run(self.folder / name)).case().rate.head
            outcome.write_text(json.dumps(asdict(outcome_of(rows))))
        return self.folder / name

    def outcome(self, rate: float, seed: int) -> Outcome:
        return Outcome(**json.loads(Path(f"{self.trained(rate, seed)}.json").read_text()))

    def diagnosis(self, rate: float) -> Diagnosis:
        return _diagnosis(self.trained(rate, SEEDS[0]))

    def advice(self, rate: float) -> Advice:
        return self.diagnosis(rate).learning_rate

    def rates(self) -> list[float]:
        return [self.family.nominal * factor for factor in GRID]

    def truth(self) -> Truth:
        """Its sweep's; the limit is found within half an octave, or there is none."""
        truth = self._truth(self.rates())
        return truth if truth.limit is None else self._truth(sorted([*self.rates(), truth.limit]))

    def _truth(self, rates: list[float]) -> Truth:
        return truth_of(rates, {(r, s): self.outcome(r, s) for r in rates for s in SEEDS})

    def failing(self, truth: Truth) -> Iterator[float]:
        for times in TIMES_OVER:
            rate = truth.highest_stable * times
            if not truth.is_stable(self.outcome(rate, SEEDS[0]), rate):
                yield rate


@cache
def _diagnosis(path: Path) -> Diagnosis:
    return ampwatch.diagnose(ampwatch.open_run(path))


@dataclass(frozen=True)
class Score:
    """The advice on one failing run."""

    family: Family
    times_over: float  # the limit
    action: str
    factor: float
    is_inside: bool | None  # the limit in the printed interval
    width: float | None
    is_stable: bool  # a rerun at what is advised
    gap: float


def scores(runs: Runs, truth: Truth) -> Iterator[Score]:
    for rate in runs.failing(truth):
        advice = runs.advice(rate)
        inside = width = None
        if advice.has_interval:
            inside = advice.low <= truth.limit * advice.current / rate <= advice.high
            width = math.log2(advice.high / advice.low)
        factor = advice.factor if advice.action.value == "lower" and advice.factor else 1.0
        advised = rate * factor
        outcome = runs.outcome(advised, RERUN_SEED if factor != 1.0 else SEEDS[0])
        yield Score(
            runs.family, rate / truth.limit, advice.action.value, factor, inside, width,
            truth.is_stable(outcome, advised), truth.gap(outcome),
        )  # fmt: skip


def lowered_stable_runs(runs: Runs, truth: Truth) -> tuple[int, int]:
    """Of the stable runs of the sweep up to the highest stable rate: told to lower, and all."""
    lowest, highest = truth.highest_stable / 20, truth.highest_stable * 1.01
    actions = [runs.advice(r).action.value for r in runs.rates() if lowest < r <= highest]
    return actions.count("lower"), len(actions)


def beside_earlier(runs: Runs, truth: Truth) -> Iterator[tuple[int, bool, float]]:
    """How many earlier runs, whether the limit lies inside, and the width; by chance ten times."""
    near = [r for r in runs.rates() if abs(math.log2(r / truth.limit)) < NEAR_OCTAVES]
    others = {rate: _earlier(rate, runs.diagnosis(rate)) for rate in near}
    for rate in runs.failing(truth):
        alone = runs.diagnosis(rate)
        for count in EARLIER_COUNTS:
            for draw in range(10 if count else 1):
                chosen = random.Random(f"{rate} {draw}").sample(near, min(count, len(near)))
                lesson = lesson_of(
                    SAME, [others[r] for r in chosen], run_id="this", started_ns=len(near) + 9
                )
                advice = with_lesson(alone, lesson).learning_rate
                if advice.has_interval:
                    limit = truth.limit * advice.current / rate
                    width = math.log2(advice.high / advice.low)
                    yield count, advice.low <= limit <= advice.high, width


def _earlier(rate: float, diagnosis: Diagnosis) -> EarlierRun:
    advice = diagnosis.learning_rate
    outcome = earlier_outcome(diagnosis.verdict.value, advice.action.value)
    held = advice.current or rate
    return EarlierRun(f"{rate}", f"{rate}", 1, SAME, outcome, held, steps_held(diagnosis))


@dataclass
class Results:
    """What was scored of the families of one group."""

    families: int
    scores: list[Score]
    stable_runs: list[tuple[int, int]]
    intervals: list[tuple[int, bool, float]]  # beside earlier runs

    def text(self, group: str) -> str:
        told = [score for score in self.scores if score.width is not None]
        row = (
            len(self.scores), _share([s.action == "lower" for s in self.scores]),
            _share([s.is_stable for s in self.scores]), _share([s.gap for s in self.scores], 3),
            _share([s.is_inside for s in told]), _octaves([s.width for s in told]),
        )  # fmt: skip
        lowered, stable = (sum(counts) for counts in zip(*self.stable_runs, strict=True))
        earlier = []
        for count in EARLIER_COUNTS:
            of = [(inside, width) for number, inside, width in self.intervals if number == count]
            earlier.append(
                (count, f"{len(of):,}", _share([i for i, _ in of]), _octaves([w for _, w in of]))
            )
        misses = [
            f"- {s.family.name}, {s.times_over:.0f} times over: {s.action}, factor {s.factor:.3g}"
            for s in self.scores
            if not s.is_stable
        ]
        head = "failing runs | told to lower | stable at the first try | mean gap | limit inside"
        return "\n".join(
            [
                f"### Kinds {group}: {self.families}\n",
                table(f"{head} | median width, octaves", [row]),
                f"\nStable runs told to lower: {lowered} of {stable}.\n",
                table("earlier runs alike | intervals | limit inside | median width, octaves",
                      earlier), "", *misses, "",
            ]
        )  # fmt: skip


def _share(values: Sequence[float], digits: int = 2) -> str:
    return f"{np.mean(values):.{digits}f}" if values else "-"


def _octaves(values: Sequence[float]) -> str:
    return f"{np.median(values):.1f}" if values else "-"


def results_of(families: Sequence[Family], folder: Path) -> Results:
    results = Results(0, [], [], [])
    for family in families:
        runs = Runs(family, folder)
        truth = runs.truth()
        if truth.limit is None or not (truth.is_learnt or family.resumed_after):
            continue
        results.families += 1
        results.scores += scores(runs, truth)
        results.stable_runs.append(lowered_stable_runs(runs, truth))
        results.intervals += beside_earlier(runs, truth)
    return results


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where the trainings are kept")
    parser.add_argument("--group", choices=(LOOKED_AT, HELD_OUT))
    parser.add_argument("--quick", action="store_true", help="the first family of each group only")
    parser.add_argument("--out", type=Path, help="add the results to this page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
    for group in (HELD_OUT, LOOKED_AT):
        families = [family for family in FAMILIES if family.group == group]
        if options.group in (None, group):
            results = results_of(families[: 1 if options.quick else None], options.runs)
            text = results.text(group) if results.families else f"No limit in kinds {group}."
            print(text)
            if options.out:
                with options.out.open("a") as file:
                    file.write(f"\n{text}")


if __name__ == "__main__":
    main()
