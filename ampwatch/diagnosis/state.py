"""All that is remembered of a run: several courses, folded together block by block.

The size does not grow with the run, only (by a few numbers each) with its layers and ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from ampwatch.diagnosis import learning_rate
from ampwatch.diagnosis.batch_course import BatchCourse
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.device_course import DeviceCourse
from ampwatch.diagnosis.episodes import Scaler
from ampwatch.diagnosis.joint_overflows import Origin, origins
from ampwatch.diagnosis.layer_course import LayerCourse
from ampwatch.diagnosis.leap_course import LeapCourse
from ampwatch.diagnosis.ledger import Ledger
from ampwatch.diagnosis.left_out_course import LeftOutCourse
from ampwatch.diagnosis.loop_course import LoopCourse
from ampwatch.diagnosis.number_course import NumberCourse, bad_input, forward_finite, handed_on
from ampwatch.diagnosis.precision_course import PrecisionCourse
from ampwatch.diagnosis.rank_course import RankCourse
from ampwatch.diagnosis.rate_rows import rate_rows
from ampwatch.diagnosis.rate_setup import RateSetup
from ampwatch.diagnosis.restart_course import RestartCourse
from ampwatch.diagnosis.rise_course import RiseCourse
from ampwatch.diagnosis.rounding_course import RoundingCourse
from ampwatch.diagnosis.scale_course import ScaleCourse
from ampwatch.diagnosis.score_course import ScoreCourse
from ampwatch.diagnosis.signals import Event, Info, positive
from ampwatch.diagnosis.unskipped_course import UnskippedCourse
from ampwatch.diagnosis.zero_course import ZeroCourse
from ampwatch.rows import EventKind

# torch's own default, for records that do not say.
GROWTH_INTERVAL = 2000
# What run.json says may be anything; no run is longer.
LONGEST_INTERVAL = 2.0**40


@dataclass(slots=True)
class OwnCourses:
    """The courses that need nothing but the blocks: to add one, name it here."""

    precision: PrecisionCourse = field(default_factory=PrecisionCourse)
    ranks: RankCourse = field(default_factory=RankCourse)
    loop: LoopCourse = field(default_factory=LoopCourse)
    zeros: ZeroCourse = field(default_factory=ZeroCourse)
    left_out: LeftOutCourse = field(default_factory=LeftOutCourse)
    leaps: LeapCourse = field(default_factory=LeapCourse)
    unskipped: UnskippedCourse = field(default_factory=UnskippedCourse)
    rises: RiseCourse = field(default_factory=RiseCourse)
    rounding: RoundingCourse = field(default_factory=RoundingCourse)
    setup: RateSetup = field(default_factory=RateSetup)

    def fold_own(self, block: Block) -> None:
        """Take in a block, each by itself."""
        for one in fields(OwnCourses):
            setattr(self, one.name, getattr(self, one.name).fold(block))


@dataclass(slots=True, kw_only=True)
class State(OwnCourses):
    """The courses; `copy` it before folding what may still change."""

    scale: ScaleCourse
    numbers: NumberCourse = field(default_factory=NumberCourse)
    ledger: Ledger = field(default_factory=Ledger)
    layers: LayerCourse = field(default_factory=LayerCourse)
    scores: ScoreCourse = field(default_factory=ScoreCourse)
    rate: learning_rate.RateState = field(default_factory=learning_rate.RateState)
    batches: BatchCourse = field(default_factory=BatchCourse)
    devices: DeviceCourse = field(default_factory=DeviceCourse)
    restarts: RestartCourse = field(default_factory=RestartCourse)

    def copy(self) -> State:
        """The same, to be folded on apart."""
        return replace(
            self,
            scale=self.scale.copy(),
            numbers=self.numbers.copy(),
            ledger=self.ledger.copy(),
        )

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
        self.scale.fold(block, sorted(overflows, key=lambda pair: pair[0]))
        self.numbers.fold(block, forward, bad)
        self.ledger.fold(block, frozenset(block.step[bad].tolist()), makers)
        judged = np.asarray(~block.skipped & ~block.left_out & self.scale.at_level(block))
        self.layers = self.layers.fold(block, judged)
        self.scores = self.scores.fold(block, judged)
        self.fold_own(block)
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

    @property
    def loop_stopped(self) -> bool:
        """Whether the loop ended with a step that it left out; while it runs it may go on."""
        last = self.left_out.running.last_step
        return last is not None and (bool(self.ranks.ended) or self.ledger.is_over_by(last))


def new_state(info: Info) -> State:
    """Nothing remembered yet."""
    scaler = info.scaler
    interval = positive(scaler.get("growth_interval")) or GROWTH_INTERVAL
    return State(
        scale=ScaleCourse(
            Scaler(
                initial=positive(scaler.get("init_scale")),
                growth_factor=positive(scaler.get("growth_factor")) or 2.0,
                growth_interval=max(1, int(min(interval, LONGEST_INTERVAL))),
                floor=positive(scaler.get("min_scale")),
                backoff_factor=positive(scaler.get("backoff_factor")) or 0.5,
                hysteresis=int(min(positive(scaler.get("hysteresis")) or 1.0, 16.0)),
            )
        )
    )
