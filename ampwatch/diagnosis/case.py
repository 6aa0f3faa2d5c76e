"""The case: the histories of a run, folded together block by block, as the rules read them.

Its size does not grow with the run, only (by a few numbers each) with the layers and ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from ampwatch.diagnosis import learning_rate, thresholds
from ampwatch.diagnosis.blocks import Block, Times
from ampwatch.diagnosis.column_arrays import known_of, median_of_known
from ampwatch.diagnosis.device_history import DeviceHistory
from ampwatch.diagnosis.event_history import EventHistory, GuardHistory, overflows_of
from ampwatch.diagnosis.expert_history import ExpertHistory
from ampwatch.diagnosis.findings import FindingStatus, Outcome
from ampwatch.diagnosis.finiteness_history import (
    FinitenessHistory,
    bad_input,
    forward_finite,
    inputs_from_models,
)
from ampwatch.diagnosis.gradient_history import (
    LoopHistory,
    NonfiniteGradientHistory,
    ZeroGradientHistory,
)
from ampwatch.diagnosis.layer_history import AttentionScoreHistory, LayerHistory
from ampwatch.diagnosis.learning_rate.advice import Advice
from ampwatch.diagnosis.loss_spikes import LossSpikes
from ampwatch.diagnosis.metric_history import MetricHistory
from ampwatch.diagnosis.outlying_inputs import OutlyingInputs
from ampwatch.diagnosis.precision_history import CastHistory, PrecisionHistory, RoundingHistory
from ampwatch.diagnosis.rank_history import RankHistory
from ampwatch.diagnosis.rate_setup import RateLeaps, RateSetup
from ampwatch.diagnosis.record import Record, RecordFacts, scaler_of
from ampwatch.diagnosis.restart_history import RestartHistory
from ampwatch.diagnosis.scale_history import ScaleFall, ScaleHistory, SkipSpan
from ampwatch.diagnosis.setting_history import SettingHistory
from ampwatch.diagnosis.step_time_history import StepTimeHistory
from ampwatch.diagnosis.value_text import steps_text
from ampwatch.metric_names import Metric

# What a run of our own probe has as its source.
NATIVE = "ampwatch"
# Sources whose columns are as their writer named them.
_TABLES = frozenset({"csv", "json", "jsonl", "parquet", "tensorboard", "wandb"})


@dataclass(frozen=True, slots=True)
class Observed:
    """Which signals the record of a run holds, and how densely: rules judge nothing else."""

    loop: bool  # the loop itself was watched: its exact numbers, its layers, its end
    table: bool  # each column is one that the training itself wrote
    every_step: bool  # each has a row, so what lies close together is known
    single_steps: bool  # ... and no row sums up an epoch
    loss: bool
    rate: bool
    scale: bool


_OFTEN = 0.1  # of all steps: far more than a few bad batches
# A history that is folded by the blocks alone: its line in `Case` is all that adds one.
_OWN = {"folds": "blocks"}


@dataclass(eq=False, kw_only=True)  # no slots: cached_property keeps its values in __dict__
class Case:
    """The histories of a run, folded block by block: all that the rules read.

    Whoever folds blocks that may still change copies it first. A finished case never changes.
    """

    record: RecordFacts
    scale: ScaleHistory
    numbers: FinitenessHistory = field(default_factory=FinitenessHistory)
    events: EventHistory = field(default_factory=EventHistory)
    layers: LayerHistory = field(default_factory=LayerHistory)
    scores: AttentionScoreHistory = field(default_factory=AttentionScoreHistory)
    rate: learning_rate.RateState = field(default_factory=learning_rate.RateState)
    batches: OutlyingInputs = field(default_factory=OutlyingInputs)
    devices: DeviceHistory = field(default_factory=DeviceHistory)
    restarts: RestartHistory = field(default_factory=RestartHistory)
    precision: PrecisionHistory = field(default_factory=PrecisionHistory, metadata=_OWN)
    casts: CastHistory = field(default_factory=CastHistory, metadata=_OWN)
    experts: ExpertHistory = field(default_factory=ExpertHistory, metadata=_OWN)
    ranks: RankHistory = field(default_factory=RankHistory, metadata=_OWN)
    loop: LoopHistory = field(default_factory=LoopHistory, metadata=_OWN)
    zeros: ZeroGradientHistory = field(default_factory=ZeroGradientHistory, metadata=_OWN)
    leaps: RateLeaps = field(default_factory=RateLeaps, metadata=_OWN)
    unskipped: NonfiniteGradientHistory = field(
        default_factory=NonfiniteGradientHistory, metadata=_OWN
    )
    rises: LossSpikes = field(default_factory=LossSpikes, metadata=_OWN)
    rounding: RoundingHistory = field(default_factory=RoundingHistory, metadata=_OWN)
    setup: RateSetup = field(default_factory=RateSetup, metadata=_OWN)
    metrics: MetricHistory = field(default_factory=MetricHistory, metadata=_OWN)
    settings: SettingHistory = field(default_factory=SettingHistory, metadata=_OWN)
    guard: GuardHistory = field(default_factory=GuardHistory, metadata=_OWN)
    step_times: StepTimeHistory = field(default_factory=StepTimeHistory, metadata=_OWN)
    outcome: Outcome | None = field(default=None, init=False)  # once `outcome_of` was asked

    # --- folding ---------------------------------------------------------------------------------

    def copy(self) -> Case:
        """A case that can be folded further without changing this one."""
        numbers, events = replace(self.numbers), replace(self.events)
        return replace(self, scale=self.scale.copy(), numbers=numbers, events=events)

    def fold(self, block: Block) -> None:
        """Add the next block of the run to every history."""
        forward, makers = forward_finite(block), inputs_from_models(block)
        bad = bad_input(block) & ~block.entries_of(list(makers))
        near = self.scale.fold(block, overflows_of(block))
        self.numbers.fold(block, forward, bad)
        self.events.fold(block, frozenset(block.step[bad].tolist()), makers)
        judged = np.asarray(~block.skipped & ~block.left_out & near)
        self.layers = self.layers.fold(block, judged)
        self.scores = self.scores.fold(block, judged)
        for one in fields(self):
            if one.metadata == _OWN:
                setattr(self, one.name, getattr(self, one.name).fold(block))
        rows = learning_rate.rows_of_block(block, forward)
        self.batches = self.batches.fold(self.rate.tail, rows, block.start, block.guarded)
        self.restarts = self.restarts.fold(self.rate, rows, block)
        self.rate = learning_rate.fold(self.rate, rows)

    def finish(self) -> None:
        """Close what is still open in the histories, as if the record ended here."""
        self.scale.finish()
        self.restarts = self.restarts.finished(self.rate)
        self.rises = self.rises.finished()
        setup = self.setup.shown(stopped=self.loop_stopped)
        rate = replace(self.rate, setup=setup)
        if setup.inner_updates:  # its updates cannot be compared with those of other trainings
            rate = rate.without("update_norm", "max_ratio", "alignment")
        self.rate = learning_rate.comparable(rate)

    # --- what the rules ask ----------------------------------------------------------------------

    @cached_property
    def observed(self) -> Observed:
        """Which signals the record holds; a foreign log's marks say how its columns are read."""
        scale, numbers = self.scale, self.numbers
        loop = self.record.source == NATIVE
        marks = self.record.marks.get("step", ())
        every_step = loop or ("placed" not in marks and scale.steps <= scale.entries)
        return Observed(
            loop=loop,
            table=self.record.source in _TABLES,
            every_step=every_step,
            single_steps=every_step and "epochs" not in marks,
            loss="loss" in numbers.told,
            rate="lr" in numbers.told,
            scale=scale.has_scaler,
        )

    @property
    def has_adversary(self) -> bool:
        """Whether another network is trained against this one: then neither loss need fall."""
        return self.rate.setup.several_optimizers or any(self.metrics.of(Metric.ADVERSARY))

    @cached_property
    def judgement(self) -> learning_rate.Judgement:
        """The judgement of the learning rate; computed once, when a rule first asks for it."""
        judgement = learning_rate.judge_rate(self.rate)
        return replace(judgement, alignment=None) if self.has_adversary else judgement

    @cached_property
    def rate_advice(self) -> Advice:
        """The advice on the rate from its own numbers, before any finding is considered."""
        return learning_rate.advise(self.rate, self.judgement)

    @property
    def loop_stopped(self) -> bool:
        """Whether training ended with a step that the loop itself left out."""
        last = self.unskipped.left_out_last.last_step
        return last is not None and (bool(self.ranks.ended) or self.events.is_over_by(last))

    @property
    def has_converged(self) -> bool:
        """Whether an optimizer that makes several updates in a step has stopped by itself."""
        return (
            self.rate.setup.inner_updates and self.loop.moved > 0 and self.stands(self.loop.still)
        )

    @property
    def is_all_learnt(self) -> bool:
        """Whether next to nothing is left of the loss: lost gradients then cost nothing."""
        head, tail = (rows.of("loss") for rows in (self.rate.head, self.rate.tail))
        if not (known_of(head) > 0).all() or not (known_of(tail) >= 0).all():
            return False  # below 0 there is always more to learn
        first = median_of_known(head[: thresholds.LOSS_LINES])
        last = median_of_known(tail[-learning_rate.constants.FINAL_STEPS :])
        return last <= thresholds.ALL_LEARNT * first

    @property
    def is_searching(self) -> bool:
        """Whether the scaler has not accepted a single step yet."""
        return self.scale.first_accepted is None

    @property
    def is_one_line(self) -> bool:
        """Whether the record holds one step only and no loss scale: then nothing can be judged."""
        return self.numbers.steps <= 1 and not self.observed.scale

    @property
    def final_scale(self) -> float | None:
        """The loss scale at the end of the record; None if there is none."""
        final = self.scale.final_scale
        return final if self.scale.has_scaler and not math.isnan(final) else None

    @property
    def has_live_scaler(self) -> bool:
        """Whether a scaler may skip a step; bf16 logs print a constant scale of 1."""
        scale = self.scale
        idle = scale.first_scale == scale.final_scale == 1.0 and not scale.skips
        return scale.has_scaler and not idle

    @property
    def loop_tells_skips(self) -> bool:
        """Whether the loop itself skipped the steps: a table has skips and no loss scale.

        A search at the start, or a text log's lines about overflows, come from a scaler.
        """
        if not self.observed.table or self.scale.has_scaler:
            return False
        return not (self.scale.startup_skips or self.record.marks.get("skipped"))

    @cached_property
    def standing_fall(self) -> ScaleFall | None:
        """The first fall of the loss scale from which it has not recovered."""
        final = self.final_scale
        if final is None:
            return None
        below = 2.0**-thresholds.COLLAPSE_OCTAVES
        fall = next((fall for fall in self.falls if final <= fall.level * below), None)
        return None if fall is None or self.learnt_on(fall.first_step, fall.end_step) else fall

    @cached_property
    def falls(self) -> tuple[ScaleFall, ...]:
        """The falls of the loss scale, but for those by which the search for one went on.

        They began at no established level and ended at one, and the loss fell on: the gradients of
        a loss that is summed grow a thousandfold in a few steps.
        """
        level, rate = self.scale.level or math.inf, self.rate
        return tuple(
            fall
            for fall in self.scale.falls
            if fall.level <= level or not rate.loss_fell_on(fall.first_step, fall.end_step)
        )

    def learnt_on(self, first_step: int, end_step: int) -> bool:
        """Whether the loss kept falling below its earlier values during a fall of the loss scale.

        If a row stands for many steps, it is unknown how close together the skips were; a scale
        that came down row by row while the loss fell has found its level.
        """
        established = self.scale.run_length >= self.scale.scaler.established_steps
        if self.observed.every_step or not established:
            return False
        return self.rate.loss_fell_on(first_step, end_step)

    @property
    def teeth(self) -> SkipSpan:
        """The skips that the growth of the scale explains, before any fall that stands."""
        return (self.standing_fall or self.scale).teeth

    @property
    def loose(self) -> SkipSpan:
        """The skips that nothing explains, before any fall that stands."""
        return (self.standing_fall or self.scale).loose

    def standing(self, times: Times) -> FindingStatus:
        """Whether what was seen at these times goes on, left damage behind, or is all over."""
        if self.stands(times):
            return FindingStatus.STANDS
        return FindingStatus.HEALS if self._brought_about_the_fall(times) else FindingStatus.HEALED

    def recurrence(self, times: Times) -> FindingStatus:
        """Whether what happens at single times, such as a reset, goes on or has paused."""
        goes_on = self.stands(times) or self.returns(times)
        return FindingStatus.STANDS if goes_on else FindingStatus.PAUSED

    @property
    def evaluation_is_spoilt(self) -> bool:
        """Whether running statistics store bad inputs so often that no reset would last."""
        bad = self.numbers.bad_input.count
        return bool(self.precision.batch_norms) and bad > _OFTEN * self.scale.entries

    def stands(self, times: Times) -> bool:
        """Whether something seen at these times still goes on at the end of the record."""
        entries = self.scale.entries
        apart = 1 if self.observed.every_step else self.scale.steps / entries
        recent = max(
            thresholds.RECENT_STEPS / apart,
            thresholds.LOSS_LINES,
            entries * thresholds.RECENT_SHARE,
        )
        return times.last_position >= entries - recent

    def returns(self, times: Times) -> bool:
        """Whether something seen at these times is away no longer than it was between them."""
        first, last, end = times.first_step, times.last_step, self.scale.last_step
        if times.count < 2 or first is None or last is None or end is None:
            return False
        return end - last <= (last - first) / (times.count - 1)

    def comes_and_goes(self, times: Times) -> bool:
        """Whether the loss was finite between or after these times, and is not lost by now.

        It is lost if most losses that are not finite stand in a row at the end.
        """
        tail = self.rate.tail
        rows = tail.where((tail.of("loss_bad") > 0) | np.isfinite(tail.of("loss")))
        bad = rows.of("loss_bad")[rows.of("step") >= (times.first_step or 0)] > 0
        streak = len(bad) if bad.all() else int(np.argmin(bad[::-1]))
        return bool(bad.any() and len(bad) > streak and bad.sum() >= 2 * streak)

    def times_text(self, times: Times) -> str:
        """In how many steps something was seen, and whether the latest step is one of them."""
        where = steps_text(times.first_step, times.last_step)
        if times.count > 1:
            where = f"in {times.count:,} steps from {times.first_step:,} to {times.last_step:,}"
        return where + self.latest_text(times)

    def latest_text(self, times: Times) -> str:
        """Whether the latest step is one of several, as the end of a sentence."""
        if times.last_step != self.scale.last_step:
            return f", but not at the latest step, {self.scale.last_step:,}"
        return ", the latest step among them" if times.count > 1 else ""

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
        # At a scale of next to nothing every step is skipped, whatever brought it there.
        return meets and 2 * times.count >= fall.skips - self.scale.tiny.count

    @property
    def lone_rank(self) -> int | None:
        """The one rank that caused every overflow of which all ranks tell; None if several did."""
        joint = self.scale.culprits.joint
        alone = [rank for rank, one in joint.alone.items() if one.times.count == joint.judged]
        return alone[0] if alone and joint.judged else None


def new_case(run: Record) -> Case:
    """A case of a run of which nothing has been folded yet."""
    return Case(record=RecordFacts.of(run), scale=ScaleHistory(scaler_of(run.info)))
