"""Records whose fault begins late or comes on slowly, at any length; `benchmarks/late.py`.

A fault is a mechanism (a scale that sinks, a state that a restart lost, a storm), where it begins
is a share of the record, how it is seen is chosen apart. The loss scale follows torch's own rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from examples.gallery.courses import Course, Floats, healthy
from examples.gallery.vocabulary import Label

_AFTER = ("AMP104", "AMP105", "AMP202", "AMP203", "AMP204", "AMP301", "AMP303", "AMP307")


@dataclass(frozen=True, slots=True)
class LateFault:
    """One record and the truth about it."""

    name: str
    label: Label
    make: Callable[[np.random.Generator], Course]
    interval: int = 2000
    seams: tuple[tuple[int, int], ...] = ()  # at this row steps go back by so many
    cut: str = "all"  # or "bare": loss, rate, scale and skips alone


@dataclass(frozen=True, slots=True)
class Kind:
    """A mechanism, and what is to be found of it."""

    must: str | None
    change: Callable[[Course, int], None]
    may: tuple[str, ...] = ()
    interval: int = 2000
    shares: tuple[float, ...] = (0.1, 0.5, 0.9)
    tells: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()  # how a restart is seen
    needs: int = 0  # steps to the end, before there is anything to be found
    lengths: tuple[int, ...] = field(default=(10_000, 100_000, 1_000_000))
    advice: str | None = None


def late_faults(lengths: tuple[int, ...] | None = None) -> list[LateFault]:
    """Every fault at every length and place that it fits."""
    made = []
    for name, kind in KINDS.items():
        for steps in kind.lengths:
            if lengths and steps not in lengths:
                continue
            for share in kind.shares:
                made += _cases(name, kind, steps, share)
    return made


def _cases(name: str, kind: Kind, steps: int, share: float) -> list[LateFault]:
    at = int(share * steps)
    label = Label(
        (kind.must,) if kind.must else (), tells=kind.tells, may=kind.may, onset=at,
        advice=kind.advice,
    )  # fmt: skip

    def make(event: str | None, back: int = 0) -> Callable[[np.random.Generator], Course]:
        def course(random: np.random.Generator) -> Course:
            made = healthy(random, steps)
            made.loss[at:] = made.loss[at - back : steps - back].copy()  # the checkpoint's
            kind.change(made, at)
            if event:
                made.events.append((at, event, {"of": "scaler"} if "load" in event else {}))
            return made

        return course

    title = f"{name}-{steps}-at-{share:g}"
    if kind.needs and steps - at < kind.needs:
        return []
    if not kind.restarts:
        return [LateFault(title, label, make(None), kind.interval)]
    ways: dict[str, tuple[str | None, tuple[tuple[int, int], ...]]] = {
        "silent": (None, ()),
        "loaded": ("state-loaded", ()),
        "started": ("started", ()),
        "seam": (None, ((at, 500),)),
        "far-seam": ("started", ((at, at // 2),)),
    }
    return [
        LateFault(
            f"{title}-{way}",
            label,
            make(event, sum(back for _, back in seams)),
            kind.interval,
            seams,
        )
        for way, (event, seams) in ways.items()
        if way in kind.restarts
    ]


# -- mechanisms ----------------------------------------------------------------------------------


def _after(course: Course, at: int) -> Floats:
    return np.arange(len(course) - at)


def sinks(course: Course, at: int) -> None:
    """Over ten thousand steps the tolerated scale falls from 2^16 to 2^4, and stays there."""
    span = min(10_000, len(course) - at)
    octaves = 12.0 * np.minimum(_after(course, at) / span, 1.0)
    course.bearable[at:] = 2.0 ** (16.5 - octaves)


def sinks_with_noise(course: Course, at: int) -> None:
    """The same, where batches differ: each halving is regained in part."""
    sinks(course, at)
    course.bearable[at:] *= 2.0 ** (0.7 * course.random.standard_normal(len(course) - at))


def scaler_lost(course: Course, at: int) -> None:
    """A level of 2^11 found after the start; the restart begins at 2^16 again."""
    course.bearable[:] = 2.0**11.5
    course.resets = {at: 2.0**16}


def scaler_lost_upwards(course: Course, at: int) -> None:
    """A run that had grown to 2^21 begins at 2^16 again: not a step is skipped for it."""
    course.bearable[:] = 2.0**21.5
    course.resets = {0: 2.0**16, at: 2.0**16}


def scaler_lost_thrice(course: Course, at: int) -> None:
    """Three restarts, evenly spread over what is left."""
    course.bearable[:] = 2.0**11.5
    left = len(course) - at
    course.resets = {at + n * left // 4: 2.0**16 for n in range(3)}


def optimizer_lost(course: Course, at: int) -> None:
    """Adam without its moments: updates five times as large, a loss that leaps and heals."""
    after = _after(course, at)
    course.update_ratio[at:] *= 1 + 4 * np.exp(-after / 100)
    course.grad_norm[at:] *= 1 + 3 * np.exp(-after / 300)
    course.loss[at:] *= 1 + 0.6 * (1 - np.exp(-after / 5)) * np.exp(-after / 1500)


def optimizer_lost_for_good(course: Course, at: int) -> None:
    """The same, and the loss never comes back where it was."""
    after = _after(course, at)
    course.update_ratio[at:] *= 1 + 4 * np.exp(-after / 100)
    course.grad_norm[at:] *= 1 + 3 * np.exp(-after / 300)
    course.loss[at:] *= 1 + 0.6 * (1 - np.exp(-after / 5))


def collapses_and_stops(course: Course, at: int) -> None:
    """Nothing is accepted any more, and the log stops after twelve such steps."""
    course.bearable[at:] = 0.0
    course.loss[at + 1 :] = np.nan
    end = at + 12
    course.loss, course.bearable = course.loss[:end], course.bearable[:end]


def collapses_and_stops_soon(course: Course, at: int) -> None:
    """The same after six."""
    course.bearable[at:] = 0.0
    course.loss[at + 1 :] = np.nan
    end = at + 6
    course.loss, course.bearable = course.loss[:end], course.bearable[:end]


def collapses(course: Course, at: int) -> None:
    """Nothing is accepted any more, for a tenth of a hundredth and to the end."""
    course.bearable[at:] = 0.0
    course.loss[at + 1 :] = np.nan
    end = min(len(course), at + 400)
    course.loss, course.bearable = course.loss[:end], course.bearable[:end]


def limps(course: Course, at: int) -> None:
    """The tolerated scale halves every 150 steps for thirty octaves, and stays there."""
    course.bearable[at:] *= 2.0 ** -np.minimum(_after(course, at) // 150, 30)


def norm_drifts(course: Course, at: int) -> None:
    """The gradient norm grows eightfold from there on."""
    course.grad_norm[at:] *= 8 ** (_after(course, at) / (len(course) - at))


def storms(course: Course, at: int) -> None:
    """From there on every 250th step overflows at any scale; a lone one came far before."""
    course.bearable[len(course) // 20] = 0.0
    course.bearable[at::250] = 0.0


def runs_away(course: Course, at: int) -> None:
    """Gradients vanish: nothing bounds the scale any more."""
    course.bearable[at:] = 2.0**126
    course.grad_norm[at:] *= np.maximum(np.exp(-_after(course, at) / 50), 1e-12)


_WAYS = ("silent", "loaded", "started", "seam", "far-seam")
KINDS: dict[str, Kind] = {
    "sinks": Kind("AMP103", sinks, ("AMP105",), lengths=(30_000, 100_000, 1_000_000),
                  shares=(0.1, 0.5, 0.65, 0.9)),
    "sinks-noisy": Kind("AMP103", sinks_with_noise, ("AMP105",), interval=500,
                        lengths=(30_000, 100_000, 1_000_000), shares=(0.1, 0.5, 0.65, 0.9)),
    "sinks-fast-growth": Kind("AMP103", sinks_with_noise, ("AMP105", "AMP102"), interval=100,
                              lengths=(30_000, 100_000, 1_000_000), shares=(0.1, 0.5, 0.65, 0.9)),
    "scaler-lost": Kind("AMP108", scaler_lost, ("AMP105", "AMP107"), restarts=_WAYS),
    "scaler-lost-upwards": Kind("AMP108", scaler_lost_upwards, ("AMP105", "AMP107"),
                                lengths=(100_000, 1_000_000), restarts=_WAYS),
    "scaler-lost-thrice": Kind("AMP108", scaler_lost_thrice, ("AMP416", "AMP105", "AMP107"),
                               restarts=_WAYS),
    "optimizer-lost": Kind("AMP306", optimizer_lost, ("AMP301", "AMP307", "AMP304"),
                           restarts=_WAYS[1:]),
    "optimizer-lost-for-good": Kind("AMP306", optimizer_lost_for_good,
                                    ("AMP301", "AMP307", "AMP304"), restarts=_WAYS[1:]),
    "collapses": Kind("AMP103", collapses, _AFTER, shares=(0.5, 0.9, 0.99, 0.999)),
    "collapses-and-stops": Kind("AMP103", collapses_and_stops, _AFTER, shares=(0.5, 0.9, 0.999)),
    "collapses-and-stops-soon": Kind("AMP103", collapses_and_stops_soon, _AFTER,
                                     shares=(0.5, 0.9, 0.999)),
    "limps": Kind("AMP103", limps, _AFTER, needs=2000, shares=(0.1, 0.5, 0.9, 0.99),
                  lengths=(100_000, 1_000_000)),
    "norm-drifts": Kind("AMP304", norm_drifts, ("AMP301", "AMP307"), shares=(0.2, 0.5, 0.8, 0.9)),
    "storms": Kind("AMP105", storms, ("AMP103", "AMP104", "AMP202", "AMP206"),
                   shares=(0.5, 0.9, 0.97), lengths=(100_000, 1_000_000)),
    "runs-away": Kind("AMP106", runs_away, ("AMP410", "AMP201"), needs=50_000,
                      shares=(0.1, 0.5, 0.9), lengths=(100_000, 1_000_000)),
    "runs-away-fast-growth": Kind("AMP106", runs_away, ("AMP410", "AMP201"), interval=200,
                                  shares=(0.1, 0.5)),
}  # fmt: skip


# -- healthy -------------------------------------------------------------------------------------

Change = Callable[[Course], None]


def healthy_records(lengths: tuple[int, ...] | None = None) -> list[LateFault]:
    """Records without a fault, each law at each length."""
    made = []
    for steps in lengths or (30_000, 100_000, 1_000_000):
        for name, (change, interval, back) in HEALTHY.items():
            seams = tuple((at, back) for at in range(steps // 5, steps, steps // 5)) if back else ()
            made.append(
                LateFault(
                    f"{name}-{steps}", Label(advice="keep"), _healthy(change, steps), interval,
                    seams,
                )
            )  # fmt: skip
    return made


def _healthy(change: Change, steps: int) -> Callable[[np.random.Generator], Course]:
    def course(random: np.random.Generator) -> Course:
        made = healthy(random, steps)
        change(made)
        return made

    return course


def saw(course: Course) -> None:
    """Nothing but the saw of a growing scale."""


def lone_skips(course: Course) -> None:
    """One step in ten thousand overflows at any scale."""
    course.bearable[course.random.random(len(course)) < 1e-4] = 0.0


def heavy_tails(course: Course) -> None:
    """The tolerated scale, the loss and the norms have heavy tails."""
    noise = course.random.standard_t(4, (3, len(course)))
    course.bearable = 2.0 ** (16.0 + 0.4 * noise[0].clip(-12, 12))
    course.grad_norm = np.exp((0.6 * noise[1]).clip(-4, 4))
    course.loss *= np.exp((0.25 * noise[2]).clip(-2, 3))


def wandering_ceiling(course: Course) -> None:
    """The tolerated scale varies slowly by an octave or two, as data and weights change."""
    knots = course.random.standard_normal(41).cumsum()
    knots = 1.5 * (knots - knots.mean()) / max(1e-9, np.abs(knots - knots.mean()).max())
    at = np.linspace(0, 40, len(course))
    course.bearable = 2.0 ** (
        15.5 + np.interp(at, np.arange(41), knots) + 0.3 * course.random.standard_normal(len(at))
    )


def falling_gradients(course: Course) -> None:
    """The loss goes to nothing and gradients with it: the scale climbs fourteen octaves."""
    share = np.arange(len(course)) / len(course)
    course.bearable = 2.0 ** (14.5 + 14 * share)
    course.grad_norm *= 2.0 ** (-14 * share)
    course.loss *= np.exp(-6 * share)


def growing_gradients(course: Course) -> None:
    """Weights grow and gradients with them: in the whole record the scale loses five octaves."""
    share = np.arange(len(course)) / len(course)
    course.bearable = 2.0 ** (18.5 - 5 * share + 0.2 * course.random.standard_normal(len(share)))
    course.grad_norm *= 2.0 ** (2 * share)


def annealed(course: Course) -> None:
    """The rate falls to nothing over the last fifth; the gradient norm rises by 2.5 meanwhile."""
    late = np.clip((np.arange(len(course)) / len(course) - 0.8) / 0.2, 0, 1)
    course.rate *= 1 - 0.99 * late
    course.update_ratio *= 1 - 0.99 * late
    course.grad_norm *= 2.5**late
    course.loss *= 1 - 0.05 * late


def restored(course: Course) -> None:
    """Four restarts that load all their states, each in the middle of other batches."""
    for step in range(len(course) // 5, len(course), len(course) // 5):
        course.events.append((step, "state-loaded", {"of": "scaler"}))
        course.loss[step : step + 300] *= 1.02


def restarted_in_silence(course: Course) -> None:
    """Four restarts from a checkpoint 500 steps before: the loss is where it was there."""
    for step in range(len(course) // 5, len(course), len(course) // 5):
        course.events.append((step, "started", {}))


def restarts_warm_up(course: Course) -> None:
    """Restarts that warm the rate up again: updates begin small and come back."""
    for step in range(len(course) // 5, len(course), len(course) // 5):
        course.events.append((step, "state-loaded", {"of": "scaler"}))
        ramp = np.linspace(0.02, 1, 1000)
        course.rate[step : step + 1000] *= ramp
        course.update_ratio[step : step + 1000] *= ramp


def new_data_at_restarts(course: Course) -> None:
    """Restarts that go on with harder data: the loss jumps by a twentieth, norms stay."""
    for step in range(len(course) // 5, len(course), len(course) // 5):
        course.events.append((step, "state-loaded", {"of": "scaler"}))
        course.loss[step:] *= 1 + 0.05 * np.exp(-np.arange(len(course) - step) / 5000)


def cycles(course: Course) -> None:
    """Ten warm restarts of the rate; the gradient norm is three times higher where it is low."""
    phase = np.arange(len(course)) % (len(course) // 10) / (len(course) // 10)
    shape = 0.05 + 0.95 * (1 + np.cos(np.pi * phase)) / 2
    course.rate *= shape
    course.update_ratio *= shape
    course.grad_norm *= 3 ** (1 - shape)


def search_then_saw(course: Course) -> None:
    """Early gradients are large: six octaves of search, regained within a tenth of the record."""
    early = np.clip(np.arange(len(course)) / (0.1 * len(course)), 0, 1)
    course.bearable = 2.0 ** (10.5 + 6 * early)


def healing_bursts(course: Course) -> None:
    """Every thirtieth of the record a burst of four skips that heals."""
    for start in range(3000, len(course) - 1000, max(9000, len(course) // 30)):
        course.bearable[start : start + 4] = 0.0
        course.loss[start : start + 40] *= 1.5
        course.grad_norm[start : start + 5] *= 6


HEALTHY: dict[str, tuple[Change, int, int]] = {
    "saw": (saw, 2000, 0),
    "saw-of-fifty": (saw, 50, 0),
    "lone-skips": (lone_skips, 2000, 0),
    "heavy-tails": (heavy_tails, 2000, 0),
    "heavy-tails-of-two-hundred": (heavy_tails, 200, 0),
    "wandering-ceiling": (wandering_ceiling, 2000, 0),
    "wandering-ceiling-of-two-hundred": (wandering_ceiling, 200, 0),
    "falling-gradients": (falling_gradients, 1000, 0),
    "growing-gradients": (growing_gradients, 1000, 0),
    "annealed": (annealed, 2000, 0),
    "restored": (restored, 2000, 0),
    "restarted-in-silence": (restarted_in_silence, 2000, 500),
    "restarts-warm-up": (restarts_warm_up, 2000, 0),
    "new-data-at-restarts": (new_data_at_restarts, 2000, 0),
    "cycles": (cycles, 2000, 0),
    "search-then-saw": (search_then_saw, 1000, 0),
    "healing-bursts": (healing_bursts, 500, 0),
}
