"""A run in, a diagnosis out. Pure: the same rows give the same findings, live or years later.

    run -> blocks of rows -> histories -> case -> rules -> causes -> verdict, advice

`diagnose(run)` judges one run, `diagnose_together(runs)` several runs of one model. An `Engine`
follows a run that grows. `RULES` are the pages that `ampwatch explain` prints.
"""

from __future__ import annotations

from ampwatch.diagnosis.engine import Engine, diagnose
from ampwatch.diagnosis.findings import (
    Diagnosis,
    Finding,
    RunFacts,
    Severity,
    Verdict,
    with_muted,
)
from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.record import Record
from ampwatch.diagnosis.rule import Rule
from ampwatch.diagnosis.rules import RULES
from ampwatch.diagnosis.rules.rate import rate_evidence_lines
from ampwatch.diagnosis.several_runs import (
    ForSeveralRuns,
    SeveralDiagnoses,
    advise_on_all,
    diagnose_together,
    difference_of_models,
)
from ampwatch.diagnosis.value_text import Evidence
from ampwatch.diagnosis.verdict import conclude

__all__ = [
    "RULES",
    "Action",
    "Advice",
    "Diagnosis",
    "Engine",
    "Evidence",
    "Finding",
    "ForSeveralRuns",
    "Record",
    "Rule",
    "RunFacts",
    "SeveralDiagnoses",
    "Severity",
    "Verdict",
    "advise_on_all",
    "conclude",
    "diagnose",
    "diagnose_together",
    "difference_of_models",
    "rate_evidence_lines",
    "with_muted",
]
