"""What a guard (`ampwatch.guard`) did, would have done, and had to let pass, from its events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.event import Event
from ampwatch.diagnosis.times import Times
from ampwatch.rows import EventKind


@dataclass(frozen=True, slots=True)
class GuardHistory:
    """What the guard did, would have done, and had to let pass; ranks act alike and count once."""

    left_out: Times = field(default_factory=Times)
    would: Times = field(default_factory=Times)  # a dry run's actions
    capped: Times = field(
        default_factory=Times
    )  # outlying steps beyond its cap, as far as recorded
    lowered: Times = field(default_factory=Times)
    stopped: Times = field(default_factory=Times)
    standing: int = 0  # steps left out since those that are not finite became the rule
    out_of_work: str = ""  # why it does nothing any more
    last: tuple[int, str] = (-1, "")  # the step and the action of the last event

    def fold(self, block: Block) -> GuardHistory:
        """The history of the guard with one more block."""
        made = self
        for event in block.events:
            if event.kind == EventKind.GUARD.value:
                made = made._and(event, block.position(event.step))
        return made

    def _and(self, event: Event, position: int) -> GuardHistory:
        detail, step = event.detail, event.step
        action, decided = str(detail.get("action")), detail.get("decided")
        this = (step, f"{action} {decided}")
        if this == self.last or decided == "begin":
            return self
        return replace(self, last=this, **self._change(event, position))

    def _change(self, event: Event, position: int) -> dict[str, Any]:
        """Which fields of the history an event of the guard changes, and to what."""
        detail, step = event.detail, event.step
        if detail.get("decided") == "nothing":
            if detail.get("why") == "capped":
                count = detail.get("let_pass")
                more = count - self.capped.count if isinstance(count, int) else 1
                return {"capped": self.capped.and_at(step, position, max(more, 0))}
            if detail.get("why") == "ranks" and not detail.get("action"):
                return {"out_of_work": str(detail.get("told") or "")}
            return {}
        standing, more = self.standing, 1
        if isinstance(count := detail.get("standing"), int):  # of many only some are told
            standing, more = count, max(count - (self.standing if count > self.standing else 0), 1)
        if not detail.get("done"):
            return {"would": self.would.and_at(step, position, more), "standing": standing}
        name = _FIELDS.get(str(detail.get("action")))
        if not name:
            return {}
        return {name: getattr(self, name).and_at(step, position, more), "standing": standing}


_FIELDS = {"leave-out": "left_out", "lower-rate": "lowered", "stop": "stopped"}
