"""A plain formula for the learning rate, to compare the advice with: no table, no causes.

An onset against the first loss; the largest early update over the weights, carried to the base
rate; a line a family of optimizers; a fixed margin. Fitted on 18 small trainings of early work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate import RateRows, RateState
from ampwatch.diagnosis.learning_rate.estimate import Family, family_of

MARGIN, MARGIN_COLLAPSED, INTERVAL = 1.2, 2.2, 2.2  # octaves
LEAST = 0.5


@dataclass(frozen=True)
class PlainAdvice:
    """The advised factor on the base rate, and the octaves by which that is estimated too high."""

    factor: float
    octaves: float

    def is_inside(self, octaves: float) -> bool:
        return abs(octaves - self.octaves) <= INTERVAL


def plain_advice(state: RateState) -> PlainAdvice | None:
    rows, base = state.head, state.base_rate
    found = onset(rows)
    if found is None or base is None:
        return None
    at, collapsed = found
    before = np.flatnonzero(rows.accepted & ~(rows.of("loss_bad") > 0))
    before = before[(before < at) | (before == before[:1])]
    part = RateRows(rows.values[before])
    with np.errstate(all="ignore"):
        u = _known(part.ratio / part.of("lr") * base / state.lead_share)
        lr, loss, size = part.of("lr"), part.of("loss"), part.of("update_norm")
        p = _known(lr * loss / (part.of("grad_norm") * size) / base)
    if not len(u):
        return None
    log2_u = math.log2(float(np.percentile(u, 90)))
    if family_of(part, state.setup) is Family.PLAIN and len(p):
        octaves = 4.7 + 0.9 * log2_u + 0.35 * math.log2(float(p.min()))
    else:
        octaves = 3.1 + 0.3 * log2_u
    margin = MARGIN_COLLAPSED if collapsed else MARGIN
    return PlainAdvice(2.0 ** -max(LEAST, octaves + margin), octaves)


def onset(rows: RateRows) -> tuple[int, bool] | None:
    """Where it began, and whether numbers left their format."""
    begin = int(np.argmax(rows.accepted))
    loss, skipped = rows.of("loss"), rows.of("skipped") > 0
    bad = np.flatnonzero(rows.of("loss_bad")[begin:] > 0) + begin
    three = np.flatnonzero(skipped[begin:-2] & skipped[begin + 1 : -1] & skipped[begin + 2 :])
    hard = [int(found[0]) for found in (bad, three + begin) if len(found)]
    at = np.flatnonzero(np.isfinite(loss))
    if not len(at):
        return (min(hard), True) if hard else None
    known, first = loss[at], float(loss[at][0])
    smooth = np.array([np.median(known[max(0, n - 9) : n + 1]) for n in range(len(known))])
    progress = first - np.minimum.accumulate(smooth)
    back = smooth - np.minimum.accumulate(smooth)
    soft = (known > 1.5 * first) | ((progress > 0.1 * first) & (back > 0.5 * progress))
    found = [*hard, *at[np.flatnonzero(soft)[:1]].tolist()]
    if found:
        return min(found), bool(hard)
    idle = len(known) >= 50 and float(np.median(known[-30:])) > 0.9 * first
    return (1, False) if idle else None


def _known(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values) & (values > 0)]
