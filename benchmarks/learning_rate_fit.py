"""Fit the learning-rate formula's lines to the sweeps, and see how far off they are elsewhere.

python benchmarks/learning_rate_fit.py --rows FOLDER
python benchmarks/learning_rate_fit.py --evidence [--rows FOLDER]    the table of evidence instead

FOLDER is where `learning_rate.py --rows FOLDER` keeps the trainings' rows; what is not there is
trained again. Held-out and pristine configurations are not read. The constants in use stand in
`ampwatch/diagnosis/learning_rate/estimate.py`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import learning_rate_evidence_report
import numpy as np
from learning_rate import SEEDS, Book, Job, fingerprint
from learning_rate_trainings import CONFIGURATIONS

from ampwatch.diagnosis.learning_rate import judge_rate
from ampwatch.diagnosis.learning_rate.estimate import OFFSETS, SLOPE, Estimate, Family

QUANTILES = (2, 5, 25, 50, 75, 90, 95)


@dataclass(frozen=True)
class Point:
    """One unstable training: what was estimated, and by how many octaves it was over the limit."""

    model: str
    estimate: Estimate
    octaves: float

    @property
    def log2_u(self) -> float:
        return math.log2(self.estimate.update or 1.0)

    @property
    def broke(self) -> float:
        """What is added for a run that its first update broke."""
        line = OFFSETS[Family.PLAIN] + SLOPE * self.log2_u
        is_plain = self.estimate.family is Family.PLAIN
        return (
            max(0.0, self.estimate.octaves - line) if self.estimate.steps == 1 and is_plain else 0.0
        )

    @property
    def error(self) -> float:
        """By how many octaves the estimate in use is deep."""
        return self.estimate.octaves - self.octaves


def points(rows: Path | None) -> Iterator[Point]:
    for configuration in CONFIGURATIONS:
        book = Book(configuration, fingerprint(), rows).load()
        truth = book.truth()
        if not configuration.is_tuned_on or truth is None or truth.limit is None:
            continue
        for rate in truth.unstable(configuration.rates):
            for seed in SEEDS:
                seen = judge_rate(book.state(Job("sweep", rate, seed)))
                if seen.onset is None or seen.onset.is_slow:  # their estimate is bounded
                    continue
                found = None if seen.trouble is None else seen.trouble.estimate
                if seen.is_the_rate and found is not None and found.update:
                    yield Point(configuration.model, found, math.log2(rate / truth.limit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--evidence", action="store_true", help="the table of evidence instead")
    options = parser.parse_args()
    if options.evidence:
        learning_rate_evidence_report.main(options.rows)
        return
    found = list(points(options.rows))
    spread = []
    for family in (Family.ADAPTIVE, Family.PLAIN):
        here = [p for p in found if p.estimate.family is family]
        models = {m: [p for p in here if p.model == m] for m in sorted({p.model for p in here})}
        print(f"{family.value}: {len(here)} points of {len(models)} models")
        if len(models) < 3:
            continue
        slope, free = np.polyfit([p.log2_u for p in here], [p.octaves for p in here], 1)
        print(f"  fitted freely: x = {free:.2f} + {slope:.2f} log2 u")
        print(f"  offset at a slope of {SLOPE}: {offset(here):.2f}")
        print(f"  estimate in use - truth: {_percentiles([p.error for p in here])}")
        offsets = {model: offset(some) for model, some in models.items()}
        print("  by model: " + ", ".join(f"{m} {value:.2f}" for m, value in offsets.items()))
        middle = np.mean(list(offsets.values()))
        spread += [
            (value - middle) * math.sqrt(len(models) / (len(models) - 1))
            for value in offsets.values()
        ]
    print(f"from model to model: standard deviation {np.sqrt(np.mean(np.square(spread))):.2f}")


def offset(here: Sequence[Point]) -> float:
    """The offset that is right in the mean."""
    return float(np.mean([p.octaves - SLOPE * p.log2_u - p.broke for p in here]))


def _percentiles(octaves: Sequence[float]) -> str:
    values = np.percentile(octaves, QUANTILES)
    return ", ".join(f"{q} %: {v:+.2f}" for q, v in zip(QUANTILES, values, strict=True))


if __name__ == "__main__":
    main()
