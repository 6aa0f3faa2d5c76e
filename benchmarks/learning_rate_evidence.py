"""Fit the table of evidence, and see how it does on families that it was not fitted on.

python benchmarks/learning_rate_fit.py --evidence                 fit to the kept signs
python benchmarks/learning_rate_fit.py --evidence --rows FOLDER   first read them anew off the rows

A plain multinomial regression with a ridge. Each family weighs as the root of its number of runs;
for the figures each family in turn is left out. Every run is read a second and third time as less
telling logs would have it: without layers, and with scalars alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ampwatch.diagnosis.learning_rate import RateState, signs
from ampwatch.diagnosis.learning_rate.judgement import sign_readings
from ampwatch.diagnosis.learning_rate.trouble import lasting_trouble

KEPT = Path(__file__).parent / "data" / "learning_rate_evidence.jsonl"
GROUPS = {entry.name: entry.group for entry in signs.TABLE}
SIGNS = Path(signs.__file__)
CAUSES = ("rate", "data", "operation", "objective")
RIDGE = 1.0
ROUNDS = 6  # of choosing each group's strongest sign and fitting anew
HIDDEN = {  # what less telling logs leave out, and how much such a reading weighs
    "": ((), 1.0),
    "no layers": (("max_ratio", "act_amax", "input_amax", "forward_bad"), 0.3),
    "scalars": (
        ("max_ratio", "act_amax", "input_amax", "forward_bad", "update_norm", "param_norm"), 0.3,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One reading of one run in which something seemed to be wrong."""

    family: str
    name: str
    label: str  # one of CAUSES, or healthy
    hidden: str
    strengths: dict[str, float] = field(default_factory=dict)
    octaves: float | None = None  # over the limit

    @property
    def is_written(self) -> bool:
        return self.family.startswith("written")

    @property
    def at(self) -> int:
        return CAUSES.index(self.label) if self.label in CAUSES else CAUSES.index("objective")


def samples_of(family: str, name: str, label: str, state: RateState,
               octaves: float | None = None) -> Iterator[Sample]:  # fmt: skip
    """All readings of a run; none where no trouble stands at its end."""
    for hidden, (columns, _) in HIDDEN.items():
        trouble = lasting_trouble(state.without(*columns))
        if trouble is None or (trouble.onset.hard and not len(trouble.accepted)):
            continue  # no trouble, or a fact, which is not weighed
        strengths = {
            entry.name: round(reading.strength, 3)
            for entry, reading in sign_readings(trouble).items()
        }
        yield Sample(family, name, label, hidden, strengths, octaves)


def keep(samples: Sequence[Sample]) -> None:
    KEPT.write_text("".join(json.dumps(vars(s)) + "\n" for s in samples))


def kept() -> list[Sample]:
    return [Sample(**json.loads(line)) for line in KEPT.read_text().splitlines()]


# --- the fit ---


@dataclass(frozen=True)
class Table:
    """A bias and a weight per sign for each cause."""

    names: tuple[str, ...]
    weights: np.ndarray  # the bias, then a row a sign

    def chances(self, samples: Sequence[Sample]) -> np.ndarray:
        values = strongest(matrix(samples, self.names), self.names, self.weights)
        return _softmax(_with_bias(values) @ self.weights)


def matrix(samples: Sequence[Sample], names: Sequence[str]) -> np.ndarray:
    return np.array([[s.strengths.get(name, 0.0) for name in names] for s in samples])


def strongest(values: np.ndarray, names: Sequence[str], weights: np.ndarray) -> np.ndarray:
    """Only each group's sign that says most; the others are taken out."""
    says = np.abs(values) * np.ptp(weights[1:], axis=1)
    result = np.zeros_like(values)
    rows = np.arange(len(values))
    for group in sorted(set(GROUPS.values())):
        at = [i for i, name in enumerate(names) if GROUPS[name] == group]
        if at:
            best = np.array(at)[np.argmax(says[:, at], axis=1)]
            result[rows, best] = values[rows, best]
    return result


def fit(samples: Sequence[Sample]) -> Table:
    names = tuple(n for n in GROUPS if any(n in s.strengths for s in samples))
    values, truth = matrix(samples, names), np.array([s.at for s in samples])
    weigh = sample_weights(samples)
    weights = _regression(_with_bias(values), truth, weigh)
    for _ in range(ROUNDS):
        weights = _regression(_with_bias(strongest(values, names, weights)), truth, weigh)
    return Table(names, weights)


def sample_weights(samples: Sequence[Sample]) -> np.ndarray:
    count = Counter(s.family for s in samples)
    weights = np.array([HIDDEN[s.hidden][1] / count[s.family] ** 0.5 for s in samples])
    return weights / weights.mean()


def left_out(samples: Sequence[Sample]) -> np.ndarray:
    """Each sample's chances from a table fitted without its family.

    Written courses have no other of their kind: they stay in, and are no part of the figures.
    """
    chances = np.full((len(samples), len(CAUSES)), np.nan)
    for family in sorted({s.family for s in samples if not s.is_written}):
        there = np.array([s.family == family for s in samples])
        table = fit([s for s, out in zip(samples, there, strict=True) if not out])
        chances[there] = table.chances([s for s, out in zip(samples, there, strict=True) if out])
    return chances


def _with_bias(values: np.ndarray) -> np.ndarray:
    return np.hstack([np.ones((len(values), 1)), values])


def _softmax(points: np.ndarray) -> np.ndarray:
    powers = np.exp(points - points.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _regression(values: np.ndarray, truth: np.ndarray, weigh: np.ndarray) -> np.ndarray:
    """Newton's method on the multinomial likelihood with a ridge on all but the bias."""
    size, kinds = values.shape[1], len(CAUSES)
    wanted = np.eye(kinds)[truth]
    ridge = np.full((size, kinds), RIDGE)
    ridge[0] = 0.02
    weights = np.zeros((size, kinds))

    def cost(at: np.ndarray) -> float:
        chance = (_softmax(values @ at) * wanted).sum(axis=1)
        return float(-(weigh * np.log(chance + 1e-12)).sum() + (ridge * at * at).sum() / 2)

    for _ in range(50):
        chances = _softmax(values @ weights)
        slope = values.T @ (weigh[:, None] * (chances - wanted)) + ridge * weights
        bend = np.diag(ridge.T.ravel().astype(float))
        for a in range(kinds):
            for b in range(kinds):
                both = weigh * chances[:, a] * ((a == b) - chances[:, b])
                part = values.T @ (both[:, None] * values)
                bend[a * size : (a + 1) * size, b * size : (b + 1) * size] += part
        step = np.linalg.solve(bend, slope.T.ravel()).reshape(kinds, size).T
        fraction, now, gain = 1.0, cost(weights), float((slope * step).sum())
        while cost(weights - fraction * step) > now - 1e-4 * fraction * gain and fraction > 1e-4:
            fraction /= 2
        weights = weights - fraction * step
        if gain < 1e-8:
            break
    return weights


def write_into_the_table(table: Table, samples: Sequence[Sample]) -> None:
    """Put them there."""
    text = SIGNS.read_text()
    for name, weights in zip(("BIAS", *table.names), table.weights, strict=True):
        numbers = f"({', '.join(f'{w + 0.0:.2f}' for w in weights)})".replace("-0.00", "0.00")
        found = r"^BIAS = \(.*\)$" if name == "BIAS" else rf'^    SignRow\("{name}", .*$'
        row = re.search(found, text, re.MULTILINE)
        assert row is not None, name
        text = text.replace(row[0], re.sub(_NUMBERS, numbers, row[0]))
    runs, families = len({(s.family, s.name) for s in samples}), len({s.family for s in samples})
    text = re.sub(r"on \d+ runs of \d+ families", f"on {runs} runs of {families} families", text)
    SIGNS.write_text(text)


_NUMBERS = r"\(-?[\d.]+(, -?[\d.]+){3}\)"
