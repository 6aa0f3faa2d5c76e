"""An overflow becomes an event that names its culprit, or says between which layers it lies."""

from __future__ import annotations

from typing import Any

from ampwatch.probe.layer_digest import LayerDigest
from ampwatch.probe.layer_rows import LayerStep
from ampwatch.probe.models import Survey
from ampwatch.probe.records import EventRecord, StepRecord
from ampwatch.rows import EventKind


class OverflowNamer:
    """Names the culprit of one overflow after the other."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def event(
        self, record: StepRecord, known: LayerStep, details: LayerDigest | None
    ) -> EventRecord:
        """The event of a step in which an optimizer found an inf."""
        values = record.pack.values
        optimizers = [t.optimizer for t in record.turns if any(values[at] for at in t.found_inf_at)]
        detail: dict[str, Any] = {"optimizers": optimizers}
        return EventRecord(record.step, record.time_ns, EventKind.OVERFLOW, detail)
