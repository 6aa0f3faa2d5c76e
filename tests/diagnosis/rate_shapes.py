"""Generated courses for the learning-rate advice: rows written down, the truth known."""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis.learning_rate import RateRows, RateState, Setup, advise, fold, rows_of


def course(
    loss, *, seed=0, noise=0.0, ratio=1e-3, grad=1.0, lr=1e-3, base=None, **rest
) -> RateRows:
    """Rows of a training: an Adam's updates, weights of norm 10, everything in band."""
    rng = np.random.default_rng(seed)
    loss = np.asarray(loss, float)
    count = len(loss)
    loss = loss + noise * rng.standard_normal(count)
    wobble = np.exp(0.1 * rng.standard_normal((3, count)))
    ratio = np.broadcast_to(np.asarray(ratio, float), (count,)) * wobble[0]
    grad = np.broadcast_to(np.asarray(grad, float), (count,)) * wobble[1]
    bad = ~np.isfinite(loss)
    given = {
        "step": np.arange(count), "lr": lr, "lr_base": lr if base is None else base,
        "grad_norm": grad, "applied_norm": grad, "param_norm": 10.0, "update_norm": 10 * ratio,
        "max_ratio": 3 * ratio, "input_amax": 3 * wobble[2], "micro_batches": 1, "scale": 65536.0,
    }  # fmt: skip
    return rows_of(**{**given, "loss": np.where(bad, np.nan, loss), "loss_bad": bad, **rest})


def falling(count, start=2.3, end=0.3, speed=5.0):
    """An ordinary loss: exponential decay."""
    return end + (start - end) * np.exp(-speed * np.arange(count) / count)


def diverging(
    good=60, bad=60, *, ratio=0.05, top=8.0, collapse=False, lr=0.1, seed=0, **rest
) -> RateRows:
    """Learns for a while, then its updates grow, the loss climbs, and perhaps the scale falls."""
    first = falling(good, 2.3, 1.2)
    climb = np.linspace(1.3, top, bad)
    ratios = np.concatenate([np.full(good, ratio), np.geomspace(ratio, ratio * 20, bad)])
    grads = np.concatenate([np.full(good, 1.0), np.geomspace(1.0, 50.0, bad)])
    skipped = np.zeros(good + bad)
    if collapse:
        skipped[good + bad // 2 :] = 1
    columns = {"skipped": skipped, "ratio": ratios, "grad": grads, "lr": lr, **rest}
    return course(np.concatenate([first, climb]), seed=seed, noise=0.02, **columns)


def look(rows: RateRows, setup: Setup | None = None):
    """The advice on these rows."""
    return advise(fold(RateState(), rows, setup or Setup()))


def action(rows: RateRows, setup: Setup | None = None) -> str:
    """Only what to do."""
    return look(rows, setup).action.value
