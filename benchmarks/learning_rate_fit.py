"""Fit the learning-rate formula's constants to the sweeps, and see how far those in use were off.

python benchmarks/learning_rate_fit.py --rows FOLDER

FOLDER is where `learning_rate.py --rows FOLDER` keeps the trainings' rows; what is not there is
trained again. Held-out and pristine configurations are not read. The constants in use stand in
`ampwatch/diagnosis/learning_rate/constants.py`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from learning_rate import SEEDS, Book, Job, fingerprint
from learning_rate_trainings import CONFIGURATIONS

from ampwatch.diagnosis.learning_rate import judge_rate
from ampwatch.diagnosis.learning_rate.family import Family
from ampwatch.diagnosis.learning_rate.formula import Estimate

QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class Point:
    """One unstable training: what was estimated, and by how many octaves it was over the limit."""

    name: str
    estimate: Estimate
    octaves: float


def points(rows: Path | None) -> Iterator[Point]:
    for configuration in CONFIGURATIONS:
        book = Book(configuration, fingerprint(), rows).load()
        truth = book.truth()
        if not configuration.is_tuned_on or truth is None or truth.limit is None:
            continue
        for rate in truth.unstable(configuration.rates):
            for seed in SEEDS:
                seen = judge_rate(book.state(Job("sweep", rate, seed)))
                if seen.is_the_rate and seen.estimate is not None and seen.estimate.update:
                    yield Point(configuration.name, seen.estimate, math.log2(rate / truth.limit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=Path)
    found = list(points(parser.parse_args().rows))
    for family in (Family.ADAPTIVE, Family.PLAIN):
        here = [p for p in found if p.estimate.family is family]
        if len(here) < 4:
            print(f"{family.value}: {len(here)} points, too few to fit")
            continue
        print(f"{family.value}: {len(here)} points of {len({p.name for p in here})} trainings")
        print(f"  fitted: {_fitted(here)}")
        print(f"  in use: {here[0].estimate.arithmetic}")
        print(f"  estimate - truth, octaves: {_errors(here)}")
    few = [p for p in found if p.estimate.steps < 10]
    print(f"fewer than 10 accepted steps ({len(few)}): {_errors(few)}")
    print(f"all ({len(found)}): {_errors(found)}")


def _fitted(here: list[Point]) -> str:
    plain = here[0].estimate.family is Family.PLAIN
    columns = [np.ones(len(here)), np.log2([p.estimate.update or 1.0 for p in here])]
    if plain:
        columns.append(np.log2([p.estimate.predicted or 1.0 for p in here]))
    truth = np.array([p.octaves for p in here])
    found, *_ = np.linalg.lstsq(np.stack(columns, 1), truth, rcond=None)
    left = truth - np.stack(columns, 1) @ found
    names = ("x =", "+ log2 u *", "+ log2 p *")
    text = " ".join(f"{name} {value:.2f}" for name, value in zip(names, found, strict=False))
    return f"{text}; standard deviation left {left.std():.2f}"


def _errors(here: list[Point]) -> str:
    errors = [p.estimate.octaves - p.octaves for p in here]
    if not errors:
        return "none"
    values = np.percentile(errors, QUANTILES)
    return ", ".join(f"{q} %: {v:+.2f}" for q, v in zip(QUANTILES, values, strict=True))


if __name__ == "__main__":
    main()
