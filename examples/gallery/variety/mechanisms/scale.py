"""The loss scale falls, sinks, is lost, or steps are skipped again and again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from examples.gallery.variety.mechanisms.rate import AFTERMATH
from examples.gallery.variety.registry import FP16, mechanism
from examples.gallery.variety.story import Restart, Story
from examples.gallery.variety.truth import Demand, Truth
from examples.gallery.variety.unfolding import Columns

SCALE = (("scale",),)
NOT_THE_RATE = ("not-the-cause", "keep")
_FALLEN = ("AMP103", "AMP104")


def _collapsed(onset: int, *, slowly: bool = False) -> Callable[[Columns], Truth]:
    """A fall is asked for from ten octaves on; below eight there was none."""

    def told(columns: Columns) -> Truth:
        level = float(np.nanmax(columns.scale[: max(1, onset)][-200:]))
        fallen = float(np.log2(level) - np.log2(max(columns.scale_after[-1], 1e-300)))
        may = AFTERMATH | {"AMP206", "AMP413"}
        if fallen < 10:
            return Truth(may=may, onset=onset)
        codes = (*_FALLEN, "AMP105") if fallen < 12 or slowly else _FALLEN
        return Truth(
            (Demand(codes, SCALE),), may, onset=onset, rate=("not-the-cause", "lower", "unknown"),
            verdicts=("failing", "warning") if slowly else ("failing",),
        )  # fmt: skip

    return told


def _late_enough(story: Story, at: int) -> int:
    """A step by which the scale has found its level."""
    return max(at, min(story.steps - 30, 60))


@mechanism("collapse/for-good", precisions=FP16, steps=(150, 300_000))
def for_good(story: Story, at: int) -> Callable[[Columns], Truth]:
    """From some step on nothing is accepted any more."""
    at = _late_enough(story, at)
    story.overflows[at:] = True
    if story.random.random() < 0.5:
        story.loss_lost[at + int(story.random.integers(0, 5)) :] = True
    return _collapsed(at)


@mechanism("collapse/cut-short", precisions=FP16, steps=(150, 100_000), onsets=("late",))
def cut_short(story: Story, at: int) -> Callable[[Columns], Truth]:
    """The same, and the job is ended a few skips later."""
    at = _late_enough(story, at)
    story.overflows[at:] = True
    story.loss_lost[at:] = story.random.random() < 0.5
    story.cut = min(story.steps, at + int(story.random.integers(10, 40)))
    story.ends = bool(story.random.random() < 0.5)
    return _collapsed(at)


@mechanism("collapse/limping", precisions=FP16, steps=(2000, 300_000))
def limping(story: Story, at: int) -> Callable[[Columns], Truth]:
    """The tolerated scale halves again and again, each time as soon as the scale has followed."""
    # Each fall by itself is one skip an interval or more; together they are a fall without an end.
    gap = story.random.uniform(8, min(150, story.growth_interval / 3))
    at = max(at, int(story.steps - 30 * gap))
    story.ceiling_shift -= np.maximum(0, story.since(at)) // gap
    return _collapsed(at, slowly=True)


@mechanism("sinking/with-the-gradient", lasting=True, precisions=FP16, steps=(5000, 300_000))
def sinking_with_gradient(story: Story, at: int) -> Callable[[Columns], Truth]:
    """The gradient grows for thousands of steps, and takes the scale down with it."""
    octaves = 5 + 9 * story.setting.severity
    shares = np.maximum(0, story.since(at)) / max(1, story.steps - at)
    story.grad_gain *= 2 ** (octaves * shares) * (story.task.grad_trend[0] / story.task.grad_trend)
    return _sunk(at, ("AMP103", "AMP105", "AMP304", "AMP301", "AMP307"))


@mechanism("sinking/alone", lasting=True, precisions=FP16, steps=(5000, 300_000))
def sinking_alone(story: Story, at: int) -> Callable[[Columns], Truth]:
    """One place in the backward pass tolerates less and less; the norm does not show it."""
    octaves = 5 + 9 * story.setting.severity
    shares = np.maximum(0, story.since(at)) / max(1, story.steps - at)
    story.ceiling_shift -= octaves * shares ** story.random.uniform(0.6, 1.5)
    return _sunk(at, ("AMP103", "AMP105", "AMP202", "AMP104"))


def _sunk(onset: int, codes: tuple[str, ...]) -> Callable[[Columns], Truth]:
    def told(columns: Columns) -> Truth:
        end = columns.scale_after[-max(1, len(columns) // 50) :]
        level = float(np.nanmax(columns.scale[onset // 2 : onset + 1]))
        fallen = float(np.log2(level / max(float(np.median(end)), 1e-300)))
        may = AFTERMATH | {"AMP201"}
        if fallen < 5:
            return Truth(may=may, onset=onset)
        return Truth(
            (Demand(codes, SCALE),), may, verdicts=("warning", "failing"), onset=onset,
            rate=(*NOT_THE_RATE, "lower", "unknown"),
        )  # fmt: skip

    return told


@mechanism("reset/once", precisions=FP16, steps=(500, 1_000_000), onsets=("restart",))
def reset_once(story: Story, at: int) -> Callable[[Columns], Truth]:
    """A restart without the scaler's state: from its first value the scale searches down again."""
    return _resets(story, [at])


@mechanism("reset/each-restart", precisions=FP16, steps=(1000, 300_000), onsets=("restart",))
def reset_each(story: Story, at: int) -> Callable[[Columns], Truth]:
    """Every restart loses the scaler's state."""
    many = int(story.random.integers(2, 6))
    return _resets(story, [story.part((n + 0.7) / (many + 0.5)) for n in range(many)])


@mechanism("reset/recreated", precisions=FP16, steps=(500, 100_000), onsets=("late", "restart"))
def recreated(story: Story, at: int) -> Callable[[Columns], Truth]:
    """The loop makes a new scaler in mid-run, without any restart."""
    return _resets(story, [at], is_told=False)


def _resets(story: Story, steps: list[int], *, is_told: bool = True) -> Callable[[Columns], Truth]:
    first = 2.0 ** (story.task.ceiling // 1 + 1 + int(3 + 6 * story.setting.severity))
    story.init_scale = first
    story.restarts += [Restart(step, first, is_told=is_told) for step in steps]

    def told(columns: Columns) -> Truth:
        inside = [step for step in steps if step < len(columns) - 15]
        if not inside or inside[0] < 100:
            return Truth(may=AFTERMATH | {"AMP108", "AMP416", "AMP107"}, onset=steps[0])
        return Truth(
            (Demand(("AMP108", "AMP416"), SCALE),),
            frozenset({"AMP101", "AMP102", "AMP105", "AMP107", "AMP303", "AMP306", "AMP103"}),
            worst="warning" if is_told else "error",
            verdicts=("warning",) if is_told else ("warning", "failing"),
            rate=NOT_THE_RATE, onset=steps[0],
        )  # fmt: skip

    return told


@mechanism("storm/heavy-batches", precisions=FP16, steps=(2000, 300_000))
def heavy_batches(story: Story, at: int) -> Truth:
    """From some step on many a batch overflows at any scale, one by one."""
    share = 2 ** (1 + 3 * story.setting.severity) * 2 / story.growth_interval
    story.overflows[at:] |= story.random.random(story.steps - at) < share
    return _storm(story, at)


@mechanism("storm/bad-shard", precisions=FP16, steps=(4000, 300_000))
def bad_shard(story: Story, at: int) -> Truth:
    """One sample of the data overflows, each time it comes round."""
    round_of = max(20, int(story.growth_interval / 2 ** (1.5 + 3 * story.setting.severity)))
    story.overflows[at::round_of] = True
    return _storm(story, at)


def _storm(story: Story, at: int) -> Truth:
    """At least three times what growth costs; asked for where twenty such steps are in sight."""
    seen = int(story.overflows[at:].sum())
    may = AFTERMATH | {"AMP206", "AMP102"}
    if seen < 20:
        return Truth(may=may, onset=at)
    return Truth(
        (Demand(("AMP105", "AMP103", "AMP104", "AMP202"), SCALE),), may,
        verdicts=("warning", "failing"), rate=(*NOT_THE_RATE, "unknown"), onset=at,
    )  # fmt: skip


@mechanism("collapse/from-the-start", precisions=FP16, onsets=("early",), steps=(100, 3000))
def from_the_start(story: Story, at: int) -> Truth:
    """No step is ever accepted: an operation overflows whatever the scale."""
    story.overflows[:] = True
    story.loss_lost[:] = story.random.random() < 0.6
    return Truth(
        (Demand((*_FALLEN, "AMP101", "AMP105", "AMP203", "AMP204"), SCALE),),
        AFTERMATH, verdicts=("failing",), rate=("not-the-cause", "unknown"), onset=0,
    )  # fmt: skip
