"""What earlier runs with the same structure have shown: which rates were stable, which failed.

The *signature* of a run is a short text made of its structure, by which similar runs are found. It
includes the layers (kinds and shapes of weights), the optimizer with the settings that affect which
rate is stable, the precision and the batch. Names, rates, seeds and the number of processes do not
count: four processes with batches of 8 are like one with 32.

Only a failure caused by the rate counts against a rate. A stable run proves its rate for the number
of steps it ran. It proves nothing if another run failed at that rate or a lower one, but later.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampwatch.diagnosis.findings import Diagnosis, Severity, Verdict
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.advice import Action
from ampwatch.diagnosis.record import detail_of
from ampwatch.diagnosis.value_text import count_text
from ampwatch.rows import EventKind, Table
from ampwatch.store import Run

# Raise it when the same run gets another text: texts of two versions are never alike.
VERSION = 1

# An optimizer's settings that affect which rate is stable. Weight decay has little effect, and how
# the step is computed (fused, foreach) none.
_SETTINGS = (
    "betas", "momentum", "dampening", "nesterov", "alpha", "rho", "centered", "amsgrad", "eps",
)  # fmt: skip
_INFO = (
    "name", "order", "kind", "trainable", "weight_shape", "rows", "param_dtype", "input_format",
    "weight_format", "grad_format",
)  # fmt: skip
_FORMATS = ("input_format", "weight_format", "grad_format")
_SHARDED = "FSDP"  # fully_shard puts this before the class of what it shards
_FIRST_STEPS = 64  # rows in which the batch and autocast are looked for
_FIRST_EVENTS = 4096
_MOST_VALUES, _MOST_LETTERS = 4, 40  # of a setting, which in a damaged log may be anything

# In octaves. Batches are taken for the same up to a factor of 1.4, which moves the highest stable
# rate by less than a step of the usual sweep; runs up to a factor of 4 apart are near.
SAME_BATCH, NEAR = 0.5, 2.0

_Layer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """`key` is one structure, `family` the same at any width and depth; sizes are in octaves."""

    key: str
    family: str
    width: float  # the median of the longer side of the weight matrices
    depth: float  # how many layers have weights
    batch: float | None  # rows of the first matrix product of one step, over all processes

    @property
    def text(self) -> str:
        """The signature as text, as it is stored."""
        sizes = (self.width, self.depth, self.batch)
        sizes_text = ",".join("" if size is None else f"{size:.2f}" for size in sizes)
        return f"{VERSION}:{self.key}:{self.family}:{sizes_text}"

    @classmethod
    def of_text(cls, text: str | None) -> Signature | None:
        """Read a signature from its text; None if it is none, or of another version."""
        try:
            version, key, family, sizes_text = (text or "").split(":")
            width, depth, batch = sizes_text.split(",")
            if version != str(VERSION):
                return None
            return cls(key, family, float(width), float(depth), float(batch) if batch else None)
        except ValueError:
            return None

    def is_alike(self, other: Signature) -> bool:
        """Whether two runs have the same signature, with batches of about the same size."""
        return self.key == other.key and _close(self.batch, other.batch, SAME_BATCH)

    def is_near(self, other: Signature) -> bool:
        """Whether the other run has the same structure at another width, depth or batch."""
        sizes = ((self.width, other.width), (self.depth, other.depth), (self.batch, other.batch))
        within = all(_close(own, another, NEAR) for own, another in sizes)
        return within and self.family == other.family and not self.is_alike(other)


def signature_of(run: Run) -> Signature | None:
    """The signature of a run, from its lowest rank; None if its layers or optimizer are unknown."""
    rank = min(run.ranks, default=0)
    layers = _layers(run.logged(Table.LAYER_INFO, _INFO, rank).to_pylist())
    weighted = [layer for layer in layers if layer["weight_shape"]]
    optimizers = list(_optimizers(run, rank))
    if not weighted or not optimizers:
        return None
    autocast, micro_batches = _first_steps(run, rank)
    formats = {str(layer[name]) for layer in weighted for name in _FORMATS if layer[name]}
    dtype = _most_frequent(layer["param_dtype"] for layer in weighted)
    precision = [autocast, dtype, sorted(formats)]
    parts = Counter(_part(layer) for layer in [*weighted, *_bare_leaves(layers)])
    kinds = sorted({(kind, len(shape), trainable) for kind, shape, trainable in parts})
    return Signature(
        key=_digest([sorted(parts.items()), optimizers, precision]),
        family=_digest([kinds, optimizers, precision]),
        width=math.log2(_width(weighted)),
        depth=math.log2(len(weighted)),
        batch=_batch(weighted, micro_batches, run.info.world_size),
    )


def _close(size: float | None, other: float | None, octaves: float) -> bool:
    return size is other if size is None or other is None else abs(size - other) <= octaves


def _layers(rows: Iterable[_Layer]) -> list[_Layer]:
    """Each layer as first recorded, for the signature: later changes do not belong to it."""
    layers: dict[str, dict[str, Any]] = {}
    for row in rows:
        layer = layers.setdefault(_name(row), dict.fromkeys(_INFO))
        layer.update({name: value for name, value in row.items() if layer[name] is None})
    return list(layers.values())


def _bare_leaves(layers: Sequence[_Layer]) -> Iterator[_Layer]:
    """The layers without weights that the signature counts: activations, attention, pooling."""
    above = {_name(layer).rpartition(".")[0] for layer in layers} | {"(root)"}
    yield from (x for x in layers if not x["weight_shape"] and _name(x) not in above)


def _name(layer: _Layer) -> str:
    return layer["name"] or ""


def _part(layer: _Layer) -> tuple[str, tuple[int, ...], bool]:
    kind = str(layer["kind"] or "").removeprefix(_SHARDED)
    return kind, tuple(layer["weight_shape"] or ()), layer["trainable"] is not False


def _optimizers(run: Run, rank: int) -> Iterator[list[Any]]:
    """The class and settings of each optimizer, for the signature."""
    rows = run.logged(Table.EVENTS, ("kind", "detail"), rank, most=_FIRST_EVENTS).to_pylist()
    numbers: set[Any] = set()
    for row in rows:
        detail = detail_of(row["detail"]) if row["kind"] == EventKind.OPTIMIZER.value else {}
        number = str(detail.get("optimizer", 0))
        if not detail.get("class") or number in numbers:
            continue
        numbers.add(number)
        groups = detail.get("groups")
        first = groups[0] if isinstance(groups, list) and groups else {}
        first = first if isinstance(first, Mapping) else {}
        yield [str(detail["class"]), *([name, _said(first.get(name))] for name in _SETTINGS)]


def _said(value: Any) -> Any:
    """A setting as the signature compares it: numbers with three digits, other values as text."""
    if isinstance(value, list):
        return [_said(str(item)) for item in value[:_MOST_VALUES]]
    try:
        return "" if value is None else f"{float(value):.3g}"
    except (TypeError, ValueError, OverflowError):
        return str(value)[:_MOST_LETTERS]


def _first_steps(run: Run, rank: int) -> tuple[str, float]:
    """For the signature, autocast's data type and the micro-batches, from the first steps."""
    names = ("autocast_dtype", "micro_batches")
    rows = run.logged(Table.STEPS, names, rank, most=_FIRST_STEPS).to_pylist()
    autocast = next((row["autocast_dtype"] for row in rows if row["autocast_dtype"]), "")
    counts = [row["micro_batches"] for row in rows if (row["micro_batches"] or 0) > 0]
    return autocast, float(_most_frequent(counts) or 1)


def _most_frequent(values: Iterable[Any]) -> Any:
    """The most frequent value among layers or first steps, for the signature; None if unknown."""
    counts = Counter(value for value in values if value is not None)
    return max(counts, key=lambda value: (counts[value], str(value)), default=None)


def _width(layers: Sequence[_Layer]) -> float:
    shapes = [layer["weight_shape"] for layer in layers]
    matrices = [shape for shape in shapes if len(shape) > 1] or shapes
    sides = sorted(max(shape[:2]) for shape in matrices)
    return float(max(1, sides[len(sides) // 2]))


def _batch(layers: Sequence[_Layer], micro_batches: float, processes: int) -> float | None:
    with_rows = [layer for layer in layers if (layer["rows"] or 0) > 0]
    if not with_rows:
        return None
    first = min(with_rows, key=lambda layer: math.inf if layer["order"] is None else layer["order"])
    return math.log2(first["rows"] * micro_batches * max(1, processes))


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


_CALM = frozenset((Verdict.HEALTHY.value, Verdict.CUT_OFF.value))
_LEFT = frozenset((Action.KEEP.value, Action.RAISE.value))


class Outcome(str, enum.Enum):
    """What an earlier run shows about its learning rate."""

    STABLE = "stable"
    FAILING = "failing"  # because of its rate
    NEITHER = "neither"  # failing for another reason, too short to be judged, or in between


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier run. `rate` is its base rate; of a stable run, the highest that it reached."""

    id: str
    name: str
    started_ns: int
    signature: Signature | None
    outcome: Outcome
    rate: float | None
    steps: int  # that it held: until it ended, or failed


@dataclass(frozen=True, slots=True)
class LessonOfEarlierRuns:
    """Which rates held and which failed in earlier runs; None where none of them shows it."""

    runs: tuple[EarlierRun, ...]
    stable_to: EarlierRun | None  # the highest rate that held
    failing_from: EarlierRun | None  # the lowest that failed
    are_alike: bool = True  # else only near: another width, depth or batch

    @property
    def text(self) -> str:
        """The lesson of the earlier runs as a sentence."""
        how = "alike" if self.are_alike else "of the same kind at another width, depth or batch"
        count = count_text(len(self.runs), "earlier run")
        return f"{count} {how}: {self._rates()}{self._others()}."

    @property
    def rate_known_to_fail(self) -> float | None:
        """The lowest rate that failed in an alike earlier run; None if another one held it."""
        if not self.are_alike or _of(self.failing_from) <= _of(self.stable_to):
            return None
        return _of(self.failing_from)

    def _rates(self) -> str:
        held, failed = self.stable_to, self.failing_from
        if held is None and failed is None:
            return "none tells which learning rate holds"
        if held is None:
            return f"failing from {_rate(failed)} on, none stable"
        stable = f"stable up to {_rate(held)} ({count_text(held.steps, 'step')})"
        if failed is None:
            return f"{stable}, none failed by its learning rate"
        if _of(failed) > _of(held):
            return f"{stable}, failing from {_rate(failed)} on"
        return f"{stable}, yet others failed from {_rate(failed)} on"

    def _others(self) -> str:
        count = sum(run.outcome is Outcome.NEITHER for run in self.runs)
        none = count == len(self.runs)
        return f"; {count:,} did not tell" if count and not none else ""


def lesson_of(
    signature: Signature | None, others: Iterable[EarlierRun], *, run_id: str, started_ns: int
) -> LessonOfEarlierRuns | None:
    """The lesson of the earlier runs among these that are similar; None if none is."""
    if signature is None:
        return None
    earlier = [run for run in others if run.id != run_id and 0 < run.started_ns < started_ns]
    signed = [(run.signature, run) for run in earlier if run.signature is not None]
    alike = [run for other, run in signed if signature.is_alike(other)]
    near = [run for other, run in signed if signature.is_near(other)]
    if not alike and not near:
        return None
    return replace(_lesson(alike or near), are_alike=bool(alike))


def with_lesson(diagnosis: Diagnosis, lesson: LessonOfEarlierRuns | None) -> Diagnosis:
    """The diagnosis, its advised rate and interval below what failed in alike earlier runs.

    A rate that held bounds nothing: with it the interval held the limit far less often. Findings
    and verdict come from the run's own rows: they are the same whatever ran before.
    """
    advice, failed = diagnosis.learning_rate, None if lesson is None else lesson.rate_known_to_fail
    now, at, low, high = advice.current, advice.recommended, advice.low, advice.high
    if failed is None or not now or not at or not low or not high or failed >= now:
        return diagnosis
    most = failed * 2.0**-constants.BELOW_FAILED
    advised = min(at, failed * 2.0**-constants.LEAST_OCTAVES)
    below = f" The advised learning rate is below that, not {at:.3g}." if advised < at else ""
    reason = f"Earlier runs alike failed at {failed:.3g}, which bounds the interval.{below}"
    bounded = replace(
        advice,
        because=f"{advice.because} {reason}",
        recommended=advised,
        low=low if low < most else most * low / high,
        high=min(high, most),
        factor=advised / now,
        warmup_steps=None if below else advice.warmup_steps,  # it was to the old peak
    )
    return replace(diagnosis, learning_rate=bounded)


def outcome_of(verdict: str, action: str) -> Outcome:
    """What an earlier run with this verdict and advice shows about its learning rate."""
    if action == Action.LOWER.value:
        return Outcome.FAILING if verdict == Verdict.FAILING.value else Outcome.NEITHER
    is_left = verdict == Verdict.WARNING.value and action in _LEFT
    return Outcome.STABLE if verdict in _CALM or is_left else Outcome.NEITHER


def rate_told(advice_rate: float | None, group: int | None, reached: float | None) -> float | None:
    """The rate that a stable earlier run proves: what it reached, if it ended in its warm-up.

    `reached` is the highest rate of group 0; it does not apply to other groups.
    """
    if advice_rate is None or reached is None or group not in (None, 0):
        return advice_rate
    return min(advice_rate, reached)


def steps_held(diagnosis: Diagnosis) -> int:
    """How many steps an earlier run's rate held: up to the first error that stands at its end."""
    errors = [finding for finding in diagnosis.findings if finding.severity is Severity.ERROR]
    began = [finding.first_step for finding in errors if finding.first_step is not None]
    return min([diagnosis.run.steps, *(max(0, step) for step in began)])


def _lesson(runs: Sequence[EarlierRun]) -> LessonOfEarlierRuns:
    failing = [run for run in runs if run.outcome is Outcome.FAILING and run.rate]
    stable = [run for run in runs if run.outcome is Outcome.STABLE and run.rate]
    # A stable run proves nothing if it ended before the step at which another one failed.
    proven = [
        run
        for run in stable
        if not any(_of(bad) <= _of(run) and run.steps <= bad.steps for bad in failing)
    ]
    return LessonOfEarlierRuns(
        runs=tuple(runs),
        stable_to=max(proven, key=lambda run: (_of(run), run.steps), default=None),
        failing_from=min(failing, key=_of, default=None),
    )


def _of(run: EarlierRun | None) -> float:
    return 0.0 if run is None else run.rate or 0.0


def _rate(run: EarlierRun | None) -> str:
    return f"{run.rate:.3g}" if run is not None and run.rate is not None else ""
