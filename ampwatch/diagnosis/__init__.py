"""A run in, a diagnosis out. Pure: the same rows give the same findings, live or years later.

    run -> blocks of rows -> state (courses, folded) -> case -> rules -> causes -> verdict, advice

`diagnose(run)` is the door, `diagnose_together(runs)` that for several runs of one model; who
watches a run grow holds an `Engine`. `RULES` are the pages that `ampwatch explain` prints.
"""

from __future__ import annotations

from ampwatch.diagnosis.engine import Engine, conclude, diagnose
from ampwatch.diagnosis.findings import (
    Action,
    Advice,
    Diagnosis,
    Evidence,
    Finding,
    RunFacts,
    Severity,
    Verdict,
)
from ampwatch.diagnosis.registry import Rule
from ampwatch.diagnosis.rules import RULES
from ampwatch.diagnosis.rules.rate import weighed
from ampwatch.diagnosis.several_runs import ForSeveral, Together, advise_on_all, diagnose_together
from ampwatch.diagnosis.signals import Record

__all__ = [
    "RULES",
    "Action",
    "Advice",
    "Diagnosis",
    "Engine",
    "Evidence",
    "Finding",
    "ForSeveral",
    "Record",
    "Rule",
    "RunFacts",
    "Severity",
    "Together",
    "Verdict",
    "advise_on_all",
    "conclude",
    "diagnose",
    "diagnose_together",
    "weighed",
]
