"""The judgement of a run's learning rate: onset, cause, alignment. Rules and advice both use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate.attribution import (
    Attribution,
    Cause,
    attribute,
    recorded_mechanism,
)
from ampwatch.diagnosis.learning_rate.onset import Onset, OnsetSign
from ampwatch.diagnosis.learning_rate.rate_history import RateState
from ampwatch.diagnosis.learning_rate.trouble import Trouble, Warmup, lasting_trouble
from ampwatch.diagnosis.learning_rate.update_alignment import alignment_at_the_end
from ampwatch.diagnosis.medians import known_of


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known about the learning rate at the end of the record."""

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
        """Where the judged trouble began; None without trouble."""
        return None if self.trouble is None else self.trouble.onset

    @property
    def warmup(self) -> Warmup | None:
        """The warm-up in which the judged trouble began; None if the rate was not rising."""
        return None if self.trouble is None else self.trouble.warmup

    @property
    def is_judged(self) -> bool:
        """Whether the table of evidence has named a cause."""
        return self.attribution is not None and self.attribution.cause is not Cause.UNDECIDED

    @property
    def is_the_rate(self) -> bool:
        """Whether the judgement finds lasting trouble whose cause is the rate."""
        return self.attribution is not None and self.attribution.cause is Cause.RATE


def judge_rate(state: RateState) -> Judgement:
    """Judge the learning rate of a run: its trouble, the cause, the alignment of updates."""
    trouble = lasting_trouble(state)
    if trouble is not None and trouble.onset.sign is OnsetSign.IDLE and state.setup.inner_updates:
        trouble = None  # its first row comes after many updates
    found = None if trouble is None else attribute(trouble)
    is_idle = trouble is not None and trouble.onset.sign is OnsetSign.IDLE
    if is_idle and found is not None and found.cause is not Cause.RATE:
        trouble = None  # a flat loss alone is no trouble
    steps = known_of(state.tail.of("step"))[-1:]
    head = state.head
    sees = np.isfinite(head.of("loss")).any() or np.isfinite(head.of("scale")).any()
    in_head = trouble is not None and trouble.onset.row < len(head)
    return Judgement(
        base=state.base_rate,
        accepted=len(trouble.accepted) if trouble is not None and in_head else state.accepted,
        last_step=int(steps[0]) if len(steps) else None,
        alignment=alignment_at_the_end(state),
        sees_course=bool(sees),
        sees_mechanism=bool(recorded_mechanism(head, state.tail)),
        trouble=trouble,
        attribution=found,
    )
