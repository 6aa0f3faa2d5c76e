"""The loss leaves its band: for a step, for a while, or for good."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from examples.gallery.variety.mechanisms.rate import diverged, hold, over, run_away
from examples.gallery.variety.mechanisms.restarts import bump, clear_height
from examples.gallery.variety.registry import ATTACHED, FP16, SCALARS, mechanism
from examples.gallery.variety.story import Story
from examples.gallery.variety.truth import Demand, Truth

LOSS = (("loss",),)
_SPIKE = ("AMP303",)
_MAY = frozenset({"AMP105", "AMP206", "AMP303", "AMP306", "AMP103"})
KEEPS = ("keep", "raise", "unknown", "not-the-cause")


def healed(story: Story, starts: list[int], lost: float, codes: tuple[str, ...] = _SPIKE) -> Truth:
    """One is information; three in the last quarter, or a share of the steps, are a warning."""
    late = sum(start >= 0.76 * story.steps for start in starts)
    many = late >= 3 or lost > 0.015 * story.steps
    few = late < 3 and lost < 0.007 * story.steps
    return Truth(
        (Demand(codes, LOSS, at_any_severity=not many),),
        _MAY,
        worst="info" if few and codes == _SPIKE else "warning",
        verdicts=("warning",) if many else ("healthy",) if few else ("healthy", "warning"),
        rate=KEEPS,
        onset=starts[0],
    )


def _spike(story: Story, at: int, heal: float) -> float:
    """A spike: updates lead, gradients follow, the loss comes last; how many steps it costs."""
    rise = story.random.uniform(1, 8)
    trouble = bump(story, at, clear_height(story), rise, heal)
    lead = int(story.random.integers(0, 4))
    story.excess += trouble
    story.grad_gain *= 1 + story.random.uniform(1, 6) * np.roll(trouble, -lead // 2).clip(max=4)
    story.update_gain *= 1 + story.random.uniform(0.2, 2) * np.roll(trouble, -lead).clip(max=2)
    return float((trouble > 3 * story.task.sigma).sum())


@mechanism("spike/one", steps=(300, 1_000_000))
def one_spike(story: Story, at: int) -> Truth:
    """One spike that heals."""
    at = min(at, int(story.steps * 0.9))
    lost = _spike(story, at, story.random.uniform(3, max(4, 0.004 * story.steps)))
    return healed(story, [at], lost)


@mechanism("spike/several", steps=(1000, 300_000))
def several(story: Story, at: int) -> Truth:
    """Several spikes, each of which heals."""
    last = int(story.steps * 0.95)
    at = min(at, int(story.steps * 0.8))
    many = int(story.random.integers(3, 9))
    gap = max(60, (last - at) // many)
    starts = list(range(at, last, gap))[:many]
    lost = sum(_spike(story, step, story.random.uniform(2, gap / 12)) for step in starts)
    return healed(story, starts, lost)


@mechanism("spike/long", steps=(2000, 300_000), onsets=("early", "late"))
def long_spike(story: Story, at: int) -> Truth:
    """One spike that takes some hundredths of the run to heal, and heals."""
    at = min(at, int(story.steps * 0.6))
    lost = _spike(story, at, story.random.uniform(0.01, 0.04) * story.steps)
    return healed(story, [at], lost)


@mechanism("spike/with-skips", precisions=FP16, steps=(500, 300_000))
def with_skips(story: Story, at: int) -> Truth:
    """A spike that overflows for some steps running: the scale falls, waits and grows again."""
    at = min(at, int(story.steps * 0.8))
    burst = int(story.random.integers(3, 8))
    story.overflows[at : at + burst] = True
    lost = _spike(story, at, story.random.uniform(3, max(4, 0.004 * story.steps)))
    truth = healed(story, [at], lost)
    return Truth(
        (Demand(_SPIKE, (("loss", "scale"),), at_any_severity=True),), truth.may | {"AMP102"},
        worst="warning", verdicts=("healthy", "warning"), rate=KEEPS, onset=at,
    )  # fmt: skip


@mechanism("spike/kills", steps=(500, 100_000))
def kills(story: Story, at: int) -> Callable[..., Truth]:
    """A spike that the run does not come back from: the loss stays high, or climbs slowly."""
    hold(story)
    octaves = np.where(story.since(at) >= 0, -over(story), 1.0)
    left = story.steps - at
    run_away(story, story.rate_base * 2**octaves, story.random.uniform(0.05, 0.6) * left)
    return diverged(story, at, by_rate=False)


@mechanism("spike/stays-up", steps=(500, 100_000))
def stays_up(story: Story, at: int) -> Callable[..., Truth]:
    """The loss leaps with a burst of long updates and stays where it landed."""
    at = min(at, int(story.steps * 0.93))
    since = story.since(at)
    height = max(0.7, clear_height(story))
    story.excess += height * (1 - np.exp(-since.clip(min=0) / 10))
    story.update_gain[at - min(at, 3) : at + 10] *= 2 ** (1.5 + 3 * story.setting.severity)
    story.grad_gain *= np.where(since >= 0, 1 + 3 * np.exp(-since.clip(min=0) / 50), 1.0)
    return diverged(story, at, by_rate=False)


@mechanism("data/junk-batches", steps=(300, 300_000))
def junk_batches(story: Story, at: int) -> Truth:
    """Some single batches are no data of this kind: their loss is far off, the next is not."""
    many = int(story.random.integers(1, 6))
    left = max(1, story.steps - 5 - at)
    steps = sorted({at + int(x) for x in story.random.integers(0, left, many)})
    height = max(12 * story.task.sigma, story.random.uniform(1, 10))
    story.excess[steps] += height
    story.grad_gain[steps] *= story.random.uniform(2, 10)
    if height < 4:  # a loss of less than five times its size may well be a hard batch
        return Truth(may=_MAY | {"AMP102"}, worst="warning", rate=KEEPS, onset=steps[0])
    return Truth(
        (Demand(("AMP206", "AMP303"), LOSS, at_any_severity=True),), _MAY | {"AMP102"},
        worst="warning", verdicts=("healthy", "warning"), rate=KEEPS, onset=steps[0],
    )  # fmt: skip


@mechanism("data/junk-stretch", steps=(1000, 100_000))
def junk_stretch(story: Story, at: int) -> Truth:
    """A shard of junk: for a while loss and updates are far too large; then all is as before."""
    at = min(at, int(story.steps * 0.9))
    long = int(story.random.uniform(0.003, 0.04) * story.steps) + 5
    inside = slice(at, min(at + long, story.steps - 20))
    story.excess[inside] += clear_height(story)
    story.grad_gain[inside] *= story.random.uniform(1.5, 6)
    story.update_gain[inside] *= story.random.uniform(1.2, 2.5)
    after = story.since(inside.stop).clip(min=0)
    story.excess += 0.3 * np.exp(-after / (0.3 * long)) * (story.since(inside.stop) >= 0)
    return healed(story, [at], long, ("AMP206", "AMP303", "AMP306", "AMP307"))


@mechanism("data/outlier-input", precisions=FP16, seen=(ATTACHED, SCALARS), steps=(300, 100_000))
def outlier_input(story: Story, at: int) -> Truth:
    """Batches of unscaled input (0 to 65535 among 0 to 1): overflow, at an established scale."""
    at = max(at, min(story.steps - 20, 80))
    many = int(story.random.integers(1, 4))
    left = max(1, story.steps - 5 - at)
    steps = sorted({at + int(x) for x in story.random.integers(0, left, many)})
    story.input_gain[steps] = 10 ** story.random.uniform(2, 4.5)
    story.overflows[steps] = True
    story.excess[steps] += 4 + clear_height(story)
    return Truth(
        (Demand(("AMP206",), (("inputs",),), at_any_severity=True),),
        _MAY | {"AMP102", "AMP202", "AMP203", "AMP209"},
        worst="warning", verdicts=("healthy", "warning"), rate=KEEPS, onset=steps[0],
    )  # fmt: skip


@mechanism("data/change-not-survived", steps=(500, 100_000))
def change_not_survived(story: Story, at: int) -> Callable[..., Truth]:
    """Other data from some step on, on which these steps are too long: the run never comes back."""
    hold(story)
    since = story.since(at)
    story.excess += clear_height(story) / 2 * (since >= 0)
    octaves = np.where(since >= 0, -over(story), 1.0)
    left = story.steps - at
    run_away(story, story.rate_base * 2**octaves, story.random.uniform(0.02, 0.3) * left)
    return diverged(story, at, by_rate=False)
