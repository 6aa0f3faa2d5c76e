"""Long runs under other laws of noise than `streams.py` has, at several lengths: mostly healthy.

Written after the rules and kept apart: nobody tunes on them. Batches differ by log-normal, Student,
gamma and two-humped laws; noise has a memory; losses are signed, seasonal, or fall in stairs.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from examples.gallery.courses import Course, Floats, Stream, healthy
from examples.gallery.vocabulary import Label

LENGTHS = (10_000, 120_000, 1_000_000)
_STREAMS: list[Stream] = []
Change = Callable[[Course], None]


def unseen_streams() -> tuple[Stream, ...]:
    """Every law at every length."""
    return tuple(_STREAMS)


def _law(
    label: Label, *, interval: int = 2000, lengths: Sequence[int] = LENGTHS
) -> Callable[[Change], Change]:
    """Register a change of a healthy course, once for each length."""

    def add(change: Change) -> Change:
        for steps in lengths:
            name = f"{change.__name__.replace('_', '-')}-{steps}"
            what = " ".join((change.__doc__ or "").split())
            make = _maker(change, name, steps)
            _STREAMS.append(Stream(name, what, label, make, interval, "unseen", held_out=True))
        return change

    return add


def _maker(change: Change, name: str, steps: int) -> Callable[..., Sequence[Course]]:
    def make(random: np.random.Generator) -> Sequence[Course]:
        # A noise of its own for each stream, whatever else is drawn.
        own = np.random.default_rng([int(random.integers(2**31)), zlib.crc32(name.encode())])
        course = healthy(own, steps)
        change(course)
        return [course]

    return make


# -- noise ---------------------------------------------------------------------------------------


def _normal(course: Course) -> Floats:
    return course.random.standard_normal(len(course))


def _student(course: Course, freedom: float) -> Floats:
    return course.random.standard_t(freedom, len(course))


def _remembering(course: Course, memory: float) -> Floats:
    """Noise of deviation 1 that forgets a share of 1 - `memory` a step."""
    fresh = (_normal(course) * np.sqrt(1 - memory**2)).tolist()
    return np.array(list(itertools.accumulate(fresh, lambda last, new: memory * last + new)))


def _level(course: Course) -> Floats:
    """The loss without its noise: from 10 to 2."""
    return 2 + 8 / (1 + np.arange(len(course)) / 500)


# -- healthy -------------------------------------------------------------------------------------

_GOOD = Label(advice="keep")


@_law(_GOOD)
def log_normal_batches(course: Course) -> None:
    """Batches differ by a log-normal factor: one in a thousand has ten times the loss."""
    course.loss = _level(course) * np.exp(0.75 * _normal(course))


@_law(_GOOD)
def log_normal_fine_tune(course: Course) -> None:
    """A fine-tune from 0.6 to 0.4 whose batches differ by a log-normal factor of three."""
    level = 0.4 + 0.2 * np.exp(-np.arange(len(course)) / 3000)
    course.loss = level * np.exp(1.1 * _normal(course))
    course.rate[:], course.update_ratio = 1e-5, course.update_ratio / 50


@_law(_GOOD)
def student_batches(course: Course) -> None:
    """The loss has a Student law of three degrees of freedom around its course."""
    course.loss = np.abs(_level(course) * (1 + 0.1 * _student(course, 3.0)))


@_law(_GOOD)
def student_norms(course: Course) -> None:
    """Gradient and update norms with tails: the exponential of a Student law."""
    course.grad_norm = np.exp((0.4 * _student(course, 3.0)).clip(-4, 4))
    course.update_ratio = 1e-3 * np.exp((0.2 * _student(course, 3.0)).clip(-2, 2))


@_law(_GOOD)
def gamma_batches(course: Course) -> None:
    """A loss per sequence: a gamma law, many small and a few large."""
    course.loss = _level(course) * course.random.gamma(1.5, 1 / 1.5, len(course))


@_law(_GOOD)
def two_kinds_of_batches(course: Course) -> None:
    """One batch in twelve is of a task whose loss is six times higher."""
    course.loss *= np.where(course.random.random(len(course)) < 1 / 12, 6.0, 1.0)


@_law(_GOOD)
def slow_noise(course: Course) -> None:
    """Loss and norms with a memory of a hundred steps."""
    course.loss *= np.exp(0.12 * _remembering(course, 0.99))
    course.grad_norm *= np.exp(0.4 * _remembering(course, 0.99))


@_law(_GOOD)
def very_slow_noise(course: Course) -> None:
    """Loss and norms with a memory of two thousand steps, as shards of data differ."""
    course.loss *= np.exp(0.08 * _remembering(course, 0.9995))
    course.grad_norm *= np.exp(0.25 * _remembering(course, 0.9995))


@_law(_GOOD)
def epochs(course: Course) -> None:
    """The loss falls a little at the start of each epoch and creeps up within it."""
    phase = np.arange(len(course)) % 2500 / 2500
    course.loss *= 0.9 + 0.15 * phase


@_law(_GOOD)
def signed_student(course: Course) -> None:
    """A signed loss around zero with tails (a likelihood, a policy gradient)."""
    slope = -np.arange(len(course)) / len(course)
    course.loss = slope + 0.3 * _student(course, 3.0)


@_law(_GOOD)
def adversarial_swings(course: Course) -> None:
    """One half of an adversarial pair: its loss swings slowly, its norms stay."""
    course.loss = 1.0 + 0.4 * np.tanh(_remembering(course, 0.999)) + 0.1 * _normal(course)


@_law(_GOOD)
def diffusion(course: Course) -> None:
    """The loss depends on a random time far more than on the model, and hardly falls."""
    when = course.random.random(len(course))
    course.loss = (0.02 + 0.9 * when**6) * (1 + 0.1 / (1 + np.arange(len(course)) / 2000))


@_law(_GOOD)
def stairs(course: Course) -> None:
    """The rate falls by ten at half and at three quarters; loss and updates follow it down."""
    at = np.arange(len(course)) / len(course)
    factor = np.where(at < 0.5, 1.0, np.where(at < 0.75, 0.1, 0.01))
    course.rate[:] = 3e-4 * factor
    course.update_ratio *= factor
    course.loss *= np.where(at < 0.5, 1.3, np.where(at < 0.75, 1.1, 1.0))


@_law(_GOOD)
def one_cycle(course: Course) -> None:
    """The rate rises for 30 % of the run and falls to zero; the updates follow it."""
    at = np.arange(len(course)) / len(course)
    shape = np.where(at < 0.3, at / 0.3, (1 + np.cos(np.pi * (at - 0.3) / 0.7)) / 2) + 1e-3
    course.rate[:] = 3e-4 * shape
    course.update_ratio *= shape


@_law(_GOOD)
def norm_doubles(course: Course) -> None:
    """The gradient norm doubles over the run, as weights grow, and the loss falls on."""
    course.grad_norm *= 2 ** (np.arange(len(course)) / len(course))
    course.param_norm = 100 * (1 + np.arange(len(course)) / len(course)) ** 0.5


@_law(_GOOD)
def plateau_then_insight(course: Course) -> None:
    """Nothing is learnt for four tenths of the run; then the loss falls at once."""
    begin = 4 * len(course) // 10
    course.loss[:begin] = 4.6 * np.exp(0.02 * course.random.standard_normal(begin))
    after = np.arange(len(course) - begin)
    course.loss[begin:] = (0.2 + 4.4 * np.exp(-after / 500)) * np.exp(
        0.1 * course.random.standard_normal(len(after))
    )


@_law(_GOOD)
def harder_data(course: Course) -> None:
    """Four times the data become harder; the loss jumps by a third and stays there a while."""
    part = len(course) // 5
    for start in range(part, len(course), part):
        after = np.arange(len(course) - start)
        course.loss[start:] *= 1 + 0.33 * np.exp(-after / (0.8 * part))


@_law(_GOOD, interval=500)
def healing_spikes(course: Course) -> None:
    """Bursts of up to seven skips, 20 intervals apart, with a loss that takes 60 steps to heal."""
    for number, start in enumerate(range(6000, len(course) - 4000, 10_000)):
        course.bearable[start : start + 1 + number % 7] = 1e-30
        healing = 1 + 1.5 * np.exp(-np.arange(60) / 15)
        course.loss[start : start + 60] *= healing
        course.grad_norm[start : start + 60] *= healing**2


@_law(_GOOD, interval=1000)
def noisy_ceiling(course: Course) -> None:
    """The scale that a step tolerates has noise of a third of an octave and drifts slowly."""
    octaves = 0.33 * _normal(course) + 2.0 * _remembering(course, 0.9999)
    course.bearable = 2.0 ** (14 + octaves)


@_law(_GOOD)
def rare_skips(course: Course) -> None:
    """One step in ten thousand overflows at any scale: a fifth of what growth itself costs."""
    course.bearable[course.random.random(len(course)) < 1e-4] = 0.0


@_law(_GOOD)
def growing_batches(course: Course) -> None:
    """The batch is doubled three times, and said so: the noise shrinks, the norms with it."""
    for number, share in enumerate((0.2, 0.4, 0.6), 1):
        step = int(share * len(course))
        course.events.append((step, "batch-size-changed", {"from": 2**number, "to": 4**number}))
        course.grad_norm[step:] *= 0.8
        course.loss[step:] = 2 + (course.loss[step:] - 2) * 0.7


# -- with one fault ------------------------------------------------------------------------------

_FAULTY = (120_000,)
_AFTER = ("AMP104", "AMP105", "AMP202", "AMP203", "AMP204", "AMP301", "AMP303", "AMP307")


@_law(Label(("AMP103",), may=_AFTER, onset=100_000), lengths=_FAULTY)
def collapse_under_log_normal_noise(course: Course) -> None:
    """After 100,000 steps of log-normal batches nothing is accepted any more."""
    log_normal_batches(course)
    course.bearable[100_000:] = 0.0
    course.loss[100_001:] = np.nan
    course.loss, course.bearable = course.loss[:100_050], course.bearable[:100_050]


@_law(Label(("AMP105",), may=("AMP103", "AMP206", "AMP202"), onset=110_000), lengths=_FAULTY)
def storm_under_slow_noise(course: Course) -> None:
    """From step 110,000 on one step in 250 overflows at any scale."""
    slow_noise(course)
    course.bearable[110_000:][course.random.random(10_000) < 1 / 250] = 0.0


@_law(Label(("AMP304",), may=("AMP301", "AMP307"), onset=36_000), lengths=_FAULTY)
def drift_under_heavy_tails(course: Course) -> None:
    """The gradient norm, with heavy tails, grows eightfold over the last 84,000 steps."""
    student_norms(course)
    course.grad_norm[36_000:] *= 8 ** (np.arange(84_000) / 84_000)


@_law(Label(("AMP307",), may=("AMP301", "AMP304"), onset=112_000), lengths=_FAULTY)
def climb_under_gamma_noise(course: Course) -> None:
    """In its last 8,000 steps a gamma-noisy loss climbs to 12, weights and updates with it."""
    gamma_batches(course)
    climb = np.linspace(0, 1, 8000)
    course.loss[112_000:] *= 1 + 5 * climb
    course.update_ratio[112_000:] *= 50**climb
    course.grad_norm[112_000:] *= 20**climb
    course.param_norm[112_000:] *= 4**climb


@_law(Label(("AMP206",), may=("AMP105",), onset=119_000), lengths=_FAULTY)
def bad_batches_under_student_noise(course: Course) -> None:
    """Three broken batches near the end overflow; their loss is forty times the usual."""
    student_batches(course)
    for step in (119_000, 119_400, 119_800):
        course.bearable[step], course.loss[step] = 0.0, 80.0
