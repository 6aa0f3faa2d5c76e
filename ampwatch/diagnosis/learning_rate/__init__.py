"""Which learning rate to use: a state folded block by block, and pure advice from it.

    rows -> fold -> RateState -> judge_rate -> Judgement -> advise -> Advice

The size of a state does not grow with the run, and the same rows give the same state in whatever
batches they came. `Case.rate` is one.
"""

from __future__ import annotations

from ampwatch.diagnosis.learning_rate.advice import advise
from ampwatch.diagnosis.learning_rate.judgement import Judgement, judge_rate
from ampwatch.diagnosis.learning_rate.rate_history import (
    Group,
    RateRows,
    RateState,
    Setup,
    comparable,
    fold,
    rows_of,
    rows_of_block,
)

__all__ = [
    "Group",
    "Judgement",
    "RateRows",
    "RateState",
    "Setup",
    "advise",
    "comparable",
    "fold",
    "judge_rate",
    "rows_of",
    "rows_of_block",
]
