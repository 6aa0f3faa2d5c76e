"""Long runs of generated rows, 100,000 steps and more: length is what they test.

A stream says which scale each step tolerates and what else it shows; the loss scale's course then
follows torch's own rule. Most are healthy: a rule that is right on 200 steps may well fire on the
fiftieth tooth of a saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from examples.gallery.courses import STEPS, Course, Stream, healthy
from examples.gallery.vocabulary import Label

_STREAMS: list[Stream] = []
Make = Callable[[Course], object]


def _stream(label: Label, *, interval: int = 2000, steps: int = STEPS) -> Callable[[Make], Make]:
    """Register a function that changes a healthy course, or returns the courses of some ranks."""

    def add(change: Make) -> Make:
        def make(random: np.random.Generator) -> Sequence[Course]:
            course = healthy(random, steps)
            changed = change(course)
            return changed if isinstance(changed, list) else [course]

        name = change.__name__.replace("_", "-")
        what = " ".join((change.__doc__ or "").split())
        _STREAMS.append(Stream(name, what, label, make, interval))
        return change

    return add


def all_streams() -> tuple[Stream, ...]:
    """Every stream."""
    return tuple(_STREAMS)


# -- healthy -------------------------------------------------------------------------------------

_GOOD = Label(advice="keep")


@_stream(Label(tells=("AMP102",), advice="keep"))
def fifty_growth_teeth(course: Course) -> None:
    """Nothing but the saw of a growing scale."""


@_stream(Label(tells=("AMP102",), advice="keep"), steps=1_000_000)
def a_million_quiet_steps(course: Course) -> None:
    """The same, ten times longer."""


@_stream(_GOOD, interval=500)
def recovering_spikes(course: Course) -> None:
    """Every 9,000 steps a burst of one to six skips and a loss spike; then all is as before."""
    for number, start in enumerate(range(9_000, STEPS, 9_000)):
        course.bearable[start : start + 1 + number % 6] = 1e-30
        course.loss[start : start + 40] *= 1.5
        course.grad_norm[start : start + 5] *= 8


@_stream(_GOOD)
def curriculum(course: Course) -> None:
    """The data become harder three times: the loss jumps and falls again, the norms stay."""
    for start in (20_000, 50_000, 80_000):
        after = np.arange(STEPS - start)
        course.loss[start:] += 1.5 * np.exp(-after / 4000)


@_stream(_GOOD)
def warm_restarts(course: Course) -> None:
    """Cosine with ten warm restarts: the rate and the update ratio jump back up each time."""
    phase = np.arange(STEPS) % 10_000 / 10_000
    shape = 0.05 + 0.95 * (1 + np.cos(np.pi * phase)) / 2
    course.rate[:] = 3e-4 * shape
    course.update_ratio *= shape
    course.loss *= 1 + 0.08 * shape


@_stream(_GOOD)
def a_long_ramp(course: Course) -> None:
    """The rate rises for the whole run, and the model tolerates it."""
    shape = (1 + np.arange(STEPS)) / STEPS
    course.rate[:] = 3e-4 * shape
    course.update_ratio *= shape


@_stream(_GOOD)
def noisy_fine_tune(course: Course) -> None:
    """A fine-tune at 0.45 whose batches differ by a factor of three."""
    course.loss[:] = 0.45 * np.exp(0.5 * course.random.standard_normal(STEPS))
    course.rate[:] = 2e-5
    course.update_ratio /= 30


@_stream(_GOOD)
def signed_loss(course: Course) -> None:
    """A log-likelihood that falls from 1 through zero to -8."""
    course.loss[:] = 1 - 9 * np.arange(STEPS) / STEPS + 0.3 * course.random.standard_normal(STEPS)


@_stream(_GOOD)
def flat_at_its_best(course: Course) -> None:
    """A resumed run that has nothing left to learn."""
    course.loss[:] = 1.7 * np.exp(0.03 * course.random.standard_normal(STEPS))


@_stream(_GOOD)
def heavy_tails(course: Course) -> None:
    """Gradient norms with a heavy tail: one in a thousand is ten times the median."""
    course.grad_norm[:] = np.exp(0.7 * course.random.standard_t(4, STEPS)).clip(0.02, 50)


@_stream(_GOOD)
def resumed_four_times(course: Course) -> None:
    """Four interruptions, each resumed with all its states."""
    for step in range(20_000, STEPS, 20_000):
        course.events.append((step, "state-loaded", {"of": "scaler"}))


@_stream(_GOOD)
def adversarial_half(course: Course) -> None:
    """One half of an adversarial pair: its loss rises although it is healthy, its norms stay."""
    course.loss[:] = (
        0.7 + 1.5 * np.arange(STEPS) / STEPS + 0.1 * course.random.standard_normal(STEPS)
    )


# -- with one fault ------------------------------------------------------------------------------

_AFTERMATH = ("AMP104", "AMP105", "AMP202", "AMP203", "AMP204", "AMP301", "AMP303", "AMP307")


@_stream(Label(("AMP103",), may=_AFTERMATH, onset=90_000))
def late_collapse(course: Course) -> None:
    """After 90,000 good steps nothing is accepted any more."""
    course.bearable[90_000:] = 0.0
    course.loss[90_002:] = np.nan
    course.loss, course.bearable = course.loss[:90_060], course.bearable[:90_060]


@_stream(Label(("AMP103",), may=_AFTERMATH, onset=91_200))
def limping_collapse(course: Course) -> None:
    """From step 90,000 on the bearable scale halves every 150 steps, to the end."""
    course.bearable[90_000:] *= 2.0 ** -(np.arange(10_000) // 150)


@_stream(Label(("AMP105",), may=("AMP103", "AMP202", "AMP206"), onset=94_800))
def late_storm(course: Course) -> None:
    """In the last 6,400 steps every 400th overflows at any scale: five an interval, long apart."""
    course.bearable[93_600::400] = 0.0


@_stream(Label(("AMP304",), may=("AMP301", "AMP307"), onset=30_000))
def slow_gradient_drift(course: Course) -> None:
    """The gradient norm grows twelvefold over 70,000 steps; no overflow."""
    course.grad_norm[30_000:] *= 12 ** (np.arange(70_000) / 70_000)
    course.grad_norm[:30_000] *= np.linspace(0.9, 1, 30_000)


@_stream(Label(("AMP307",), may=("AMP301", "AMP304"), onset=97_000))
def late_climb(course: Course) -> None:
    """In its last 3,000 steps the loss climbs to 15, weights and updates with it; no overflow."""
    climb = np.linspace(0, 1, 3000)
    course.loss[97_000:] *= 1 + 6.5 * climb
    course.update_ratio[97_000:] *= 40**climb
    course.grad_norm[97_000:] *= 20**climb
    course.param_norm[97_000:] *= 4**climb


@_stream(
    Label(("AMP108",), may=("AMP105", "AMP416", "AMP107"), advice="not-the-cause", onset=25_000)
)
def scaler_state_lost_at_each_resume(course: Course) -> None:
    """Three resumes that each begin at 2^24 again, where 2^16 is bearable."""
    course.resets = {0: 2.0**24, 25_000: 2.0**24, 50_000: 2.0**24, 75_000: 2.0**24}


@_stream(Label(("AMP210",), may=("AMP205",), layer="blocks.3.attend.scores", onset=20_000))
def attention_logits_grow(course: Course) -> None:
    """The largest attention score grows from 20 to 40,000 in 80,000 steps."""
    growth = 2000 ** np.clip((np.arange(STEPS) - 20_000) / 80_000, 0, 1)
    course.logit = 20 * growth * np.exp(0.1 * course.random.standard_normal(STEPS))


@_stream(Label(("AMP601",), may=("AMP602", "AMP105", "AMP413"), onset=60_000))
def ranks_part(course: Course) -> list[Course]:
    """From step 60,000 on rank 1 skips steps that rank 0 takes: their scales part."""
    other = healthy(course.random)
    other.bearable[60_000:] = 2.0**12
    return [course, other]


@_stream(Label(("AMP605",), onset=0))
def ranks_see_the_same_data(course: Course) -> list[Course]:
    """Two ranks whose losses are the same to the last bit."""
    return [course, replace(course)]


@_stream(Label(("AMP603",), onset=70_000))
def rank_falls_silent(course: Course) -> list[Course]:
    """Rank 1 writes nothing after step 70,000, and rank 0 goes on."""
    other = healthy(course.random)
    other.loss = other.loss[:70_000]
    other.ends = False
    return [course, other]
