"""The events of a run, counted, and the few that rules read one by one.

Also who caused overflows, by the layer that they name and by the rank they came from, and what a
guard did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block, Times
from ampwatch.diagnosis.record import Event
from ampwatch.rows import EventKind

# A model may have more layers than this; those that overflow first are kept.
MOST_LAYERS = 1024
_MOST_RANKS = 64
LOSS = "(loss)"  # where an event's bound ends, if that is not a layer
# A rank is a culprit if chance alone makes it overflow so often with less than this probability.
RANK_CHANCE = 0.01

# No scale can help against these, so neither chance nor growth causes them.
_BEFORE_THE_SCALE = frozenset(("forward", "input", "loss"))


@dataclass(frozen=True, slots=True)
class CulpritOverflows:
    """The overflows of one culprit: of a layer that they name, or of a rank that they came from."""

    layer: str  # the one that all of them name; empty where there is none
    times: Times
    ranks: frozenset[int]
    bounds: int  # of them, how many only bound the layer
    at_loss: int  # of those, how many between the layer and the loss
    own_code: tuple[str, str] | None  # of a container: the layers around the place
    nans: int  # how many made nan, and not inf
    before_scale: int  # how many times loss or activations were not finite

    @classmethod
    def of(cls, event: Event, position: int) -> CulpritOverflows:
        """A single overflow event."""
        detail, bound = event.detail, event.detail.get("exact") is False
        after, before = detail.get("from"), detail.get("to")
        return cls(
            layer=event.layer or "",
            times=Times().and_at(event.step, position),
            ranks=frozenset({event.rank}),
            bounds=int(bound),
            at_loss=int(bound and before == LOSS),
            own_code=(str(after), str(before)) if after and before and not bound else None,
            nans=int(detail.get("value") == "nan"),
            before_scale=int(str(detail.get("direction")) in _BEFORE_THE_SCALE),
        )

    @property
    def is_bound(self) -> bool:
        """Whether every overflow only bounds the culprit, and none names the layer for certain."""
        return self.bounds == self.times.count

    @property
    def is_at_loss(self) -> bool:
        """Whether every overflow leaves open whether the layer or the loss caused it."""
        return self.at_loss == self.times.count

    def joined(self, later: CulpritOverflows) -> CulpritOverflows:
        """The overflows of a culprit and later ones of it, together."""
        ranks = self.ranks | later.ranks
        return CulpritOverflows(
            layer=self.layer if self.layer == later.layer else "",
            times=self.times.joined(later.times),
            ranks=ranks if len(ranks) <= _MOST_RANKS else self.ranks,
            bounds=self.bounds + later.bounds,
            at_loss=self.at_loss + later.at_loss,
            own_code=self.own_code or later.own_code,
            nans=self.nans + later.nans,
            before_scale=self.before_scale + later.before_scale,
        )


_Key = TypeVar("_Key", str, int)
_Culprits: TypeAlias = "Mapping[_Key, CulpritOverflows]"


def joined_culprits(first: _Culprits[_Key], later: _Culprits[_Key]) -> _Culprits[_Key]:
    """The overflows of each layer, or of each rank, and later ones together."""
    both = dict(first)
    for key, overflows in later.items():
        if key in both:
            both[key] = both[key].joined(overflows)
        elif len(both) < MOST_LAYERS:
            both[key] = overflows
    return both


def _of_layer(event: Event, position: int) -> _Culprits[str]:
    """An overflow event as one of the layer that it names."""
    return {} if event.layer is None else {event.layer: CulpritOverflows.of(event, position)}


@dataclass(frozen=True, slots=True)
class JointOverflows:
    """Where overflows that all ranks reported came from: one rank alone, or joining the ranks.

    Ranks add up their gradients, so an overflow on one is an overflow on all. The event of each
    rank says whether its own gradients were finite before.
    """

    judged: int = 0
    ranks: int = 0  # how many there are at most
    alone: _Culprits[int] = field(default_factory=dict)
    joining: Times = field(default_factory=Times)

    def joined(self, later: JointOverflows) -> JointOverflows:
        """The counts of culprits so far and later ones, together."""
        return JointOverflows(
            self.judged + later.judged,
            max(self.ranks, later.ranks),
            joined_culprits(self.alone, later.alone),
            self.joining.joined(later.joining),
        )

    def is_chance(self, count: int) -> bool:
        """Whether so many overflows from one rank are mere chance, and make it no culprit.

        By Chernoff's bound on the tail of the binomial, times the number of ranks it might have
        been.
        """
        share = count / max(1, self.judged)
        expected = 1.0 / max(2, self.ranks)
        if share <= expected:
            return True
        surprise = share * math.log(share / expected)
        if share < 1.0:
            surprise += (1.0 - share) * math.log((1.0 - share) / (1.0 - expected))
        return self.ranks * math.exp(-self.judged * surprise) > RANK_CHANCE


def overflows_of(block: Block) -> list[tuple[int, Event | JointOverflows]]:
    """The overflows of a block with their positions: each event, and what all ranks' events say.

    A step is judged only if every rank has reported.
    """
    overflows: list[tuple[int, Event | JointOverflows]] = []
    by_step: dict[int, dict[int, Event]] = {}
    for event in block.events:
        if event.kind == EventKind.OVERFLOW.value:
            overflows.append((block.position(event.step), event))
            if "own_finite" in event.detail:
                by_step.setdefault(event.step, {})[event.rank] = event
    for step, events in by_step.items():
        ranks = 1 + sum(bool((rows.step == step).any()) for rows in block.others.values())
        if len(events) >= max(2, ranks):
            position = block.position(step)
            overflows.append((position, _joint_overflow(step, position, events)))
    return sorted(overflows, key=lambda pair: pair[0])


def _joint_overflow(step: int, position: int, events: Mapping[int, Event]) -> JointOverflows:
    bad = [event for event in events.values() if event.detail["own_finite"] is False]
    if len(bad) == 1:
        alone = {bad[0].rank: CulpritOverflows.of(bad[0], position)}
        return JointOverflows(1, len(events), alone)
    exact = all(event.detail.get("own_exact") is True for event in events.values())
    joining = Times().and_at(step, position) if exact and not bad else Times()
    return JointOverflows(1, len(events), joining=joining)


@dataclass(frozen=True, slots=True)
class OverflowCulprits:
    """Who caused overflows that nothing else explains: layers of the backward pass, or ranks.

    It also counts the events that only bound the layer.
    """

    layers: _Culprits[str] = field(default_factory=dict)
    bounds: int = 0
    joint: JointOverflows = field(default_factory=JointOverflows)

    def and_overflow(self, overflow: Event | JointOverflows, position: int) -> OverflowCulprits:
        """These culprits and that of one event, or of what all ranks' events of a step say."""
        if isinstance(overflow, JointOverflows):
            return OverflowCulprits(self.layers, self.bounds, self.joint.joined(overflow))
        layers, bounds = self.layers, self.bounds + (overflow.detail.get("exact") is False)
        if overflow.detail.get("direction") == "backward":
            layers = joined_culprits(layers, _of_layer(overflow, position))
        return OverflowCulprits(layers, bounds, self.joint)

    def joined(self, later: OverflowCulprits) -> OverflowCulprits:
        """These culprits and later ones, together."""
        if later is NO_CULPRITS or self is NO_CULPRITS:
            return self if later is NO_CULPRITS else later
        return OverflowCulprits(
            joined_culprits(self.layers, later.layers),
            self.bounds + later.bounds,
            self.joint.joined(later.joint),
        )


NO_CULPRITS = OverflowCulprits()

# torch's own words for mistakes in the loop; whether they ended training or were caught.
NO_GRADIENTS = "No inf checks were recorded for this optimizer"
FLOAT16_PARAMETERS = "Attempting to unscale FP16 gradients"
NO_GRAPH = "does not require grad and does not have a grad_fn"
# The words with which other frameworks give up at their lowest scale.
AT_FLOOR = ("inimum loss scale reached", "loss scale already at minimum", "grad_scale is too small")
TELLING_TEXTS = (NO_GRADIENTS, NO_GRAPH, FLOAT16_PARAMETERS)

_OF_RATE = EventKind.LR_CHANGED.value
_CHANGES = frozenset(
    (
        EventKind.STATE_LOADED.value,
        EventKind.OPTIMIZER_REPLACED.value,
        EventKind.SCALER_REPLACED.value,
        EventKind.BATCH_SIZE_CHANGED.value,
        _OF_RATE,
    )
)
_MOST_CHANGES = 64
_MOST_KEPT = 16
_MOST_CODES = 64


@dataclass(slots=True)
class EventHistory:
    """The events of a run, counted, and the few that rules read one by one.

    Its fields are set anew and never changed in place, so that a shallow copy is independent.
    """

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
    forward: _Culprits[str] = field(default_factory=dict)  # in order of first sight
    unnamed_forward: Times = field(default_factory=Times)  # the loop guarded it; no known layer
    weights: Event | None = None  # the first overflow that was traced to a weight

    def of(self, kind: EventKind) -> Times:
        """How often events of this kind were recorded, and when."""
        return self.kinds.get(kind.value, Times())

    def is_over_by(self, step: int) -> bool:
        """Whether an exception ended training at this step or later."""
        return any(event.step >= step for event in self.fatal)

    def fold(self, block: Block, bad_inputs: frozenset[int], makers: Mapping[int, str]) -> None:
        """Add a block's events; `makers` are layers that made another model's bad input."""
        kinds = {kind.value for kind in EventKind}
        for event in block.events:
            if event.kind in kinds:
                position = block.position(event.step)
                times = self.kinds.get(event.kind, Times()).and_at(event.step, position)
                self.kinds = {**self.kinds, event.kind: times}
                maker = makers.get(event.step) if event.is_traced_to("input") else None
                meant = event if maker is None else event.retraced("forward", maker)
                self._take(meant, position, bad_inputs)

    def _take(self, event: Event, position: int, bad_inputs: frozenset[int]) -> None:
        if event.kind == EventKind.OVERFLOW.value:
            self._take_overflow(event, position, bad_inputs)
        elif event.kind == EventKind.MISUSE.value and len(self.misuse) < _MOST_CODES:
            code = str(event.detail.get("code"))
            self.misuse = {**self.misuse, code: self.misuse.get(code, event)}
        elif event.kind == EventKind.EXCEPTION.value:
            self._take_exception(event)
        elif event.kind == EventKind.STARTED.value:
            self.started = event
        elif event.kind == EventKind.OPTIMIZER.value:
            self.optimizers = (*self.optimizers, event)[:_MOST_KEPT]
        elif event.kind in _CHANGES:
            # A learning rate that changes so early belongs to the warm-up.
            if event.kind != _OF_RATE or position >= thresholds.JUMP_LEAST_POSITION:
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
                self.raised = {**self.raised, text: self.raised.get(text, event)}

    def _take_overflow(self, event: Event, position: int, bad_inputs: frozenset[int]) -> None:
        self.overflows += event.step != self.overflow_step
        self.overflow_step = event.step
        direction = event.detail.get("direction")
        untold = event.is_guarded and event.layer is None and direction in {"forward", None}
        if untold and event.step not in bad_inputs:
            self.unnamed_forward = self.unnamed_forward.and_at(event.step, position)
        elif direction == "forward" and event.step not in bad_inputs:
            self.forward = joined_culprits(self.forward, _of_layer(event, position))
        elif direction == "weights" and self.weights is None:
            self.weights = event


def _few(more: frozenset[Any], before: frozenset[Any]) -> frozenset[Any]:
    return more if len(more) <= _MOST_KEPT else before


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
        history = self
        for event in block.events:
            if event.kind == EventKind.GUARD.value:
                history = history._and(event, block.position(event.step))
        return history

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
