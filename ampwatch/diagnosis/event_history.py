"""The events of a run, counted, and the few that rules read one by one; and what a guard did."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.event import Event
from ampwatch.diagnosis.overflow_culprits import LayerOverflows, count_for_layer
from ampwatch.diagnosis.times import Times
from ampwatch.rows import EventKind

# torch's own words for mistakes in the loop; whether they ended training or were caught.
NO_GRADIENTS = "No inf checks were recorded for this optimizer"
FLOAT16_PARAMETERS = "Attempting to unscale FP16 gradients"
NO_GRAPH = "does not require grad and does not have a grad_fn"
# The words with which other frameworks give up at their lowest scale.
AT_FLOOR = ("inimum loss scale reached", "loss scale already at minimum", "grad_scale is too small")
TELLING_TEXTS = (NO_GRADIENTS, NO_GRAPH, FLOAT16_PARAMETERS)

_CHANGES = frozenset(
    kind.value
    for kind in (
        EventKind.STATE_LOADED,
        EventKind.OPTIMIZER_REPLACED,
        EventKind.SCALER_REPLACED,
        EventKind.BATCH_SIZE_CHANGED,
        EventKind.LR_CHANGED,
    )
)
_MOST_CHANGES = 64
_MOST_KEPT = 16
_MOST_CODES = 64


@dataclass(slots=True)
class EventHistory:
    """The events of a run, counted, and the few that rules read one by one."""

    kinds: dict[str, Times] = field(default_factory=dict)
    misuse: dict[str, Event] = field(default_factory=dict)  # the first of each code
    raised: dict[str, Event] = field(default_factory=dict)  # the first with each telling text
    started: Event | None = None  # the latest begin
    optimizers: tuple[Event, ...] = ()  # as first described, a few
    changes: tuple[Event, ...] = ()  # the last few that may make a run jump
    fatal: tuple[Event, ...] = ()  # the last few exceptions that ended training
    gap_reasons: frozenset[str] = frozenset()
    gap_ranks: frozenset[int] = frozenset()
    overflows: int = 0  # one a step, however many ranks report it
    overflow_step: int | None = None
    forward: dict[str, LayerOverflows] = field(default_factory=dict)  # in order of first sight
    unnamed_forward: Times = field(default_factory=Times)  # the loop guarded it; no known layer
    weights: Event | None = None  # the first overflow that was traced to a weight

    def copy(self) -> EventHistory:
        """An independent copy of the event history."""
        made = copy.copy(self)
        made.kinds, made.misuse = dict(self.kinds), dict(self.misuse)
        made.forward, made.raised = dict(self.forward), dict(self.raised)
        return made

    def of(self, kind: EventKind) -> Times:
        """How often events of this kind were recorded, and when."""
        return self.kinds.get(kind.value, Times())

    def is_over_by(self, step: int) -> bool:
        """Whether an exception ended training at this step or later."""
        return any(event.step >= step for event in self.fatal)

    def fold(self, block: Block, bad_inputs: frozenset[int], makers: Mapping[int, str]) -> None:
        """Add a block's events; `makers` are layers that made another model's bad input."""
        known = {kind.value for kind in EventKind}
        for event in block.events:
            if event.kind in known:
                position = block.position(event.step)
                times = self.kinds.get(event.kind, Times())
                self.kinds[event.kind] = times.and_at(event.step, position)
                maker = makers.get(event.step) if event.is_traced_to("input") else None
                told = event if maker is None else event.retraced("forward", maker)
                self._take(told, position, bad_inputs)

    def _take(self, event: Event, position: int, bad_inputs: frozenset[int]) -> None:
        if event.kind == EventKind.OVERFLOW.value:
            self._take_overflow(event, position, bad_inputs)
        elif event.kind == EventKind.MISUSE.value and len(self.misuse) < _MOST_CODES:
            self.misuse.setdefault(str(event.detail.get("code")), event)
        elif event.kind == EventKind.EXCEPTION.value:
            self._take_exception(event)
        elif event.kind == EventKind.STARTED.value:
            self.started = event
        elif event.kind == EventKind.OPTIMIZER.value:
            self.optimizers = (*self.optimizers, event)[:_MOST_KEPT]
        elif event.kind in _CHANGES and not _is_warmup(event, position):
            self.changes = (*self.changes, event)[-_MOST_CHANGES:]
        elif event.kind == EventKind.GAP.value:
            reason = {str(event.detail["reason"])} if event.detail.get("reason") else set()
            self.gap_reasons = _few(self.gap_reasons | reason, self.gap_reasons)
            self.gap_ranks = _few(self.gap_ranks | {event.rank}, self.gap_ranks)

    def _take_exception(self, event: Event) -> None:
        if event.detail.get("fatal", True):
            self.fatal = (*self.fatal, event)[-_MOST_KEPT:]
        message = str(event.detail.get("message", ""))
        for text in TELLING_TEXTS:
            if text in message:
                self.raised.setdefault(text, event)

    def _take_overflow(self, event: Event, position: int, bad_inputs: frozenset[int]) -> None:
        self.overflows += event.step != self.overflow_step
        self.overflow_step = event.step
        direction = event.detail.get("direction")
        untold = event.is_guarded and event.layer is None and direction in {"forward", None}
        if untold and event.step not in bad_inputs:
            self.unnamed_forward = self.unnamed_forward.and_at(event.step, position)
        elif direction == "forward" and event.step not in bad_inputs:
            count_for_layer(self.forward, event, position)
        elif direction == "weights" and self.weights is None:
            self.weights = event


def _few(more: frozenset[Any], before: frozenset[Any]) -> frozenset[Any]:
    return more if len(more) <= _MOST_KEPT else before


def _is_warmup(event: Event, position: int) -> bool:
    """Whether an event about the rate comes so early that it belongs to the warm-up."""
    return event.kind == EventKind.LR_CHANGED.value and position < thresholds.JUMP_LEAST_POSITION


@dataclass(frozen=True, slots=True)
class GuardHistory:
    """What the guard did, would have done, and had to let pass; ranks act alike and count once."""

    left_out: Times = field(default_factory=Times)
    would: Times = field(default_factory=Times)  # a dry run's actions
    capped: Times = field(default_factory=Times)  # outlying steps beyond its cap, as recorded
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
