"""Whether the learning rate brought the trouble about: by its mechanism, never by the loss alone.

A rate that is too high shows in the updates, the gradients or the activations before or with the
loss. A loss that moves while they stay in their bands is the data's or the objective's doing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.course import RateState, Rows
from ampwatch.diagnosis.learning_rate.onset import (
    IDLE,
    Onset,
    Sign,
    deviation,
    noise_of,
    trailing_medians,
)
from ampwatch.diagnosis.learning_rate.short_record import is_born_zero
from ampwatch.diagnosis.signals import Floats


class Cause(str, enum.Enum):
    """What brought an onset about."""

    RATE = "the learning rate"
    STATIC = "something that was there before the first update"
    DATA = "the data"
    OPERATION = "an operation that overflows"
    OBJECTIVE = "a change of the data or of the objective"
    BELOW_LIMIT = "something else: the rate is low"
    UNDECIDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Proof:
    """One number that speaks for a cause, and what it is held against."""

    signal: str
    step: int
    value: float
    against: float
    held: str = "{} is much"  # what `against` is

    def __str__(self) -> str:
        if not self.against:
            return f"{self.signal} at step {self.step}"
        held = self.held.format(f"{self.against:.3g}")
        return f"{self.signal} of {self.value:.3g} at step {self.step} ({held})"


_USUAL = "it had been {}"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The cause of an onset, and the numbers it stands on."""

    cause: Cause
    proofs: tuple[Proof, ...] = ()
    in_band: tuple[str, ...] = ()  # what was recorded of the mechanism, where none of it moved


def attribute(state: RateState, onset: Onset) -> Attribution:
    """What brought this onset about."""
    before, after = rows_around(state, onset)
    accepted = before.where(before.accepted)
    if onset.hard and not accepted.accepted.any():
        return _static(state, after)
    data = _data(accepted, after)
    if data is not None:
        return Attribution(Cause.DATA, (data,))
    if onset.sign in IDLE:
        grown = _early_growth(state, *_RAN_AWAY[onset.sign])
        if grown is not None:
            return Attribution(Cause.RATE, (grown,))
        return Attribution(Cause.OBJECTIVE, in_band=recorded_mechanism(before, after))
    larger = _larger_batch(state, onset)
    if larger is not None:
        return Attribution(Cause.OBJECTIVE, (larger,))
    proofs = [*_by_updates(state, onset, accepted, after), *_by_loss(state, onset, after)]
    fed = _fed(state, accepted, after.where(after.accepted).part(0, constants.SUSTAINED_STEPS))
    if fed is not None and all(proof.signal in _FOLLOW_THE_INPUT for proof in proofs):
        return Attribution(Cause.DATA, (fed,))
    if proofs:
        return Attribution(Cause.RATE, tuple(proofs))
    in_band = recorded_mechanism(before, after)
    if not in_band:
        return Attribution(Cause.UNDECIDED)
    cause = Cause.OPERATION if onset.collapsed else Cause.OBJECTIVE
    return Attribution(cause, in_band=in_band)


def rows_around(state: RateState, onset: Onset) -> tuple[Rows, Rows]:
    """The rows before an onset and from it on, as finely as they are kept."""
    if onset.row < len(state.head):
        return state.head.part(0, onset.row), state.head.part(onset.row)
    begin = state.rows - len(state.tail)
    if onset.row - begin > constants.FINAL_STEPS:
        at = onset.row - begin
        return state.tail.part(0, at), state.tail.part(at)
    course = state.points
    at = int(np.searchsorted(course.start, onset.row))
    return course.rows.part(0, at), course.rows.part(at)


def _static(state: RateState, after: Rows) -> Attribution:
    """Nothing was learnt before it: no rate has had a part in it yet."""
    bad = np.flatnonzero(after.of("forward_bad") > 0)
    if len(bad):
        step = _at(after.of("step"), int(bad[0]))
        return Attribution(Cause.STATIC, (Proof("non-finite forward", int(step), 1.0, 0.0),))
    first = state.head.of("scale")
    if len(first) and first[0] < constants.STATIC_SCALE:  # the record begins long after the run
        return Attribution(Cause.UNDECIDED)
    scale = _least(state.tail.of("scale"))
    if scale is not None and scale < constants.STATIC_SCALE:
        step = _at(state.tail.of("step"), len(state.tail) - 1)
        return Attribution(
            Cause.STATIC,
            (Proof("scale", int(step), scale, constants.STATIC_SCALE, "{} is little"),),
        )
    return Attribution(Cause.UNDECIDED)


def _data(accepted: Rows, after: Rows) -> Proof | None:
    """A batch far off, after an ordinary update."""
    near = after.part(0, constants.EVENT_SKIPS)
    loss, amax = _most(near.of("loss")), _most(near.of("input_amax"))
    usual_loss = _median(accepted.of("loss")[-constants.WINDOW_STEPS :])
    usual_amax = _median(accepted.of("input_amax")[-constants.WINDOW_STEPS :])
    if amax is None or usual_amax is None or amax <= constants.DATA_INPUT * usual_amax:
        return None
    far = loss is None or usual_loss is None or loss > constants.DATA_LOSS * usual_loss
    ratio = accepted.ratio
    last, usual = _median(ratio[-1:]), _median(ratio[-constants.WINDOW_STEPS :])
    ordinary = last is None or usual is None or last <= constants.BAND_FACTOR * usual
    step = int(_at(near.of("step"), int(np.nanargmax(near.of("input_amax")))))
    return Proof("input maximum", step, amax, usual_amax, _USUAL) if far and ordinary else None


def _larger_batch(state: RateState, onset: Onset) -> Proof | None:
    """A larger batch just before, since which the loss has come down.

    A loss that is summed over the batch leaps with it, and its gradients do: their levels before
    and after are of two kinds.
    """
    near = [step for step in state.setup.larger_batches if 0 <= onset.step - step <= _BATCH_STEPS]
    if not near or onset.hard:
        return None
    before, after = rows_around(state, onset)
    step = np.concatenate([before.of("step"), after.of("step")])
    loss = np.concatenate([before.of("loss"), after.of("loss")])
    since = loss[(step >= near[-1]) & np.isfinite(loss)]
    few = constants.EVENT_SKIPS
    if len(since) < 4 * few or not np.median(since[-few:]) < np.median(since[:few]):
        return None
    return Proof("a larger batch", near[-1], 1.0, 0.0)


def _fed(state: RateState, accepted: Rows, with_onset: Rows) -> Proof | None:
    """An input that has itself drifted out of its band; a network's own output is no data."""
    if state.setup.several_optimizers:
        return None
    return _drift("input_amax", accepted, with_onset)


def _by_updates(state: RateState, onset: Onset, accepted: Rows, after: Rows) -> Iterator[Proof]:
    """Updates, gradients or activations out of band, before the onset or with it."""
    late = accepted.part(-constants.PROOF_STEPS)
    largest = _most(late.of("max_ratio"))
    if largest is not None and largest >= constants.PROOF_RATIO and not is_born_zero(state.head):
        step = int(_at(late.of("step"), int(np.nanargmax(late.of("max_ratio")))))
        yield Proof("largest layer's update / weights", step, largest, constants.PROOF_RATIO)
    # A late climb is slow: what it moves shows by its end, not within its first steps.
    length = None if onset.sign is Sign.SHIFT else constants.SUSTAINED_STEPS
    with_onset = after.where(after.accepted).part(0, length)
    now = _percentile(accepted.ratio, with_onset.ratio)
    large = now is not None and now >= constants.LARGE_UPDATE
    # A level at which the loss was falling until numbers left their format did not drive them out;
    # nor did gradients or weights that had grown by then, as they do in a healthy warm-up.
    learnt_to_the_end = onset.hard and _stands_at_best(accepted.of("loss"))
    if now is not None and large and not learnt_to_the_end:
        step = int(_at(after.of("step"), 0))
        yield Proof("update / weights", step, now, constants.LARGE_UPDATE)
    for name in _WORDS:
        if name == "grad_norm" and learnt_to_the_end:
            continue
        drift = _drift(name, accepted, with_onset)
        if drift is not None:
            yield drift
    activation = _most(np.concatenate([late.of("act_amax"), with_onset.of("act_amax")]))
    growth = _growth(state, accepted)
    grown = growth is not None and growth >= constants.PROOF_GROWTH and not learnt_to_the_end
    if grown and activation is not None and activation >= constants.PROOF_ACTIVATION:
        step = int(_at(after.of("step"), 0))
        yield Proof("activation maximum", step, activation, constants.PROOF_ACTIVATION)


def _stands_at_best(loss: Floats) -> bool:
    """Whether the last losses were about as good as any."""
    known = loss[np.isfinite(loss)]
    if len(known) < constants.POINT_STEPS:
        return False
    smooth = trailing_medians(known)
    best = float(smooth.min())
    near = max(constants.NEAR_BEST * (float(smooth[0]) - best), noise_of(known))
    return float(np.median(known[-3:])) <= best + near


def _by_loss(state: RateState, onset: Onset, after: Rows) -> Iterator[Proof]:
    """A loss far above its beginning, and numbers that then left their format."""
    head = state.head.of("loss")
    known = head[np.isfinite(head)]
    if not onset.collapsed or not len(known) or known[0] <= 0 or state.setup.several_optimizers:
        return
    before, _ = rows_around(state, onset)
    losses = np.concatenate([before.of("loss")[-constants.PROOF_STEPS :], after.of("loss")])
    worst = _most(losses)
    if worst is not None and worst >= constants.PROOF_LOSS * known[0]:
        yield Proof("loss", onset.step, worst, float(known[0]), _USUAL)


def _drift(name: str, accepted: Rows, with_onset: Rows) -> Proof | None:
    """A signal whose median around the onset has left the band of the steps before."""
    past = _signal(name, accepted)
    known = np.flatnonzero(np.isfinite(past))
    # The last steps before the onset belong to the trouble; half of a short record is its past.
    cut = max(len(known) // 2, len(known) - constants.PROOF_STEPS)
    if cut < _FEWEST_NORMS:
        return None
    usual = past[known[:cut]][-constants.WINDOW_STEPS :]
    around = np.concatenate([past[known[cut:]], _signal(name, with_onset)])
    now = float(np.nanpercentile(around, 75)) if np.isfinite(around).any() else 0.0
    level = float(np.median(usual))
    line = max(
        constants.BAND_FACTOR * level, level + constants.ROBUST_DEVIATIONS * deviation(usual)
    )
    if not now > line:
        return None
    step = int(_at(accepted.of("step"), int(known[min(cut, len(known) - 1)])))
    return Proof((_WORDS | _INPUT)[name], step, now, level, _USUAL)


_WORDS = {
    "ratio": "update / weights",
    "grad_norm": "gradient norm",
    "act_amax": "activation maximum",
}
_INPUT = {"input_amax": "input maximum"}
_FOLLOW_THE_INPUT = frozenset(("gradient norm", "activation maximum", "loss"))
_BATCH_STEPS = 30  # as soon after a change of the batch's size as trouble is put down to it


def _signal(name: str, rows: Rows) -> Floats:
    return rows.ratio if name == "ratio" else rows.of(name)


_FEWEST_NORMS = 5
_MECHANISM = {
    "updates": ("update_norm", "max_ratio"),
    "gradients": ("grad_norm",),
    "activations": ("act_amax",),
}


def recorded_mechanism(before: Rows, after: Rows) -> tuple[str, ...]:
    """Which parts of the mechanism were recorded at all."""
    return tuple(
        word
        for word, names in _MECHANISM.items()
        if any(np.isfinite(rows.of(name)).any() for rows in (before, after) for name in names)
        # A band is what some values before the onset lay in.
        and (word != "gradients" or np.isfinite(before.of("grad_norm")).sum() >= _FEWEST_NORMS)
    )


def _growth(state: RateState, accepted: Rows) -> float | None:
    norms = state.head.of("param_norm")
    first = norms[np.isfinite(norms) & (norms > 0)][:1]
    last = _median(accepted.of("param_norm")[-3:])
    return None if not len(first) or last is None else last / float(first[0])


# How much weights grow, and in how many steps, where a rate drove them and they did not learn.
_RAN_AWAY = {
    Sign.NO_LEARNING: (constants.IDLE_GROWTH, constants.NO_LEARNING_STEPS),
    Sign.STALLED: (constants.STALLED_GROWTH, constants.NO_LEARNING_STEPS),
    Sign.LITTLE_LEARNT: (constants.PROOF_GROWTH, constants.SCRATCH_STEPS),
}


def _early_growth(state: RateState, growth: float, steps: int) -> Proof | None:
    """Weights that grew fast while little was learnt; slow tasks leave theirs as they are."""
    rows = state.head.where(state.head.accepted).part(0, steps)
    norms = rows.of("param_norm")
    known = norms[np.isfinite(norms) & (norms > 0)]
    if len(known) < constants.POINT_STEPS:
        return None
    first, last = float(known[0]), float(np.median(known[-constants.POINT_STEPS :]))
    if last < growth * first:
        return None
    return Proof("weight norm", int(_at(rows.of("step"), len(rows) - 1)), last, first, _USUAL)


def _percentile(past: Floats, now: Floats) -> float | None:
    values = np.concatenate([past[-constants.WINDOW_STEPS :], now])
    known = values[np.isfinite(values)]
    return float(np.percentile(known, constants.UPDATE_PERCENTILE)) if len(known) else None


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def _most(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else None


def _least(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.min()) if len(known) else None


def _at(values: Floats, at: int) -> float:
    value = values[at] if len(values) > at else np.nan
    return float(value) if np.isfinite(value) else -1.0
