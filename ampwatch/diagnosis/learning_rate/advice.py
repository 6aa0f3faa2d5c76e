"""The advice on the learning rate, with its arithmetic. Pure: states in, one advice out."""

from __future__ import annotations

import dataclasses
import enum
import math
from functools import lru_cache

import numpy as np

from ampwatch.diagnosis.column_arrays import known_of, median
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.estimate import MARGIN, Estimate, EstimateBounds, Family
from ampwatch.diagnosis.learning_rate.judgement import (
    CLEAR_LINE,
    Attribution,
    Cause,
    Judgement,
    is_born_zero,
    judge_rate,
)
from ampwatch.diagnosis.learning_rate.noise import loss_noise, trailing_medians
from ampwatch.diagnosis.learning_rate.rate_history import RateRows, RateState, micro_batches
from ampwatch.diagnosis.learning_rate.trouble import LeapBefore, OnsetSign, Trouble, Warmup
from ampwatch.diagnosis.value_text import count_text

# Late: what large runs did (x0.9 and x0.67 OPT, x0.5 BLOOM 104B, x0.89 icefall).
LATE_FACTOR, LATE_LOW, LATE_HIGH = 0.7, 0.5, 0.9
RAISE_FACTOR = 2.0
BEYOND_ONE_SHOT = 6.0  # octaves; 64 times too high often needs a second pass
# Offered besides a lower peak. A warm-up is usually 1 to 10 % of a training, and eight times that
# would be most of it; the first transformer took 4,000 steps, GPT-3 and Llama 2,000.
LONGEST_STRETCH, LONGEST_WARMUP = 8.0, 4000
# Confidence: the share of reruns that were stable at the first try, rounded down.
CONFIDENT, UNCERTAIN, FEW_STEPS_CONFIDENCE = 0.9, 0.6, 0.5


class Action(str, enum.Enum):
    """What the advice says to do with the learning rate."""

    LOWER = "lower"
    KEEP = "keep"
    RAISE = "raise"
    NOT_THE_CAUSE = "not-the-cause"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """What to do with the learning rate, and why; unknown parts are null."""

    action: Action
    because: str
    current: float | None = None
    recommended: float | None = None
    low: float | None = None
    high: float | None = None
    factor: float | None = None
    group: int | None = None
    confidence: float | None = None
    restart_from_step: int | None = None
    restart_checkpoint_step: int | None = None
    warmup_steps: int | None = None
    clip: float | None = None
    leapt_at_step: int | None = None  # `recommended` is the rate before, at which the run trained
    # With "lower": how likely the rate is the cause by the table of evidence, and its signs.
    probability: float | None = None
    signals: int | None = None
    # Code of the finding that explains the trouble: `because` repeats its summary.
    explained_by: str | None = dataclasses.field(default=None, metadata={"json": False})
    # Steps for which `recommended` held in a rerun, or a cure where the rate stays; None for an
    # estimate (`recovery.proof`).
    proved_steps: int | None = dataclasses.field(default=None, metadata={"json": False})
    # What those reruns changed besides the rate, in words: without it they did not hold.
    besides: str | None = dataclasses.field(default=None, metadata={"json": False})

    @property
    def interval_name(self) -> str:
        """What the interval is, for a legend."""
        if self.proved_steps is None:
            return "estimated range of the highest stable learning rate, not tested"
        return "the highest learning rate that held in a rerun, and the lowest above it that failed"

    @property
    def has_interval(self) -> bool:
        """Whether the advice gives an interval for the highest stable rate."""
        return self.low is not None and self.high is not None


def advise(state: RateState, judgement: Judgement | None = None) -> Advice:
    """The advice on the learning rate; pass `judgement` if the state has been judged already."""
    judged = judge_rate(state) if judgement is None else judgement
    trouble, attribution = judged.trouble, judged.attribution
    if trouble is None or attribution is None:
        return _calm(state, judged)
    onset = trouble.onset
    if attribution.cause is Cause.UNDECIDED:
        return Advice(Action.UNKNOWN, _undecided(trouble, attribution), current=judged.base)
    coming_down = "The loss is coming down again as the log ends"
    if attribution.cause is Cause.OBJECTIVE:
        because = f"{_began(trouble)}, but {_in_band(attribution)}."
        return _keep(state, judged, f"{because} {coming_down}." if onset.descending else because)
    if attribution.cause is not Cause.RATE:
        return _not_the_cause(judged, trouble, attribution)
    if onset.descending and not onset.is_slow:
        wait = f"{coming_down}: wait, and do not lower the learning rate yet."
        return _keep(state, judged, f"{_trouble_text(trouble, attribution)} {wait}")
    if trouble.leap is not None:
        advice = _go_back(state, trouble.leap, trouble, _trouble_text(trouble, attribution))
    # A warm-up that never ended has only shown that the rates before this one worked.
    elif onset.early or trouble.warmup is not None:
        advice = _lower(state, judged, trouble, _trouble_text(trouble, attribution))
    else:
        advice = _late(state, judged, trouble, _trouble_text(trouble, attribution))
    return dataclasses.replace(
        advice,
        restart_from_step=trouble.restart_step,
        restart_checkpoint_step=trouble.restart_checkpoint_step,
        probability=attribution.probability if advice.action is Action.LOWER else None,
        signals=len(attribution.table) if advice.action is Action.LOWER else None,
    )


def _calm(state: RateState, judgement: Judgement) -> Advice:
    """The advice if there is no trouble: to keep the rate, to raise it, or that it is unknown."""
    if (
        judgement.alignment is not None
        and judgement.alignment < constants.RAISE_ALIGNMENT
        and judgement.base
    ):
        return _raise(state, judgement, judgement.base)
    if not judgement.accepted:
        return Advice(Action.UNKNOWN, "The log ends before any step was accepted.")
    if not judgement.sees_course:
        return Advice(
            Action.UNKNOWN,
            "Neither losses nor scales are recorded, so the learning rate cannot be judged.",
        )
    calm = "The log shows no problem with this learning rate"
    doubt = _doubt(state, judgement.attribution)
    if doubt is None:
        return _keep(state, judgement, f"{calm}.")
    update = _largest_first_update(state.head)
    if update is not None and update[0] < constants.PROOF_RATIO:
        advice = _keep(state, judgement, f"{calm}, but {doubt}.")
        return dataclasses.replace(advice, confidence=FEW_STEPS_CONFIDENCE)
    size_text = "the size of the updates compared with the weights is not recorded"
    if update is not None:
        size_text = (
            f"the update of step {update[1]} was {update[0]:.2g} times as large as its weights"
        )
    because = f"{doubt[0].upper()}{doubt[1:]}, and {size_text}."
    return Advice(Action.UNKNOWN, because, current=judgement.base)


def _doubt(state: RateState, idle: Attribution | None) -> str | None:
    """Why a calm loss does not prove that the rate works; None if it does."""
    if idle is not None and idle.chance > CLEAR_LINE:
        return "the loss hardly fell"
    head, tail = known_of(state.head.of("loss")), known_of(state.tail.of("loss"))
    if state.setup.several_optimizers or not len(head) or not len(tail):
        return None
    first, final = float(head[0]), median(tail[-constants.FINAL_STEPS :])
    least = min(float(head.min()), float(tail.min()))
    # Losses that begin late in a run show a part of it in which little is left to learn.
    begin = state.head.of("step")[np.isfinite(state.head.of("loss"))][0]
    is_new = not state.setup.resumed and begin <= constants.EARLY_STEPS
    if is_new and least > 0 and final > constants.NO_LEARNING * first:
        return f"in {count_text(state.rows, 'step')} the loss has not come down"
    course = np.concatenate([head, known_of(state.points.rows.of("loss")), tail])
    smooth = trailing_medians(course)
    best, final = float(smooth.min()), min(final, float(smooth[-1]))
    lost = max(constants.RECOVERED_SHARE * (first - best), 2 * loss_noise(course))
    return None if final <= best + lost else f"the loss is {final:.3g}, after {best:.3g}"


@lru_cache(maxsize=4)  # from look to look the first rows are the same
def _largest_first_update(rows: RateRows) -> tuple[float, int] | None:
    """For the advice, the largest first update over the weights it changed, and its step."""
    early = rows.where(rows.accepted).part(0, constants.PROOF_STEPS)
    # Updates of matrices that start at zero (LoRA) exceed the weights, without harm.
    update = early.ratio if is_born_zero(rows) else np.fmax(early.ratio, early.of("max_ratio"))
    if not np.isfinite(update).any():
        return None
    at = int(np.nanargmax(update))
    step = early.of("step")[at]
    return float(update[at]), int(step) if np.isfinite(step) else at


def _raise(state: RateState, judgement: Judgement, base: float) -> Advice:
    because = (
        "The loss hardly falls, and after each update the gradient still points the same way "
        f"(alignment {judgement.alignment:.2f}, below {constants.RAISE_ALIGNMENT}, median of "
        f"{constants.RAISE_STEPS} steps at the full learning rate): in every run tried, doubling "
        "the learning rate was stable there."
    )
    return Advice(
        Action.RAISE,
        because,
        current=base,
        recommended=RAISE_FACTOR * base,
        low=RAISE_FACTOR * base,
        factor=RAISE_FACTOR,
        group=state.setup.lead_group,
        confidence=UNCERTAIN,
    )


def _keep(state: RateState, judgement: Judgement, because: str) -> Advice:
    enough = judgement.accepted >= constants.FEW_STEPS
    return Advice(
        Action.KEEP,
        because,
        current=judgement.base,
        recommended=judgement.base,
        factor=None if judgement.base is None else 1.0,
        group=None if judgement.base is None else state.setup.lead_group,
        confidence=CONFIDENT if enough else FEW_STEPS_CONFIDENCE,
    )


def _began(trouble: Trouble) -> str:
    return f"From step {trouble.onset.step} {trouble.onset.sign.value}"


def _undecided(trouble: Trouble, attribution: Attribution) -> str:
    if trouble.state.setup.inner_updates:
        return (
            f"{_began(trouble)}. Each step makes several updates, and the size of each is "
            "not recorded: a new run at a tenth of the learning rate would show whether it is the "
            "cause."
        )
    if trouble.onset.sign is OnsetSign.DOUBLED:
        return (
            f"{_began(trouble)}, and {count_text(trouble.state.rows, 'step')} do not show whether "
            "the learning rate is too high: if the loss does not come down soon, lower the "
            "learning rate."
        )
    if attribution.recorded:
        untold = "The updates compared with the weights, which would decide it, are not recorded."
        rest = "This is not enough to decide." if "updates" in attribution.recorded else untold
        return f"{_began(trouble)}. {attribution.told} {rest}"
    return (
        f"{_began(trouble)}; whether the learning rate is the cause is not recorded: updates, "
        "gradient norms and activations are missing. Attach ampwatch with the model."
    )


def _not_the_cause(judgement: Judgement, trouble: Trouble, attribution: Attribution) -> Advice:
    proofs = attribution.fact or "; ".join(row.told for row in attribution.proofs)
    why = f" ({proofs})" if proofs else ""
    rest = {
        Cause.STATIC: "no update had been made before it, so the learning rate cannot be the "
        "cause.",
        Cause.DATA: "the updates before it were ordinary.",
        Cause.OPERATION: f"{_in_band(attribution)} until then.",
    }[attribution.cause]
    because = f"At step {trouble.onset.step} the cause is {attribution.cause.value}{why}: {rest}"
    return Advice(Action.NOT_THE_CAUSE, because, current=judgement.base)


def _in_band(attribution: Attribution) -> str:
    """Which recorded signals stayed in their band, and what that means, as part of the advice."""
    if not attribution.recorded:
        return "no recorded signal points to the learning rate"
    calm = "; ".join(row.told for row in attribution.calm[:2])
    *first, last = attribution.recorded
    words = f"{', '.join(first)} and {last}" if first else last
    objective = attribution.cause is Cause.OBJECTIVE
    what = ": a change of the data or of the objective, not the learning rate" if objective else ""
    against = f" ({calm})" if calm else ""
    return f"{words} point to another cause than the learning rate{against}{what}"


def _trouble_text(trouble: Trouble, attribution: Attribution) -> str:
    return f"{_began(trouble)}, with {'; '.join(row.told for row in attribution.proofs[:2])}."


def _lower(state: RateState, judgement: Judgement, trouble: Trouble, trouble_text: str) -> Advice:
    """The advice to lower a rate that failed early: the estimate, below any rate that failed."""
    estimate, bounds, base = trouble.estimate, trouble.bounds, judgement.base
    if base is None or estimate is None or bounds is None:
        because = f"{trouble_text} The learning rate itself is not recorded: divide it by 4."
        return Advice(Action.LOWER, because, factor=0.25, confidence=FEW_STEPS_CONFIDENCE)
    factor, warmup_steps, reasons = _division(estimate, bounds, trouble, base)
    low, high = estimate.limits(base, bounds)
    return Advice(
        Action.LOWER,
        " ".join([trouble_text, *reasons, *_notes(trouble)]),
        current=base,
        recommended=base * factor,
        low=low,
        high=high,
        factor=factor,
        group=state.setup.lead_group,
        confidence=_confidence(estimate),
        warmup_steps=warmup_steps,
        clip=trouble.binding_clip,
    )


def _division(
    estimate: Estimate, bounds: EstimateBounds, trouble: Trouble, base: float
) -> tuple[float, int | None, list[str]]:
    """The advised factor for the rate, the steps of a longer warm-up, and the reasons for both."""
    factor = 2.0 ** -(estimate.octaves + MARGIN)
    divided = (
        f"{estimate.arithmetic}. Divide by {1 / factor:.2g}: by {2**estimate.octaves:.2g}, and by "
        f"a safety factor of {2**MARGIN:.2g}."
    )
    reasons = [divided]
    warmup_steps = None
    below = bounds.failed * 2.0**-constants.LEAST_OCTAVES
    if trouble.warmup is not None:
        reasons.append(
            f"The learning rate was still rising and had reached {trouble.warmup.rate:.3g}: the "
            "advised peak is below that."
        )
    elif below < factor * base:
        reasons.append(
            f"At {bounds.failed:.3g} it failed: the advised learning rate is below that."
        )
    factor = min(factor, below / base)
    if trouble.warmup is not None:
        warmup_steps = _stretched(trouble.warmup, factor)
        if warmup_steps is not None:
            reasons.append(
                f"A warm-up of about {warmup_steps:,} steps to the old peak would rise as slowly."
            )
    if bounds.worked is not None and bounds.worked > factor * base:
        factor = bounds.worked / base
        reasons.append(
            f"A learning rate of {bounds.worked:.3g} had worked for long: the advice is not below "
            "it."
        )
    if estimate.octaves > BEYOND_ONE_SHOT:
        reasons.append(
            "More than 64 times too high: one cut is often not enough, so apply the advice to "
            "the new log as well."
        )
    return factor, warmup_steps, reasons


def _go_back(state: RateState, leap: LeapBefore, trouble: Trouble, trouble_text: str) -> Advice:
    """The advice to go back to the rate before a leap: it had worked, which no estimate beats."""
    before, after = f"{leap.trained:.3g}", f"{leap.rate:.3g}"
    since = "" if leap.step is None else f" at step {leap.step:,}"
    because = (
        f"{trouble_text} The learning rate had just gone from {before} to {after}{since}: go back "
        f"to {before}. That is proven, no estimate: the steps before had trained at it."
    )
    return Advice(
        Action.LOWER,
        " ".join([because, *_notes(trouble)]),
        current=leap.rate,
        recommended=leap.trained,
        low=leap.trained,
        factor=leap.trained / leap.rate,
        group=state.setup.lead_group,
        confidence=CONFIDENT,
        leapt_at_step=leap.step,
    )


def _stretched(warmup: Warmup, factor: float) -> int | None:
    """The steps of an advised warm-up that rises as slowly; None if it would be too long."""
    steps = math.ceil(warmup.steps / factor)
    if factor * LONGEST_STRETCH < 1 or steps > LONGEST_WARMUP:
        return None
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return math.ceil(steps / unit) * unit


def _late(state: RateState, judgement: Judgement, trouble: Trouble, trouble_text: str) -> Advice:
    """The advice for a rate that worked for long: other batches first, then a small cut."""
    restart = f"{trouble_text} Until then the learning rate had worked."
    restarts = state.setup.restarts
    if trouble.onset.collapsed and not restarts:
        because = (
            f"{restart} Restart before the drift at the same learning rate and skip the batches "
            "until after the spike; if it spikes again, multiply the learning rate by "
            f"{LATE_FACTOR}."
        )
        return _keep(state, judgement, because)
    again = "It came again after a restart" if restarts else "It lasts to the end of the log"
    because = (
        f"{restart} {again}: restart before the drift, skip the batches until after it, and "
        f"multiply the learning rate by {LATE_FACTOR} (large runs used {LATE_LOW} to "
        f"{LATE_HIGH}; a deeper cut needs proof)."
    )
    base = judgement.base
    return Advice(
        Action.LOWER,
        " ".join([because, *_notes(trouble)]),
        current=base,
        recommended=None if base is None else base * LATE_FACTOR,
        factor=LATE_FACTOR,
        group=None if base is None else state.setup.lead_group,
        confidence=UNCERTAIN,
        clip=trouble.binding_clip,
    )


def _confidence(estimate: Estimate) -> float:
    if estimate.steps < constants.FEW_STEPS:
        return FEW_STEPS_CONFIDENCE
    unknown = estimate.update is None or estimate.family is Family.UNKNOWN
    return UNCERTAIN if unknown or estimate.octaves > BEYOND_ONE_SHOT else CONFIDENT


def _notes(trouble: Trouble) -> list[str]:
    """What the advice holds for, and other remedies, as sentences."""
    notes, setup = [], trouble.state.setup
    if trouble.binding_clip is not None:
        notes.append(
            f"Clipping to {trouble.binding_clip:.3g} was active in nearly every step, so it sets "
            "the update together with the learning rate: a lower limit has the same effect as a "
            "lower learning rate."
        )
    counts = [*micro_batches(trouble.state.head)[:1], *micro_batches(trouble.state.tail)[-1:]]
    if counts and counts[-1] > 1:
        notes.append(f"This is valid for {counts[-1]:.0f} micro-batches a step.")
    if counts and counts[0] != counts[-1]:
        notes.append(
            f"The effective batch went from {counts[0]:.0f} to {counts[-1]:.0f} micro-batches; "
            "the advice is for the last."
        )
    if len(setup.groups) > 1:
        notes.append(
            "Multiply every group's learning rate by the factor; it was computed for group "
            f"{setup.lead_group}."
        )
    return notes
