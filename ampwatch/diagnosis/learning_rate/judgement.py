"""The judgement of a state: onset, cause, estimate. Rules and advice both use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate.attribution import (
    Attribution,
    Cause,
    attribute,
    recorded_mechanism,
)
from ampwatch.diagnosis.learning_rate.onset import Onset, OnsetSign, find_onset
from ampwatch.diagnosis.learning_rate.rate_history import RateState
from ampwatch.diagnosis.learning_rate.trouble import Trouble, Warmup, base_rate
from ampwatch.diagnosis.learning_rate.update_alignment import alignment_at_the_end
from ampwatch.diagnosis.medians import known_of


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything that is known about the rate at the end of the record."""

    base: float | None
    accepted: int
    last_step: int | None
    alignment: float | None
    sees_course: bool  # losses or skips that could have shown trouble
    sees_mechanism: bool  # updates or gradients that could have shown its cause
    trouble: Trouble | None = None  # of the trouble that lasts
    attribution: Attribution | None = None  # also for a loss that hardly fell, which is no trouble

    @property
    def onset(self) -> Onset | None:
        """Where the trouble began, or None."""
        return None if self.trouble is None else self.trouble.onset

    @property
    def warmup(self) -> Warmup | None:
        """The warm-up, if the rate was still rising then."""
        return None if self.trouble is None else self.trouble.warmup

    @property
    def is_the_rate(self) -> bool:
        """Whether there is lasting trouble whose cause is the rate."""
        return self.attribution is not None and self.attribution.cause is Cause.RATE


def judge_rate(state: RateState) -> Judgement:
    """Judge the state; everything else is wording."""
    trouble = lasting_trouble(state)
    found = None if trouble is None else attribute(trouble)
    is_idle = trouble is not None and trouble.onset.sign is OnsetSign.IDLE
    if is_idle and found is not None and found.cause is not Cause.RATE:
        trouble = None  # a flat loss alone is no trouble
    steps = known_of(state.tail.of("step"))[-1:]
    head = state.head
    sees = np.isfinite(head.of("loss")).any() or np.isfinite(head.of("scale")).any()
    in_head = trouble is not None and trouble.onset.row < len(head)
    return Judgement(
        base=base_rate(state),
        accepted=len(trouble.accepted) if trouble is not None and in_head else state.accepted,
        last_step=int(steps[0]) if len(steps) else None,
        alignment=alignment_at_the_end(state),
        sees_course=bool(sees),
        sees_mechanism=bool(recorded_mechanism(head, state.tail)),
        trouble=trouble,
        attribution=found,
    )


def lasting_trouble(state: RateState) -> Trouble | None:
    """The trouble that lasts to the end of the record."""
    if state.setup.several_optimizers:  # whose losses are no one course, and outputs no data
        state = state.without("loss", "input_amax")
    onset = find_onset(state)
    return None if onset is None else Trouble(state, onset)
