"""The learning-rate advice scored on families that nobody fitted, beside a plain formula.

    python benchmarks/learning_rate_unfitted_scores.py --runs FOLDER [--group GROUP] [--title TITLE]

Each family is trained at rates an octave apart with two seeds, then once half an octave above the
highest stable rate; that gives its limit. The runs at 3, 6, 12 and 24 times the highest stable rate
that do fail are diagnosed, and a fresh seed trains at what is advised. FOLDER keeps every run, so
that a new adviser needs only the reruns.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from learning_rate_evidence_report import UNFITTED as UNFITTED_INTERVALS
from learning_rate_evidence_report import placed_state
from learning_rate_plain import INTERVAL, plain_advice
from learning_rate_trainings import Configuration, begin
from learning_rate_truth import SEEDS, Outcome, Truth, outcome_of, truth_of
from learning_rate_unfitted import HELD_OUT, LOOKED_AT, UNFITTED

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
from ampwatch.diagnosis.learning_rate import RateState

RESULT = Path(__file__).parent / "results" / "learning_rate_unfitted.md"
GRID = tuple(2.0**k for k in range(-3, 7))
TIMES = (3.0, 6.0, 12.0, 24.0)
RERUN_SEED = 100
COUNTS = (0, 1, 2, 4)  # earlier runs
NEAR = 5.0  # octaves
SAME = Signature("k", "f", 6.0, 2.0, 5.0)


@dataclass(frozen=True)
class Runs:
    """A family's runs in a folder; what is missing is trained."""

    family: Configuration
    folder: Path

    def path(self, rate: float, seed: int) -> Path:
        name = self.family.name.replace(" ", "-")
        return self.folder / f"{name}_{math.log2(rate):.3f}_{seed}"

    def trained(self, rate: float, seed: int) -> Path:
        path = self.path(rate, seed)
        if not Path(f"{path}.json").exists():
            training = begin(self.family, rate, seed)
            with ampwatch.attach(
                training.scaler, training.task.model, optimizer=training.optimizer, run=path.name,
                log_dir=str(self.folder), endpoint="off", start_step=self.family.resumed_after,
            ) as watch:  # fmt: skip
                training.run(self.family.steps, watch.log)
            outcome = outcome_of(self.state(rate, seed).head)
            Path(f"{path}.json").write_text(json.dumps(vars(outcome)))
        return path

    def state(self, rate: float, seed: int) -> RateState:
        return Engine().feed(ampwatch.open_run(self.path(rate, seed))).case().rate

    def outcome(self, rate: float, seed: int) -> Outcome:
        path = self.trained(rate, seed)
        return Outcome(**json.loads(Path(f"{path}.json").read_text()))

    def diagnosis(self, rate: float, seed: int) -> Diagnosis:
        return _diagnosis(self.trained(rate, seed))

    def advice(self, rate: float, seed: int) -> Advice:
        return self.diagnosis(rate, seed).learning_rate

    def truth(self) -> Truth | None:
        """The limit; None where no rate trains or all do."""
        rates = [self.family.nominal * factor for factor in GRID]
        truth = truth_of(rates, {(r, s): self.outcome(r, s) for r in rates for s in SEEDS})
        if truth.limit is None:
            return None
        rates = sorted([*rates, truth.limit])
        return truth_of(rates, {(r, s): self.outcome(r, s) for r in rates for s in SEEDS})

    def failing(self, truth: Truth) -> Iterator[float]:
        assert truth.highest_stable is not None
        for times in TIMES:
            rate = truth.highest_stable * times
            if not truth.is_stable(self.outcome(rate, SEEDS[0]), rate):
                yield rate


@cache
def _diagnosis(path: Path) -> Diagnosis:
    return ampwatch.diagnose(ampwatch.open_run(path))


@dataclass(frozen=True)
class Score:
    """One policy on one failing run."""

    family: str
    group: str
    times: float  # over the limit
    policy: str
    said: str
    factor: float
    is_inside: bool | None
    width: float | None
    is_stable: bool
    gap: float


def scores(runs: Runs, truth: Truth) -> Iterator[Score]:
    assert truth.limit is not None
    for rate in runs.failing(truth):
        octaves = math.log2(rate / truth.limit)
        advice = runs.advice(rate, SEEDS[0])
        inside = width = None
        if advice.has_interval:
            low, high, now = advice.low, advice.high, advice.current
            inside = low <= truth.limit * now / rate <= high
            width = math.log2(high / low)
        factor = advice.factor if advice.action.value == "lower" and advice.factor else 1.0
        yield _score(runs, truth, rate, "ampwatch", advice.action.value, factor, inside, width)
        plain = plain_advice(runs.state(rate, SEEDS[0]))
        if plain is None:
            yield _score(runs, truth, rate, "plain formula", "keep", 1.0, None, None)
        else:
            yield _score(
                runs, truth, rate, "plain formula", "lower", plain.factor, plain.is_inside(octaves),
                2 * INTERVAL,
            )  # fmt: skip


def _score(runs: Runs, truth: Truth, rate: float, policy: str, said: str, factor: float,
           inside: bool | None, width: float | None) -> Score:  # fmt: skip
    at = rate * factor
    outcome = runs.outcome(at, RERUN_SEED) if factor != 1.0 else runs.outcome(rate, SEEDS[0])
    return Score(
        runs.family.name, runs.family.group, rate / truth.limit, policy, said, factor, inside,
        width, truth.is_stable(outcome, at), truth.gap(outcome),
    )  # fmt: skip


def healthy(runs: Runs, truth: Truth) -> tuple[int, int]:
    """Of the stable runs of the sweep up to the highest stable rate: told to lower, and all."""
    rates = [runs.family.nominal * factor for factor in GRID]
    rates = [r for r in rates if truth.highest_stable / 20 < r <= truth.highest_stable * 1.01]
    said = [runs.advice(rate, SEEDS[0]).action.value for rate in rates]
    return said.count("lower"), len(said)


def beside_earlier(runs: Runs, truth: Truth) -> Iterator[tuple[int, bool, float]]:
    """How many earlier runs, whether the limit lies inside, and the width; by chance ten times."""
    rates = [runs.family.nominal * factor for factor in GRID]
    near = [r for r in rates if abs(math.log2(r / truth.limit)) < NEAR]
    others = {rate: _earlier(rate, runs.diagnosis(rate, SEEDS[0])) for rate in near}
    for rate in runs.failing(truth):
        told = runs.diagnosis(rate, SEEDS[0])
        for count in COUNTS:
            for draw in range(10 if count else 1):
                chosen = random.Random(f"{rate} {draw}").sample(near, min(count, len(near)))
                lesson = lesson_of(
                    SAME, [others[r] for r in chosen], run_id="this", started_ns=len(near) + 9
                )
                advice = with_lesson(told, lesson).learning_rate
                if advice.has_interval:
                    limit = truth.limit * advice.current / rate
                    width = math.log2(advice.high / advice.low)
                    yield count, advice.low <= limit <= advice.high, width


def _earlier(rate: float, told: Diagnosis) -> EarlierRun:
    outcome = earlier_outcome(told.verdict.value, told.learning_rate.action.value)
    held = told.learning_rate.current or rate
    return EarlierRun(f"{rate}", f"{rate}", 1, SAME, outcome, held, steps_held(told))


def _beside_earlier(found: Sequence[tuple[int, bool, float]]) -> Iterator[str]:
    yield "| earlier runs alike | intervals | limit inside | median width, octaves |"
    yield "|---|---|---|---|"
    for count in COUNTS:
        inside = [(i, w) for c, i, w in found if c == count]
        share, width = np.mean([i for i, _ in inside]), np.median([w for _, w in inside])
        yield f"| {count} | {len(inside):,} | {share:.2f} | {width:.1f} |"


def report(found: Sequence[Score], calm: dict[str, tuple[int, int]],
           earlier: dict[str, list[tuple[int, bool, float]]], title: str) -> str:  # fmt: skip
    lines = [f"## {title}", ""]
    for group in (HELD_OUT, LOOKED_AT):
        here = [score for score in found if score.group == group]
        if not here:
            continue
        families = sorted({score.family for score in here})
        lower, count = (sum(calm[name][at] for name in families) for at in (0, 1))
        lines += [
            f"### Kinds {group}: {len(families)}", "",
            ("| policy | failing runs | told to lower | stable at the first try | mean gap | limit "
            "inside | median width, octaves |"),
            "|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for policy in ("ampwatch", "plain formula"):
            of = [score for score in here if score.policy == policy]
            told = [score for score in of if score.width is not None]
            lines.append(
                f"| {policy} | {len(of)} | {np.mean([s.said == 'lower' for s in of]):.2f} | "
                f"{np.mean([s.is_stable for s in of]):.2f} | {np.mean([s.gap for s in of]):.3f} | "
                f"{np.mean([s.is_inside for s in told]):.2f} | "
                f"{np.median([s.width for s in told]):.1f} |"
            )
        lines += ["", f"Stable runs told to lower: {lower} of {count}.", ""]
        lines += [*_beside_earlier([one for name in families for one in earlier[name]]), ""]
        wrong = [s for s in here if s.policy == "ampwatch" and not s.is_stable]
        lines += [
            f"- {s.family}, {s.times:.0f} times over: {s.said}, factor {s.factor:.3g}"
            for s in wrong
        ]  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def keep_placed(runs: Runs, truth: Truth) -> None:
    """Put where the estimates lie to what the interval is made of."""
    kept = UNFITTED_INTERVALS.read_text().splitlines() if UNFITTED_INTERVALS.exists() else []
    kept = [line for line in kept if json.loads(line)["family"] != runs.family.name]
    for rate in runs.failing(truth):
        octaves = math.log2(rate / truth.limit)
        placed = placed_state(runs.family.name, octaves, runs.state(rate, SEEDS[0]))
        kept += [json.dumps(vars(one)) for one in placed]
    UNFITTED_INTERVALS.write_text("".join(f"{line}\n" for line in kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=Path, required=True, help="where the trainings are kept")
    parser.add_argument("--title", default="Scores")
    parser.add_argument("--group", choices=(LOOKED_AT, HELD_OUT))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
    found, calm, earlier = [], {}, {}
    for family in UNFITTED:
        runs = Runs(family, options.runs)
        truth = runs.truth() if options.group in (None, family.group) else None
        if truth is not None and truth.limit and (truth.is_learnt or family.resumed_after):
            found += scores(runs, truth)
            calm[family.name] = healthy(runs, truth)
            earlier[family.name] = list(beside_earlier(runs, truth))
            if family.group == LOOKED_AT:
                keep_placed(runs, truth)
    text = report(found, calm, earlier, options.title)
    print(text)
    with RESULT.open("a") as file:
        file.write(text + "\n")


if __name__ == "__main__":
    main()
