"""Written courses for what small trainings cannot show: late trouble, resumed runs, shifts.

Each is drawn at random in its lengths and sizes; its label holds by construction.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis.learning_rate import Group, RateRows, RateState, Setup, fold, rows_of

Draw = np.random.Generator


def _rows(draw: Draw, loss: np.ndarray, noise: float, **signals: np.ndarray | float) -> RateRows:
    """An Adam's rows with everything in band but what is given."""
    count = len(loss)
    wobble = np.exp(0.15 * draw.standard_normal((4, count)))
    ratio = np.broadcast_to(signals.pop("ratio", 1e-3), count) * wobble[0]
    grad = np.broadcast_to(signals.pop("grad", 1.0), count) * wobble[1]
    given = {
        "step": np.arange(count), "lr": 1e-3, "lr_base": 1e-3, "grad_norm": grad,
        "applied_norm": grad, "param_norm": 10.0, "update_norm": 10 * ratio,
        "max_ratio": 3 * ratio, "input_amax": 3 * wobble[2], "act_amax": 8 * wobble[3],
        "scale": 65536.0,
    }  # fmt: skip
    return rows_of(**{**given, "loss": loss + noise * draw.standard_normal(count), **signals})


def _falling(count: int, start: float, end: float) -> np.ndarray:
    return end + (start - end) * np.exp(-6 * np.arange(count) / count)


def _late_climb(draw: Draw) -> RateRows:
    """Updates and gradients grow, and the loss climbs with them."""
    good, bad = int(draw.integers(1500, 6000)), int(draw.integers(150, 700))
    grow = np.concatenate([np.ones(good), np.geomspace(1, draw.uniform(4, 20), bad)])
    top = draw.uniform(3.5, 7)
    loss = np.concatenate([_falling(good, 9, 2.5), np.linspace(2.5, top, bad)])
    size = 10 ** draw.uniform(-3.3, -2)
    return _rows(draw, loss, 0.05, ratio=size * grow, grad=grow)


def _late_shift(draw: Draw) -> RateRows:
    """The loss has another level; gradients a little, updates not."""
    good, bad = int(draw.integers(800, 6000)), int(draw.integers(200, 900))
    begin, end = draw.uniform(3.2, 6), draw.uniform(2.8, 3.2)
    loss = np.concatenate([_falling(good, 9, 2.5), _falling(bad, begin, end)])
    grad = np.concatenate([np.ones(good), np.full(bad, draw.uniform(0.8, 2.8))])
    return _rows(draw, loss, 0.05, ratio=10 ** draw.uniform(-3.3, -2), grad=grad)


def _early_shift(draw: Draw) -> RateRows:
    good, bad = int(draw.integers(150, 400)), int(draw.integers(100, 400))
    loss = np.concatenate([_falling(good, 4, 1), _falling(bad, draw.uniform(2.6, 3.6), 2.4)])
    grad = np.concatenate([np.ones(good), np.full(bad, draw.uniform(0.8, 2.8))])
    return _rows(draw, loss, 0.05, ratio=10 ** draw.uniform(-3.3, -2), grad=grad)


def _fed(draw: Draw) -> RateRows:
    """Inputs grow, and gradients and activations with them."""
    good, bad = int(draw.integers(60, 400)), int(draw.integers(60, 200))
    grow = np.concatenate([np.ones(good), np.geomspace(1, draw.uniform(20, 300), bad)])
    loss = np.concatenate([_falling(good, 2.3, 1.2), np.linspace(1.3, draw.uniform(4, 12), bad)])
    more = grow * np.exp(0.1 * draw.standard_normal(len(grow)))
    return _rows(draw, loss, 0.02, grad=grow, act_amax=8 * grow, input_amax=3 * more)


def _activations_run_away(draw: Draw) -> RateRows:
    """The same growth under inputs that stay as they are."""
    good, bad = int(draw.integers(60, 400)), int(draw.integers(60, 200))
    grow = np.concatenate([np.ones(good), np.geomspace(1, draw.uniform(20, 300), bad)])
    loss = np.concatenate([_falling(good, 2.3, 1.2), np.linspace(1.3, draw.uniform(4, 12), bad)])
    return _rows(draw, loss, 0.02, grad=grow, act_amax=8 * grow)


def _breaks(draw: Draw) -> RateRows:
    """Skips without end from one step on, everything in band until then."""
    good, bad = int(draw.integers(200, 5000)), int(draw.integers(20, 60))
    skipped = np.arange(good + bad) >= good
    loss = _falling(good + bad, 4, 1)
    return _rows(draw, loss, 0.03, ratio=10 ** draw.uniform(-3.3, -1.3), skipped=skipped)


def _breaks_as_it_learns(draw: Draw) -> RateRows:
    """The same, where gradients had grown as the loss fell."""
    good, bad = int(draw.integers(100, 500)), int(draw.integers(30, 100))
    skipped = np.arange(good + bad) >= good
    late = np.arange(good + bad) > 0.6 * good
    grown = np.where(late, draw.uniform(3, 8), 1.0)
    weights = np.geomspace(10, 10 ** draw.uniform(1, 4), good + bad)
    loss = _falling(good + bad, 4, 1)
    ratio = 10 ** draw.uniform(-3.3, -0.7)
    return _rows(
        draw, loss, 0.03, grad=grown, skipped=skipped, ratio=ratio, param_norm=weights,
        update_norm=weights * ratio, act_amax=np.geomspace(5, 10 ** draw.uniform(2, 5), good + bad),
    )  # fmt: skip


def _climbs_and_breaks(draw: Draw) -> RateRows:
    """Updates and gradients grow, the loss turns, and then come the skips."""
    good, bad = int(draw.integers(50, 2000)), int(draw.integers(40, 150))
    grow = np.concatenate([np.ones(good), np.geomspace(1, draw.uniform(5, 40), bad)])
    loss = np.concatenate([_falling(good, 4, 1.5), np.linspace(1.6, draw.uniform(3, 9), bad)])
    skipped = np.arange(good + bad) >= good + bad // 2
    ratio = 10 ** draw.uniform(-3, -1.5) * grow
    return _rows(draw, loss, 0.03, grad=grow, ratio=ratio, skipped=skipped)


def _cleared(draw: Draw) -> RateRows:
    """Trouble under updates that are a thousandth of what any training bears."""
    good, bad = int(draw.integers(50, 200)), int(draw.integers(40, 150))
    grow = np.concatenate([np.ones(good), np.geomspace(1, draw.uniform(5, 40), bad)])
    loss = np.concatenate([_falling(good, 4, 1.5), np.linspace(1.6, draw.uniform(3, 9), bad)])
    return _rows(draw, loss, 0.03, grad=grow, ratio=10 ** draw.uniform(-6.5, -5.3) * grow)


def _summed_over_a_larger_batch(draw: Draw) -> RateRows:
    """The batch grows, and the loss and the gradients with it, for they are sums."""
    count = int(draw.integers(140, 300))
    larger = np.arange(count) >= count // 2
    times = draw.uniform(8, 100)
    loss = _falling(count, 60.0, 20.0) * np.where(larger, times, 1.0)
    ratio, grad = (
        np.where(larger, draw.uniform(0.006, 0.05), 0.006),
        np.where(larger, 10 * times, 10),
    )
    return _rows(draw, loss, 0.02, ratio=ratio, grad=grad)


def _flat(draw: Draw) -> RateRows:
    """A loss that does not fall, and weights that stay."""
    count = int(draw.integers(120, 900))
    level = draw.uniform(0.4, 7)
    grown = np.geomspace(10, 10 * draw.uniform(1, 1.3), count)
    return _rows(draw, np.full(count, level), 0.02 * level, param_norm=grown,
                 ratio=10 ** draw.uniform(-4, -2.3))  # fmt: skip


COURSES = (
    ("rate", _late_climb), ("objective", _late_shift), ("objective", _early_shift), ("data", _fed),
    ("rate", _activations_run_away), ("operation", _breaks), ("operation", _breaks_as_it_learns),
    ("rate", _climbs_and_breaks), ("objective", _summed_over_a_larger_batch),
    ("objective", _flat), ("objective", _cleared),
)  # fmt: skip
MADE_OF_EACH = 12


def courses() -> Iterator[tuple[str, str, RateState]]:
    """The cause, the course's name, and the state."""
    for cause, make in COURSES:
        for seed in range(MADE_OF_EACH):
            draw = np.random.default_rng(seed)
            rows = make(draw)
            groups = (Group(base=1e-3, adaptive=True),)
            resumed = make in (_late_climb, _late_shift) and seed % 3 == 0
            larger = (len(rows) // 2,) if make is _summed_over_a_larger_batch else ()
            setup = Setup(groups=groups, resumed=resumed, larger_batches=larger)
            yield cause, make.__name__.strip("_"), fold(RateState(), rows, setup)
