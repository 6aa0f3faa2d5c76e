"""What earlier runs that are alike add to the learning-rate advice: asked of the kept sweeps.

    python benchmarks/learning_rate_earlier.py

Runs of one configuration at other rates are what `alike` finds: same layers, optimizer, precision
and batch. So of each failed run of the sweeps some others, one to four within a factor of 32, are
taken as having been before it, with what the adviser said of them; never one at its own rate. Each
is drawn twenty times. No training is made: what a fresh seed does at a rate of the sweep is known.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import learning_rate_evidence as evidence
import numpy as np
from learning_rate import SEEDS, Book
from learning_rate_evidence import CAUSES, HIDDEN, Sample
from learning_rate_trainings import CONFIGURATIONS
from learning_rate_truth import Outcome, Truth

from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.learning_rate.earlier_rates import (
    EarlierRates,
    TriedRate,
    bounded,
    rates_below,
)
from ampwatch.diagnosis.learning_rate.judgement import LOWER_LINE

DATA = Path(__file__).parent / "data" / "learning_rate"
RESULT = Path(__file__).parent / "results" / "learning_rate_earlier.md"
COUNTS = (0, 1, 2, 4)  # earlier runs
DRAWS = 20
NEAR = 5.0  # octaves
STEPS = 160  # of each training of the sweeps
GROUPS = ("never fitted", "fitted")
SAID = {"lower": False, "keep": True, "raise": True}  # whether the rate held; else it is not told
MOST_STRENGTH = 4.0


@dataclass(frozen=True)
class Sweep:
    """A configuration's runs of the first seed, what was said of them, and what is true."""

    name: str
    group: str
    advice: dict[float, dict]
    truth: Truth
    book: Book

    def drawn(self, rate: float, count: int, seed: object) -> list[TriedRate]:
        """So many of its other runs, chosen by chance; those that did not tell are left out."""
        near = [r for r in self.advice if 0.1 < abs(math.log2(r / rate)) <= NEAR + 0.1]
        chosen = random.Random(str(seed)).sample(near, min(count, len(near)))
        said = {one: SAID.get(self.advice[one]["action"]) for one in chosen}
        return [TriedRate(one, STEPS, held=h) for one, h in said.items() if h is not None]


def sweeps() -> dict[str, Sweep]:
    found = {}
    for configuration in CONFIGURATIONS:
        book = Book(configuration, _adviser(configuration.name)).load()
        truth = book.truth()
        looks = [line for key, line in book.lines.items() if key[0] == "look"]
        if not looks or truth is None or truth.limit is None or not truth.is_learnt:
            continue
        group = GROUPS[configuration.is_tuned_on]
        advice = {line["rate"]: line["advice"] for line in looks}
        found[configuration.name] = Sweep(configuration.name, group, advice, truth, book)
    return found


def _adviser(name: str) -> str:
    """Whose words are kept: they are what an earlier run would have left."""
    said = [
        json.loads(text).get("adviser") for text in (DATA / f"{name}.jsonl").read_text().split("\n")
        if text
    ]  # fmt: skip
    return next(one for one in reversed(said) if one)


# --- the rate and its interval --------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """One advice to lower the rate, and what came of it."""

    is_inside: bool
    octaves: float  # width of the interval
    is_stable: bool
    gap: float
    was_moved: bool


def told(sweep: Sweep, rate: float, tried: Sequence[TriedRate]) -> Told | None:
    """None if it was not told to lower the rate, or what the advised one does is not known."""
    facts = sweep.advice[rate]
    advice = Advice(**facts | {"action": Action(facts["action"]), "because": ""})
    if advice.action is not Action.LOWER or not advice.has_interval:
        return None
    now = bounded(advice, tried, STEPS // 2)
    assert now.factor is not None
    assert now.low is not None
    assert now.high is not None
    assert sweep.truth.limit is not None
    outcome = _outcome(sweep, rate, rate * now.factor)
    if outcome is None:
        return None
    return Told(
        is_inside=now.low <= sweep.truth.limit <= now.high,
        octaves=math.log2(now.high / now.low),
        is_stable=sweep.truth.is_stable(outcome, rate * now.factor),
        gap=sweep.truth.gap(outcome),
        was_moved=now.recommended != advice.recommended,
    )


def _outcome(sweep: Sweep, origin: float, at: float) -> Outcome | None:
    """What a training of another seed does at a rate: the advised one, or one of the sweep."""
    lines = [
        line for key, line in sweep.book.lines.items()
        if (key[0] == "first" and key[3] == round(math.log2(origin), 6))
        or (key[0] == "sweep" and key[2] == SEEDS[1])
    ]  # fmt: skip
    near = min(lines, key=lambda line: abs(math.log2(line["rate"] / at)))
    if abs(math.log2(near["rate"] / at)) > 0.02:
        return None
    return Outcome(**{name: near[name] for name in Outcome.__annotations__})


def rates(there: Iterable[Sweep]) -> Iterator[str]:
    yield (
        "| earlier runs | advices | stable at the first try | mean gap | limit inside | interval's "
        "median width, octaves | advised rate moved |"
    )
    yield "|---|---|---|---|---|---|---|"
    cases = [(s, r) for s in there for r in s.truth.unstable(sorted(s.advice))]
    for count in COUNTS:
        found = [
            one
            for sweep, rate in cases
            for draw in range(DRAWS if count else 1)
            if (one := told(sweep, rate, sweep.drawn(rate, count, (sweep.name, rate, draw))))
        ]
        stable, gap, inside, moved = (
            float(np.mean([getattr(one, name) for one in found]))
            for name in ("is_stable", "gap", "is_inside", "was_moved")
        )
        width = np.median([one.octaves for one in found])
        yield (
            f"| {count} | {len(found):,} | {stable:.3f} | {gap:.3f} | {inside:.2f} | {width:.1f} | "
            f"{moved:.2f} |"
        )


# --- the cause ------------------------------------------------------------------------------------


def place_of(sample: Sample, there: dict[str, Sweep]) -> tuple[Sweep, float] | None:
    """A sample's sweep and rate; other faults were made at half of the best one."""
    name, _, rest = sample.name.rpartition(" ")
    sweep = there.get(name)
    if sweep is None:
        return None
    at_rate = sample.label in ("rate", "healthy")
    return sweep, float(rest) if at_rate else sweep.truth.best_rate / 2


def strength(rate: float, tried: Sequence[TriedRate]) -> float:
    """Octaves over the lowest rate that failed, or under the highest that held; one at it."""
    known = rates_below(tried, math.inf, STEPS // 2) or EarlierRates()
    if known.failed is not None and rate >= known.failed.rate:
        return min(1.0 + math.log2(rate / known.failed.rate), MOST_STRENGTH)
    if known.held is not None and rate <= known.held.rate:
        return -min(1.0 + math.log2(known.held.rate / rate), MOST_STRENGTH)
    return 0.0


class Row:
    """The table of evidence with one more row; the others are as they were, each family left out.

    So where no run was before, nothing changes.
    """

    def __init__(self, there: dict[str, Sweep]) -> None:
        all_samples = evidence.kept()
        placed = [(s, place_of(s, there)) for s in all_samples]
        self.samples = [s for s, place in placed if place is not None]
        self._places = [place for _, place in placed if place is not None]
        self.families = np.array([s.family for s in self.samples])
        self._points = np.zeros((len(self.samples), len(CAUSES)))
        self.weights = np.zeros((len(self.samples), len(CAUSES)))
        for family in sorted(set(self.families)):
            table = evidence.fit([s for s in all_samples if s.family != family])
            points = np.log(table.chances(self.samples) + 1e-12)
            out = self.families == family
            self._points[out] = points[out]
            self.weights[out] = self._fitted(points, ~out)

    def _fitted(self, points: np.ndarray, there: np.ndarray) -> np.ndarray:
        """The row's weights, by Newton's method with the table's own ridge."""
        some = [s for s, is_there in zip(self.samples, there, strict=True) if is_there]
        wanted = np.eye(len(CAUSES))[[s.at for s in some]]
        weigh = evidence.sample_weights(some)
        signs = [self._signs(None, draw)[there] for draw in range(5)]
        weights = np.zeros(len(CAUSES))
        for _ in range(30):
            slope, bend = evidence.RIDGE * weights, evidence.RIDGE * np.eye(len(CAUSES))
            for sign in signs:
                chances = _chances(points[there], sign, weights)
                share = weigh / len(signs)
                slope = slope + (share * sign) @ (chances - wanted)
                curve = share * sign**2
                bend += np.diag(curve @ chances) - (chances * curve[:, None]).T @ chances
            weights = weights - np.linalg.solve(bend, slope)
        return weights

    def _signs(self, count: int | None, draw: int) -> np.ndarray:
        """The row's strength in each sample; None: of any number of earlier runs."""
        found = []
        for sample, (sweep, rate) in zip(self.samples, self._places, strict=True):
            seed = (sample.name, draw)
            many = random.Random(str(seed)).choice(COUNTS) if count is None else count
            found.append(strength(rate, sweep.drawn(rate, many, seed)))
        return np.array(found)

    def chances(self, count: int, draw: int) -> np.ndarray:
        """Of each sample, that it is the rate."""
        signs = self._signs(count, 1000 + draw)
        return _chances(self._points, signs, self.weights)[:, 0]


def _chances(points: np.ndarray, signs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    powers = np.exp(points + signs[:, None] * weights)
    return powers / powers.sum(axis=1, keepdims=True)


def causes(there: dict[str, Sweep]) -> Iterator[str]:
    row = Row(there)
    yield (
        "| record | earlier runs | the rate, not told lower | healthy, told lower | another cause, "
        "told lower | log loss |"
    )
    yield "|---|---|---|---|---|---|"
    labels = np.array([s.label for s in row.samples])
    for hidden in HIDDEN:
        here = np.array([s.hidden == hidden for s in row.samples])
        for count in COUNTS:
            said = np.array([row.chances(count, draw) for draw in range(DRAWS if count else 1)])
            cells = []
            for which in (labels == "rate", labels == "healthy", np.isin(labels, CAUSES[1:])):
                there_ = here & which
                lower = said[:, there_] > LOWER_LINE
                wrong = ~lower if (labels[there_] == "rate").all() else lower
                cells.append(f"{wrong.sum(axis=1).mean():.1f} of {there_.sum()}")
            chance = np.where(labels == "rate", said, 1 - said)[:, here]
            loss = -np.log(np.clip(chance, 1e-6, 1)).mean()
            yield f"| {hidden or 'whole'} | {count} | {' | '.join(cells)} | {loss:.3f} |"
    told_ = ", ".join(
        f"{c} {w:+.2f}" for c, w in zip(CAUSES, row.weights.mean(axis=0), strict=True)
    )
    yield ""
    yield f"The row's weights, in the mean over the families left out: {told_}."


_DECIDED = """
So what runs that are alike have shown bounds the interval and the advised rate, in `report` and on
the page of findings. At first the advised rate was moved up to the highest rate that held: with
four earlier runs 9 of 100 reruns failed then and the gap was 0.16, for the highest rate that holds
is not the one that trains best. A half, a quarter and an eighth of it were tried: a quarter was the
best of them on the fitted sweeps (0.078, 0.073, 0.076), and then on those never fitted (0.059,
0.045, 0.056).
"""

_LEFT = """
The row makes the cause surer, and is not in the table that is in use: a finding would then depend
on which other runs had been judged by that time, so that `report`, `fleet` and a page would
say different things of the same run. Most of what it would mend are logs of scalars alone, whose
signature is not known, so that no run is like them.

*What this does not show*: all runs of a sweep are equally long and have the same data, and other
faults were made at half of the best rate. Earlier runs of a team differ in more.
"""


def main() -> None:
    there = sweeps()
    lines = ["# What earlier runs that are alike add to the advice", ""]
    lines += [f"`python benchmarks/learning_rate_earlier.py`: {len(there)} sweeps. " + _ABOUT, ""]
    lines += ["## The rate and its interval", ""]
    for group in GROUPS:
        lines += [f"Configurations {group}:", ""]
        lines += [*rates(s for s in there.values() if s.group == group), ""]
    lines += [_DECIDED, "## The cause", "", *causes(there), _LEFT]
    text = "\n".join(lines)
    RESULT.write_text(text)
    print(text)


_ABOUT = " ".join((__doc__ or "").split("\n\n")[2].split())

if __name__ == "__main__":
    main()
