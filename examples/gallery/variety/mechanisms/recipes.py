"""A recipe that does not fit the training: its rate, its batches, its loss, its scaler's interval.

What people do wrong in the loop or the configuration, as it shows; each has its twin without it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from examples.gallery.variety.mechanisms.numbers import all_lost
from examples.gallery.variety.mechanisms.rate import (
    AFTERMATH,
    DIVERGED,
    MOVING,
    diverged,
    hold,
    over,
    run_away,
)
from examples.gallery.variety.mechanisms.restarts import bump, clear_height
from examples.gallery.variety.mechanisms.spikes import healed
from examples.gallery.variety.registry import FP16, NO_SCALER, mechanism
from examples.gallery.variety.story import Story
from examples.gallery.variety.truth import Demand, Truth

_ANY_BUT_RAISE = ("lower", "keep", "not-the-cause", "unknown")


@mechanism("rate/short-warm-up", lasting=True, onsets=("early",), steps=(200, 30_000))
def short_warm_up(story: Story, at: int) -> Callable[..., Truth]:
    """The limit is low in the first steps and rises; the warm-up is over long before it has."""
    hold(story)
    length = max(2, int(story.steps * story.random.uniform(0.002, 0.02)))
    story.rate[:] *= np.minimum(1.0, (np.arange(story.steps) + 1) / length)
    rises = np.minimum(1.0, np.arange(story.steps) / (0.8 * story.steps))
    limit = story.rate_base * 2 ** (-over(story) + (over(story) + 0.5) * rises)
    run_away(story, limit, story.random.uniform(5, max(10, 0.1 * story.steps)), early=True)
    return diverged(story, 0)


@mechanism("rate/swept-up", lasting=True, onsets=("early",), steps=(100, 10_000))
def swept_up(story: Story, at: int) -> Callable[..., Truth]:
    """A sweep: the rate grows by one factor in each part of the run, until the run breaks."""
    octaves = story.random.uniform(8, 14)
    left = np.arange(story.steps) / max(1, story.steps - 1) - 1.0
    story.rate[:] = story.rate_base * 2 ** (octaves * left)
    limit = np.full(story.steps, story.rate_base * 2 ** -max(1.2, over(story)))
    share = 1.0 - max(1.2, over(story)) / octaves
    run_away(story, limit, story.random.uniform(0.02, 0.15) * story.steps, early=True)
    return diverged(story, int(share * story.steps))


@mechanism("data/batch-made-smaller", steps=(500, 100_000))
def batch_made_smaller(story: Story, at: int) -> Callable[..., Truth]:
    """Far smaller batches in mid-run at the same rate: more noise than these steps bear."""
    hold(story)
    story.events.append((at, "batch-size-changed", {"from": 256, "to": 32}))
    since = story.since(at) >= 0
    story.grad_gain *= np.where(since, story.random.uniform(1.3, 2.8), 1.0)
    more = story.random.uniform(0.5, 1.5)
    story.excess += (
        np.where(since, more * (story.task.loss - story.task.level), 0) / story.task.unit
    )
    octaves = np.where(since, -over(story), 1.0)
    left = story.steps - at
    run_away(story, story.rate_base * 2**octaves, story.random.uniform(0.05, 0.3) * left)
    return diverged(story, at, by_rate=False)


@mechanism("data/labels-shifted", steps=(500, 100_000))
def labels_shifted(story: Story, at: int) -> Truth:
    """From some step on labels belong to other inputs: what was learnt is wrong, all but a part."""
    at = min(at, story.steps - 60)
    since = story.since(at)
    first = float(story.task.level[0] / story.task.unit[0]) if not story.task.kind.is_signed else 1
    gone = (story.task.level[0] - story.task.level) / story.task.unit
    height = np.maximum(gone, 0.1 * first) * story.random.uniform(1.0, 1.6)
    story.excess += np.where(since >= 0, np.maximum(height, clear_height(story)), 0.0)
    grown = story.random.uniform(2, 6)
    story.grad_gain *= np.where(since >= 0, grown, 1.0)
    return Truth(
        (Demand((*DIVERGED, "AMP303"), MOVING),), AFTERMATH | {"AMP206"},
        verdicts=("failing", "warning"), rate=_ANY_BUT_RAISE, onset=at,
    )  # fmt: skip


@mechanism("spike/every-epoch", steps=(1500, 300_000))
def every_epoch(story: Story, at: int) -> Truth:
    """One bad shard comes back in each epoch, at the same place: the loss rises there and heals."""
    epochs = int(story.random.integers(4, 16))
    length = story.steps // epochs
    at = min(at, story.steps // 3) % length
    starts = [at + number * length for number in range(epochs)]
    wide = story.random.uniform(4, max(6.0, length / 15))
    height = clear_height(story) * story.random.uniform(1, 1.5)
    lost = 0.0
    for start in starts:
        trouble = bump(story, start, height, wide / 3, wide / 3)
        story.excess += trouble
        story.grad_gain *= 1 + story.random.uniform(0.5, 2) * trouble.clip(max=4)
        lost += float((trouble > 3 * story.task.sigma).sum())
    return healed(story, [start for start in starts if start < story.steps - 20], lost)


@mechanism("spike/small-divisor", precisions=NO_SCALER, steps=(500, 100_000))
def small_divisor(story: Story, at: int) -> Truth:
    """A division by next to nothing: a gradient thousands of times too long kicks the weights."""
    many = int(story.random.integers(1, 7))
    last = int(story.steps * 0.93)
    at = min(at, int(story.steps * 0.8))
    starts = sorted({at + int(x) for x in story.random.integers(0, max(2, last - at), many)})
    gap = min(np.diff([*starts, story.steps])) / 8
    lost = 0.0
    for start in starts:
        trouble = bump(story, start, clear_height(story), 1, max(2.0, min(gap, 30.0)))
        story.excess += trouble
        story.grad_gain[start] *= 10 ** story.random.uniform(1.5, 4)
        story.grad_gain *= 1 + trouble.clip(max=4)
        lost += float((trouble > 3 * story.task.sigma).sum())
    if story.clip is None:  # else the weights would be gone
        story.clip = float(np.median(story.task.grad_norm) * 2 ** story.random.uniform(1, 4))
    return healed(story, starts, lost, ("AMP303", "AMP206"))


@mechanism("nan/masked-rows", precisions=FP16, steps=(300, 100_000))
def masked_rows(story: Story, at: int) -> Truth:
    """A softmax over nothing: the loss of such a batch is nan at any scale, and it is skipped."""
    at = max(at, min(story.steps - 40, 80))
    share = 10 ** (-3 + 2 * story.setting.severity)
    many = max(2, int(share * (story.steps - at)))
    steps = np.unique(story.random.integers(at, story.steps - 4, many))
    story.loss_lost[steps] = True
    often = len(steps) > 20 and len(steps) > 4 * story.steps / story.growth_interval
    codes = ("AMP203", "AMP204", "AMP209", "AMP105", "AMP103", "AMP104")
    return Truth(
        (Demand(codes, (("scale", "skipped"), ("loss", "scale")), at_any_severity=not often),),
        AFTERMATH | {"AMP206", "AMP209", "AMP102"},
        verdicts=("warning", "failing") if often else ("healthy", "warning", "failing"),
        rate=("not-the-cause", "keep", "unknown", "raise"), onset=int(steps[0]),
    )  # fmt: skip


@mechanism("nan/root-at-zero", precisions=NO_SCALER, steps=(100, 300_000))
def root_at_zero(story: Story, at: int) -> Truth:
    """A finite loss, and a gradient that is not: the step made with it leaves nothing."""
    at = min(at, story.steps - 5)
    story.grad_lost[at] = True
    story.loss_lost[at + 1 :] = True
    return all_lost(at)


@mechanism("storm/short-interval", precisions=FP16, steps=(500, 100_000), onsets=("early",))
def short_interval(story: Story, at: int) -> Truth:
    """The scale grows each few steps, so that each few steps overflow."""
    story.growth_interval = int(story.random.choice([1, 1, 2, 2]))
    return Truth(
        (Demand(("AMP102", "AMP105", "AMP103", "AMP104", "AMP202"), (("scale",),)),),
        AFTERMATH | {"AMP206", "AMP102", "AMP212"}, verdicts=("warning", "failing"),
        rate=("not-the-cause", "keep", "unknown"), onset=0,
    )  # fmt: skip


@mechanism("drift/dominating-term", lasting=True, steps=(3000, 100_000), onsets=("early",))
def dominating_term(story: Story, at: int) -> Truth:
    """A second term of the loss grows without bound, and its gradient with it."""
    share = story.since(at // 2).clip(min=0) / story.steps
    height = story.random.uniform(1, 6)
    story.excess += height * share**1.5
    flat = np.where(share > 0, story.task.grad_trend[at // 2] / story.task.grad_trend, 1.0)
    story.grad_gain *= flat * 2 ** (share * (3 + 4 * story.setting.severity))
    return Truth(
        (Demand(("AMP304", *DIVERGED), MOVING),), AFTERMATH, verdicts=("warning", "failing"),
        rate=_ANY_BUT_RAISE, onset=at // 2,
    )  # fmt: skip
