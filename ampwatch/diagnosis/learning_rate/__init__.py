"""Which learning rate to use instead: a state fed block by block, and pure advice on it.

    rows -> fold -> RateState -> judge_rate -> Judgement -> advise -> Advice

A state's size does not grow with the run, and the same rows give the same state however they were
batched. `Case.rate` in the engine is one.
"""

from __future__ import annotations

from ampwatch.diagnosis.learning_rate.advice import advise, advise_together
from ampwatch.diagnosis.learning_rate.judgement import Judgement, judge_rate
from ampwatch.diagnosis.learning_rate.micro_batches import comparable
from ampwatch.diagnosis.learning_rate.rate_history import (
    Group,
    RateRows,
    RateState,
    Setup,
    fold,
    rows_of,
)

__all__ = [
    "Group",
    "Judgement",
    "RateRows",
    "RateState",
    "Setup",
    "advise",
    "advise_together",
    "comparable",
    "fold",
    "judge_rate",
    "rows_of",
]
