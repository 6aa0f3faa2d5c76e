"""A public gallery of mixed-precision faults: small real trainings, each with its label.

    case -> run (a training under a watch) -> findings (any tool's) -> score

A fault is one function; called with `fault=False` it trains its healthy twin, which differs in one
line. `python -m examples.gallery` lists, labels, runs and scores; README.md says how to score a
tool of your own.
"""

from examples.gallery.registry import all_cases as all_cases
from examples.gallery.vocabulary import Case as Case
from examples.gallery.vocabulary import Label as Label
from examples.gallery.vocabulary import Stage as Stage

__all__ = ["Case", "Label", "Stage", "all_cases"]
