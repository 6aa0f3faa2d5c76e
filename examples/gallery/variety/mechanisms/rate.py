"""The learning rate is higher than the training tolerates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from examples.gallery.variety.noise import Floats
from examples.gallery.variety.registry import mechanism
from examples.gallery.variety.story import Instability, Restart, Story
from examples.gallery.variety.truth import Demand, Truth
from examples.gallery.variety.unfolding import Columns

# What a divergence brings with it, whatever began it.
AFTERMATH = frozenset({
    "AMP101", "AMP103", "AMP104", "AMP105", "AMP202", "AMP203", "AMP204", "AMP205", "AMP207",
    "AMP208", "AMP210", "AMP211", "AMP301", "AMP302", "AMP303", "AMP304", "AMP306", "AMP307",
})  # fmt: skip
DIVERGED = ("AMP301", "AMP302", "AMP306", "AMP307")
_LOST = ("AMP103", "AMP104", "AMP204", "AMP207", "AMP211")
MOVING = (("loss", "update_norm"), ("loss", "grad_norm"))


def diverged(story: Story, onset: int, *, by_rate: bool = True) -> Callable[..., Truth]:
    """True if the loss has not come back at the end, by a quarter of its own size or more.

    Where the rate is what is wrong it must be named. Elsewhere the course that the run took, to its
    end in nan, says as much.
    """

    def told(columns: Columns) -> Truth:
        end = max(10, len(columns) // 20)
        level = story.task.level[: len(columns)]
        unit = story.task.unit[: len(columns)]
        above = ((columns.loss - level) / unit)[-end:]
        lost = not np.isfinite(above).all()
        if not lost and np.median(above) < 0.25:
            return Truth(may=AFTERMATH, rate=(), onset=onset)  # it came back: nothing is asked
        codes = DIVERGED if by_rate or not lost else (*DIVERGED, *_LOST)
        return Truth(
            demands=(Demand(codes, MOVING),),
            may=AFTERMATH,
            verdicts=("failing",) if lost else ("failing", "warning"),
            rate=("lower",) if by_rate else ("lower", "keep", "not-the-cause", "unknown"),
            by_rate=by_rate,
            onset=onset,
        )

    return told


def over(story: Story) -> float:
    """Octaves over the limit."""
    return 0.4 + 3.6 * story.setting.severity


def hold(story: Story) -> None:
    """Keep the schedule from bringing the rate below the limit again."""
    story.rate[:] = np.maximum(story.rate, story.rate_base * 2 ** (-over(story) / 2))


def run_away(story: Story, limit: Floats, duration: float, *, early: bool = False) -> None:
    """Make the instability that such a limit brings, to be in the open after about `duration`.

    A rate that is over the limit from the start makes long updates; a limit that sinks below a
    rate that had worked for long need not.
    """
    pace = 14 / max(4.0, duration) / min(3.0, over(story) / 2)
    caps = [2.0, 6.0, 70.0] if story.task.kind.is_signed else [0.5, 2.0, 6.0, 70.0]
    cap = float(story.random.choice(caps))
    story.instability = Instability(limit, pace, cap)
    octaves = story.random.uniform(-9, -5) + over(story) if early else story.random.uniform(-12, -7)
    story.update_ratio = float(2.0**octaves)


@mechanism("rate/at-once", lasting=True, onsets=("early",), steps=(100, 30_000))
def at_once(story: Story, at: int) -> Callable[..., Truth]:
    """Too high from the start, at a rate that does not fall soon."""
    hold(story)
    limit = np.full(story.steps, story.rate_base * 2 ** -over(story))
    run_away(story, limit, story.random.uniform(5, max(10, 0.3 * story.steps)), early=True)
    return diverged(story, 0)


@mechanism("rate/sharpening", lasting=True, steps=(400, 100_000))
def sharpening(story: Story, at: int) -> Callable[..., Truth]:
    """The limit sinks as the training goes on, and passes the rate at some step."""
    hold(story)
    octaves = 2.0 - (2.0 + over(story)) * (np.arange(story.steps) / max(1, at)) ** 2
    limit = story.rate_base * 2 ** octaves.clip(-over(story), 2)
    run_away(story, limit, story.random.uniform(0.02, 0.25) * (story.steps - at))
    return diverged(story, at)


@mechanism("rate/warm-up", lasting=True, onsets=("early",), steps=(200, 30_000))
def warm_up(story: Story, at: int) -> Callable[..., Truth]:
    """A warm-up for most of the run, to a peak over the limit: it fails while the rate rises."""
    length = story.steps * story.random.uniform(0.6, 1.5)
    story.rate[:] = story.rate_base * np.minimum(1.0, (np.arange(story.steps) + 1) / length)
    limit = np.full(story.steps, story.rate_base * 2 ** -max(1.2, over(story)))
    run_away(story, limit, story.random.uniform(0.02, 0.15) * story.steps, early=True)
    return diverged(story, int(length * 2 ** -max(1.2, over(story))))


@mechanism("rate/resumed", lasting=True, onsets=("early",), steps=(200, 50_000))
def resumed(story: Story, at: int) -> Callable[..., Truth]:
    """The run goes on from a good checkpoint, at a rate that its weights do not tolerate."""
    story.first_step = int(story.random.integers(1, 50)) * 1000
    settled = story.task.level[-1] / story.task.level
    story.task.loss[:] *= settled
    story.task.level[:] *= settled
    story.restarts.append(Restart(0))
    hold(story)
    limit = np.full(story.steps, story.rate_base * 2 ** -over(story))
    run_away(story, limit, story.random.uniform(5, 0.3 * story.steps), early=True)
    return diverged(story, 0)


@mechanism("rate/raised", lasting=True, steps=(400, 100_000))
def raised(story: Story, at: int) -> Callable[..., Truth]:
    """Somebody raises the rate in mid-run, over the limit."""
    before = story.rate_base * 2 ** -(over(story) + story.random.uniform(1, 3))
    story.rate[:at], story.rate[at:] = before, story.rate_base
    story.events.append((at, "lr-changed", {"group": 0, "from": before, "to": story.rate_base}))
    limit = np.full(story.steps, story.rate_base * 2 ** -over(story))
    run_away(story, limit, story.random.uniform(5, 0.3 * (story.steps - at)), early=True)
    return diverged(story, at)


@mechanism("rate/dead", lasting=True, onsets=("early",), steps=(150, 30_000))
def dead(story: Story, at: int) -> Callable[..., Truth]:
    """The first updates break the network: it answers the same to everything, for ever."""
    hold(story)
    died = int(story.random.integers(2, 20))
    since = story.since(died).clip(min=0)
    first = story.task.level[0] + 0.3 * story.task.unit[0]
    flat = (first - story.task.level) / story.task.unit
    surge = story.random.uniform(1, 6) * np.exp2(-since / 4) * (since > 0)
    story.excess += flat * (since > 0) + surge
    story.grad_gain *= np.where(since > 0, 2.0 ** (story.random.uniform(-4, 0) + 3 * surge), 1.0)
    story.update_ratio = float(2 ** (story.random.uniform(-8, -4) + over(story)))
    return diverged(story, died)


@mechanism("rate/creeping", lasting=True, steps=(2000, 100_000))
def creeping(story: Story, at: int) -> Callable[..., Truth]:
    """A little over the limit: the loss turns and creeps up for the rest of the run."""
    hold(story)
    limit = story.rate_base * 2 ** np.where(story.since(at) > 0, -over(story), 1.0)
    story.update_ratio = float(2 ** story.random.uniform(-11, -6))
    cap = story.random.uniform(0, 2)
    pace = 14 / max(20.0, 0.5 * (story.steps - at)) / min(3.0, over(story) / 2)
    story.instability = Instability(limit, pace, float(cap))
    return diverged(story, at)
