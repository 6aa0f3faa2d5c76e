"""The diagnosis of a run by its present state: live, ended, or cut off.

The engine judges rows alone. Whether somebody still writes them only the moment tells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ampwatch import diagnosis
from ampwatch.diagnosis import Diagnosis, Record, SeveralDiagnoses
from ampwatch.diagnosis.case import NATIVE
from ampwatch.follow.liveness import State, at_a_glance
from ampwatch.store import Run, open_run


def diagnose(run: Record | str | Path) -> Diagnosis:
    """Diagnose a run as it stands now: what is wrong, since when, why, and what to do about it.

    `run` is an opened run, or what `open_run` takes: a path, or a name in the default folder.
    """
    opened = open_run(run) if isinstance(run, (str, Path)) else run
    return as_it_stands(opened, diagnosis.diagnose(opened))


def diagnose_together(runs: Sequence[Record]) -> SeveralDiagnoses:
    """Diagnose runs of one model together, as each stands now; of several models refused."""
    together = diagnosis.diagnose_together(runs)
    pairs = zip(runs, together.diagnoses, strict=True)
    return dataclasses.replace(
        together, diagnoses=tuple(as_it_stands(run, judged) for run, judged in pairs)
    )


def as_it_stands(run: Record, judged: Diagnosis) -> Diagnosis:
    """The diagnosis of a run by its present state; rows in memory have no state."""
    return with_state(at_a_glance(run), judged) if isinstance(run, Run) else judged


def with_state(state: State, judged: Diagnosis) -> Diagnosis:
    """The diagnosis of a run in this state; logs of other tools have no end marks to miss."""
    if state is State.LIVE:
        return judged.while_running()
    return judged.once_over() if judged.run.source == NATIVE else judged
