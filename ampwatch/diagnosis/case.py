"""A run as it is remembered and as the rules see it: its histories, folded together block by block.

The size does not grow with the run, only (by a few numbers each) with its layers and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from ampwatch.diagnosis import learning_rate, policy
from ampwatch.diagnosis.attention_scores import ScoreHistory
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.cast_history import CastHistory
from ampwatch.diagnosis.device_history import DeviceHistory
from ampwatch.diagnosis.episodes import Fall, Span
from ampwatch.diagnosis.event_history import Ledger
from ampwatch.diagnosis.findings import Advice, Standing
from ampwatch.diagnosis.guard_history import GuardHistory
from ampwatch.diagnosis.layer_history import LayerHistory
from ampwatch.diagnosis.loop_history import LoopHistory
from ampwatch.diagnosis.loss_spikes import LossSpikes
from ampwatch.diagnosis.medians import median
from ampwatch.diagnosis.nonfinite_gradient_history import NonfiniteGradients
from ampwatch.diagnosis.number_history import NumberHistory, bad_input, forward_finite, handed_on
from ampwatch.diagnosis.outlying_inputs import OutlyingInputs
from ampwatch.diagnosis.overflow_culprits import Origin, origins
from ampwatch.diagnosis.precision_history import PrecisionHistory, RoundingHistory
from ampwatch.diagnosis.rank_history import RankHistory
from ampwatch.diagnosis.rate_setup import RateLeaps, RateSetup
from ampwatch.diagnosis.restart_history import RestartHistory
from ampwatch.diagnosis.scale_history import ScaleHistory
from ampwatch.diagnosis.scale_segments import Scaler
from ampwatch.diagnosis.signals import Event, Flags, Floats, Info, Record, positive
from ampwatch.diagnosis.times import Times
from ampwatch.diagnosis.zero_gradients import ZeroHistory
from ampwatch.rows import EventKind

# torch's own default, for records that do not say.
GROWTH_INTERVAL = 2000
# What run.json says may be anything; no run is longer.
LONGEST_INTERVAL = 2.0**40
# What a run of our own probe has as its source.
NATIVE = "ampwatch"
# Sources whose columns are as their writer named them.
_TABLES = frozenset({"csv", "json", "jsonl", "parquet", "tensorboard", "wandb"})


# Columns that the learning rate reads under the same name, and under another.
_SAME = (
    "loss", "lr", "lr_base", "micro_batches", "scale", "grad_norm", "update_norm", "param_norm",
    "input_amax",
)  # fmt: skip
_RENAMED = {
    "applied_norm": "grad_norm_applied",
    "max_ratio": "max_update_ratio",
    "alignment": "update_alignment",
}


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What a record says of itself."""

    id: str
    source: str
    started_ns: int
    ranks: tuple[int, ...]
    notes: tuple[str, ...]
    marks: Mapping[str, Sequence[str]]  # how a foreign log's columns are to be read
    clean_end: bool
    last_time_ns: int | None

    @classmethod
    def of(cls, run: Record) -> RecordFacts:
        """The facts of a run as it is now."""
        info = run.info
        return cls(
            info.id, info.source, info.started_ns, tuple(run.ranks), tuple(run.notes), info.marks,
            run.clean_end, run.last_time_ns,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Observed:
    """What of the run the rows show, and how: a rule says no more than that."""

    loop: bool  # the loop itself was watched: its exact numbers, its layers, its end
    table: bool  # each column is one that the training itself wrote
    every_step: bool  # each has a row, so what lies close together is known
    loss: bool
    rate: bool
    scale: bool


# A history that is folded by the blocks alone: its line in `Case` is all that adds one.
_OWN = {"folds": "blocks"}


@dataclass(eq=False, kw_only=True)  # no slots: cached_property keeps its values in __dict__
class Case:
    """The histories and what follows from them; `copy` it before folding what may still change.

    Rules are given a finished case, which nobody changes any more.
    """

    record: RecordFacts
    scale: ScaleHistory
    numbers: NumberHistory = field(default_factory=NumberHistory)
    ledger: Ledger = field(default_factory=Ledger)
    layers: LayerHistory = field(default_factory=LayerHistory)
    scores: ScoreHistory = field(default_factory=ScoreHistory)
    rate: learning_rate.RateState = field(default_factory=learning_rate.RateState)
    batches: OutlyingInputs = field(default_factory=OutlyingInputs)
    devices: DeviceHistory = field(default_factory=DeviceHistory)
    restarts: RestartHistory = field(default_factory=RestartHistory)
    precision: PrecisionHistory = field(default_factory=PrecisionHistory, metadata=_OWN)
    casts: CastHistory = field(default_factory=CastHistory, metadata=_OWN)
    ranks: RankHistory = field(default_factory=RankHistory, metadata=_OWN)
    loop: LoopHistory = field(default_factory=LoopHistory, metadata=_OWN)
    zeros: ZeroHistory = field(default_factory=ZeroHistory, metadata=_OWN)
    leaps: RateLeaps = field(default_factory=RateLeaps, metadata=_OWN)
    unskipped: NonfiniteGradients = field(default_factory=NonfiniteGradients, metadata=_OWN)
    rises: LossSpikes = field(default_factory=LossSpikes, metadata=_OWN)
    rounding: RoundingHistory = field(default_factory=RoundingHistory, metadata=_OWN)
    setup: RateSetup = field(default_factory=RateSetup, metadata=_OWN)
    guard: GuardHistory = field(default_factory=GuardHistory, metadata=_OWN)

    # --- folding ---------------------------------------------------------------------------------

    def copy(self) -> Case:
        """The same, to be folded on apart."""
        scale, numbers, ledger = self.scale.copy(), self.numbers.copy(), self.ledger.copy()
        return replace(self, scale=scale, numbers=numbers, ledger=ledger)

    def fold(self, block: Block) -> None:
        """Take in the next block of the run."""
        forward, makers = forward_finite(block), handed_on(block)
        bad = bad_input(block) & ~block.entries_of(list(makers))
        overflows: list[tuple[int, Event | Origin]] = [
            (block.position(event.step), event)
            for event in block.events
            if event.kind == EventKind.OVERFLOW.value
        ]
        overflows += [(block.position(origin.step), origin) for origin in origins(block)]
        near = self.scale.fold(block, sorted(overflows, key=lambda pair: pair[0]))
        self.numbers.fold(block, forward, bad)
        self.ledger.fold(block, frozenset(block.step[bad].tolist()), makers)
        judged = np.asarray(~block.skipped & ~block.left_out & near)
        self.layers = self.layers.fold(block, judged)
        self.scores = self.scores.fold(block, judged)
        for one in fields(self):
            if one.metadata == _OWN:
                setattr(self, one.name, getattr(self, one.name).fold(block))
        rows = rate_rows(block, forward)
        self.batches = self.batches.fold(self.rate.tail, rows, block.start)
        self.restarts = self.restarts.fold(self.rate, rows, block)
        self.rate = learning_rate.fold(self.rate, rows)

    def finish(self) -> None:
        """Close what is open: the record ends here, as far as anyone knows."""
        self.scale.finish()
        self.restarts = self.restarts.finished(self.rate)
        self.rises = self.rises.finished()
        setup = self.setup.shown(stopped=self.loop_stopped)
        self.rate = learning_rate.comparable(replace(self.rate, setup=setup))

    # --- what the rules ask ----------------------------------------------------------------------

    @cached_property
    def observed(self) -> Observed:
        """What the record lets one see, as its columns are to be read."""
        scale, numbers = self.scale, self.numbers
        loop = self.record.source == NATIVE
        numbered = "placed" not in self.record.marks.get("step", ())
        return Observed(
            loop=loop,
            table=self.record.source in _TABLES,
            every_step=loop or (numbered and scale.steps <= scale.entries),
            loss="loss" in numbers.told,
            rate="lr" in numbers.told,
            scale=scale.has_scaler,
        )

    @cached_property
    def judgement(self) -> learning_rate.Judgement:
        """What is known of the learning rate; made once, when a rule first asks."""
        return learning_rate.judge_rate(self.rate)

    @cached_property
    def rate_advice(self) -> Advice:
        """What the rate's own numbers advise, before any finding is asked."""
        return learning_rate.advise(self.rate, self.judgement)

    @property
    def loop_stopped(self) -> bool:
        """Whether the loop ended with a step that it left out; while it runs it may go on."""
        last = self.unskipped.left_out_last.last_step
        return last is not None and (bool(self.ranks.ended) or self.ledger.is_over_by(last))

    @property
    def is_searching(self) -> bool:
        """Whether no step was accepted yet."""
        return self.scale.first_accepted is None

    @property
    def is_one_line(self) -> bool:
        """Whether the record holds one step only, and no scale: nothing can be judged."""
        return self.numbers.steps <= 1 and not self.observed.scale

    @property
    def final_scale(self) -> float | None:
        """The scale that the record ends with."""
        final = self.scale.final_scale
        return final if self.scale.has_scaler and not math.isnan(final) else None

    @property
    def has_live_scaler(self) -> bool:
        """Whether a scaler is there that may skip a step; bf16 logs print a constant scale of 1."""
        scale = self.scale
        idle = scale.first_scale == scale.final_scale == 1.0 and not scale.skips
        return scale.has_scaler and not idle

    @property
    def loop_tells_skips(self) -> bool:
        """Whether the skips are the loop's own: a table's column of them, and no scale at all.

        Only a scaler begins with a search; a text log's lines on overflows are a scaler's words.
        """
        if not self.observed.table or self.scale.has_scaler:
            return False
        return not (self.scale.startup_skips or self.record.marks.get("skipped"))

    @cached_property
    def standing_fall(self) -> Fall | None:
        """The first collapse from which the scale has not regrown."""
        final = self.final_scale
        if final is None:
            return None
        below = 2.0**-policy.COLLAPSE_OCTAVES
        fall = next((fall for fall in self.scale.falls if final <= fall.level * below), None)
        return None if fall is None or self.learnt_on(fall.first_step, fall.end_step) else fall

    def learnt_on(self, first_step: int, end_step: int) -> bool:
        """Whether the loss went on below all that stood before a fall of the scale.

        Where a row tells of a window, how close together the skips were is not known, and a scale
        that came down row by row while the loss fell has found its level.
        """
        established = self.scale.run_length >= self.scale.scaler.established_steps
        if self.observed.every_step or not established:
            return False
        return fell_on(self.rate, first_step, end_step)

    @property
    def teeth(self) -> Span:
        """The skips that growth explains; what follows a collapse is part of it."""
        return (self.standing_fall or self.scale).teeth

    @property
    def loose(self) -> Span:
        """The skips that nothing explains, before any collapse."""
        return (self.standing_fall or self.scale).loose

    def standing(self, times: Times) -> Standing:
        """How what was seen then stands at the end of the record."""
        if self.stands(times):
            return Standing.STANDS
        return Standing.HEALS if self._brought_about_the_fall(times) else Standing.HEALED

    def stands(self, times: Times) -> bool:
        """Whether what was seen last then still stands at the end of the record."""
        entries = self.scale.entries
        apart = 1 if self.observed.every_step else self.scale.steps / entries
        recent = max(policy.RECENT_STEPS / apart, policy.LOSS_LINES, entries * policy.RECENT_SHARE)
        return times.last_position >= entries - recent

    def weighs(self, times: Times) -> bool:
        """Whether it still stands, or the fall of the scale that it brought about does."""
        return self.standing(times).weighs

    def _brought_about_the_fall(self, times: Times) -> bool:
        fall, first, last = self.standing_fall, times.first_step, times.last_step
        if first is None or last is None:
            return False
        if self.is_searching:  # nothing was ever accepted: what made most of the skips did it
            search = self.scale.search
            return 0 < search.skips <= 2 * times.count and first <= (search.last_step or 0)
        if fall is None:
            return False
        meets = first <= fall.end_step and last >= fall.first_step
        return meets and 2 * times.count >= fall.skips

    @property
    def lone_rank(self) -> int | None:
        """The rank that brought every overflow of which all ranks tell, if it is one alone."""
        joint = self.scale.culprits.joint
        alone = [rank for rank, one in joint.alone.items() if one.times.count == joint.judged]
        return alone[0] if alone and joint.judged else None


def new_case(run: Record) -> Case:
    """Nothing remembered yet."""
    return Case(record=RecordFacts.of(run), scale=ScaleHistory(_scaler(run.info)))


def _scaler(info: Info) -> Scaler:
    told = {name: positive(value) for name, value in info.scaler.items()}
    interval = min(told.get("growth_interval") or GROWTH_INTERVAL, LONGEST_INTERVAL)
    return Scaler(
        initial=told.get("init_scale"),
        growth_factor=told.get("growth_factor") or 2.0,
        growth_interval=max(1, int(interval)),
        floor=told.get("min_scale"),
        backoff_factor=told.get("backoff_factor") or 0.5,
        hysteresis=int(min(told.get("hysteresis") or 1.0, 16.0)),
    )


def rate_rows(block: Block, forward: Flags) -> learning_rate.Rows:
    """One row a step; that a number is not finite is said of the loss and the forward.

    A step that the loop left out is a skip: its loss was not finite, whether it is recorded or not.
    """
    columns = block.columns
    return learning_rate.rows_of(
        step=block.step,
        skipped=block.skipped | block.left_out,
        loss_bad=(block.loss_known & ~np.isfinite(columns["loss"])) | block.left_out,
        act_amax=_largest_activations(block),
        forward_bad=forward == 0,
        **{name: columns[name] for name in _SAME},
        **{name: columns[source] for name, source in _RENAMED.items()},
    )


def _largest_activations(block: Block) -> Floats:
    """Each step's largest activation where it was sampled."""
    layers = block.layers
    at, there = block.layer_entries
    amax = layers.numbers["act_amax"]
    keep = there & np.isfinite(amax)
    result = np.full(len(block), -np.inf)
    np.maximum.at(result, at[keep], amax[keep])
    return result


def fell_on(rate: learning_rate.RateState, first_step: int, end_step: int) -> bool:
    """Whether the last losses, after `end_step`, are below all those before `first_step`."""
    parts = (rate.head, rate.points.rows, rate.tail)
    step = np.concatenate([rows.of("step") for rows in parts])
    loss = np.concatenate([rows.of("loss") for rows in parts])
    known = np.isfinite(loss)
    before, after = loss[known & (step < first_step)], loss[known & (step > end_step)]
    if not len(before) or len(after) < policy.LOSS_LINES:
        return False
    return bool(median(after[-policy.LOSS_LINES :]) < before.min())
