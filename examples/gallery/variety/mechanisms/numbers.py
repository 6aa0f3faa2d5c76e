"""Values that are not finite: with and without a scaler, from a batch, a layer or nowhere."""

from __future__ import annotations

import numpy as np

from examples.gallery.variety.mechanisms.rate import AFTERMATH
from examples.gallery.variety.mechanisms.spikes import KEEPS
from examples.gallery.variety.registry import (
    ATTACHED,
    FP16,
    NO_SCALER,
    SCALARS,
    TABLE,
    mechanism,
)
from examples.gallery.variety.story import Story
from examples.gallery.variety.truth import Demand, Truth

_NORM = (("grad_norm",),)
_LOST = frozenset({"AMP203", "AMP204", "AMP207", "AMP209", "AMP211", "AMP212"})
_OTHER = ("not-the-cause", "keep", "unknown")


def _scattered(story: Story, at: int, many: int) -> np.ndarray:
    """Single steps from there on, none in the last twentieth of the run."""
    last = max(at + 2, int(story.steps * 0.95) - 1)
    return np.unique(story.random.integers(at, last, many)).clip(max=story.steps - 1)


@mechanism("nan/norm-heals", precisions=NO_SCALER, steps=(200, 300_000))
def norm_heals(story: Story, at: int) -> Truth:
    """The gradient's norm is not finite in a step or some; clipped by it, they move nothing."""
    at = min(at, int(story.steps * 0.85))
    steps = _scattered(
        story, at, int(story.random.integers(1, 2 + int(10 * story.setting.severity)))
    )
    story.grad_lost[steps] = True
    return Truth(
        (Demand(("AMP211",), _NORM),), _LOST, worst="warning", verdicts=("warning",),
        rate=_OTHER, onset=int(steps[0]),
    )  # fmt: skip


@mechanism("nan/norm-most-steps", precisions=NO_SCALER, steps=(100, 30_000))
def norm_most_steps(story: Story, at: int) -> Truth:
    """From some step on the norm is not finite in most steps, and the loss goes on as ever."""
    share = 0.6 + 0.39 * story.setting.severity
    story.grad_lost[at:] = story.random.random(story.steps - at) < share
    story.grad_lost[-2:] = True
    return Truth(
        (Demand(("AMP211",), _NORM),), _LOST | AFTERMATH, verdicts=("failing",),
        rate=_OTHER, onset=at,
    )  # fmt: skip


@mechanism("nan/poisoned", precisions=NO_SCALER, steps=(100, 300_000))
def poisoned(story: Story, at: int) -> Truth:
    """One gradient that is not finite, one step made with it: all is nan from there on."""
    story.loss_lost[at] = True
    return all_lost(at)


@mechanism("nan/loss-to-the-end", precisions=NO_SCALER, steps=(100, 300_000))
def loss_to_the_end(story: Story, at: int) -> Truth:
    """The forward pass gives nan from some step on, whatever is fed."""
    story.loss_lost[at:] = True
    if story.random.random() < 0.5:
        story.cut = min(story.steps, at + int(story.random.integers(12, 60)))
    return all_lost(at)


def all_lost(at: int) -> Truth:
    codes = ("AMP204", "AMP207", "AMP211", "AMP203")
    return Truth(
        (Demand(codes, (("loss",),)),), AFTERMATH | _LOST, verdicts=("failing",),
        rate=(*_OTHER, "lower"), onset=at,
    )  # fmt: skip


@mechanism(
    "left-out/nan-loss", precisions=NO_SCALER, seen=(ATTACHED, SCALARS), steps=(300, 100_000)
)
def nan_loss_left_out(story: Story, at: int) -> Truth:
    """The loop leaves out the steps whose loss is nan: a few, or more than it should."""
    at = min(at, int(story.steps * 0.7))
    share = 10 ** (-3.5 + 2.3 * story.setting.severity)
    many = max(1, int(share * (story.steps - at)))
    steps = _scattered(story, at, many)
    story.loss_lost[steps] = story.left_out[steps] = True
    return _left_out(story, steps, ("AMP212", "AMP204", "AMP203", "AMP209"), (("left_out",),))


@mechanism("left-out/large-norm", precisions=NO_SCALER, seen=(TABLE,), steps=(300, 100_000))
def large_norm_left_out(story: Story, at: int) -> Truth:
    """The loop leaves out steps whose norm is over its threshold: their update is exactly zero."""
    at = min(at, int(story.steps * 0.7))
    share = 10 ** (-3.5 + 2.7 * story.setting.severity)
    steps = _scattered(story, at, max(2, int(share * (story.steps - at))))
    story.left_out[steps] = True
    story.grad_gain[steps] *= story.random.uniform(5, 30)
    return _left_out(story, steps, ("AMP212",), (("update_norm",),))


def _left_out(
    story: Story, steps: np.ndarray, codes: tuple[str, ...], seen: tuple[tuple[str, ...], ...]
) -> Truth:
    share = len(steps) / story.steps
    many = share > 0.02
    return Truth(
        (Demand(codes, seen, at_any_severity=not many),), _LOST | {"AMP206", "AMP303"},
        worst="warning" if share > 0.005 or len(codes) > 1 else "info",
        verdicts=("warning",) if many else ("healthy", "warning"), rate=(*_OTHER, "raise"),
        onset=int(steps[0]),
    )  # fmt: skip


@mechanism("input/one-batch", seen=(ATTACHED,), precisions=FP16, steps=(200, 100_000))
def one_batch(story: Story, at: int) -> Truth:
    """A batch, or a few, with nan in them: the scaler skips them."""
    at = max(at, min(story.steps - 20, 80))
    steps = _scattered(story, at, int(story.random.integers(1, 4)))
    story.input_lost[steps] = story.loss_lost[steps] = True
    return Truth(
        (Demand(("AMP209", "AMP206"), (("inputs",),), at_any_severity=True),),
        _LOST | {"AMP206", "AMP102", "AMP105"}, verdicts=("healthy", "warning", "failing"),
        rate=KEEPS, onset=int(steps[0]),
    )  # fmt: skip


@mechanism("input/every-batch", seen=(ATTACHED, SCALARS), steps=(100, 30_000))
def every_batch(story: Story, at: int) -> Truth:
    """From some step on all input has nan in it."""
    story.input_lost[at:] = story.loss_lost[at:] = True
    story.cut = min(story.steps, at + int(story.random.integers(12, 200)))
    fallback = ("AMP204", "AMP103", "AMP104", "AMP105", "AMP203", "AMP207", "AMP211")
    return Truth(
        (
            Demand(("AMP209",), (("inputs",),)),
            Demand(fallback, (("loss",), ("scale",)), unless=("inputs",)),
        ),
        AFTERMATH | _LOST, verdicts=("failing",), rate=_OTHER, onset=at,
    )  # fmt: skip


@mechanism("overflow/forward", precisions=FP16, seen=(ATTACHED, SCALARS), steps=(150, 30_000))
def forward_overflow(story: Story, at: int) -> Truth:
    """One layer's activations leave half precision, in some forwards or from then on in all."""
    at = max(at, min(story.steps - 30, 80))
    _blame(story, forward=True)
    if story.setting.severity > 0.5:
        story.loss_lost[at:] = True
        story.cut = min(story.steps, at + int(story.random.integers(15, 200)))
        verdicts = ("failing",)
    else:
        steps = _scattered(story, at, max(6, int(0.03 * (story.steps - at))))
        story.loss_lost[steps] = True
        verdicts = ("failing", "warning")
    fallback = ("AMP204", "AMP103", "AMP104", "AMP105", "AMP203")
    return Truth(
        (
            Demand(("AMP203",), (("layers",),)),
            Demand(fallback, (("loss",), ("scale",)), unless=("layers",)),
        ),
        AFTERMATH | _LOST, verdicts=verdicts, rate=_OTHER, layer=story.culprit, onset=at,
    )  # fmt: skip


@mechanism("overflow/backward", precisions=FP16, seen=(ATTACHED, SCALARS), steps=(2000, 100_000))
def backward_overflow(story: Story, at: int) -> Truth:
    """One layer's gradient overflows in some steps, the forward pass and the loss being finite."""
    _blame(story, forward=False)
    share = max(
        12 / (story.steps - at), 2 ** (2 + 3 * story.setting.severity) / story.growth_interval
    )
    story.overflows[at:] = story.random.random(story.steps - at) < share
    return Truth(
        (
            Demand(("AMP202",), (("layers",),)),
            Demand(("AMP105", "AMP103"), (("scale",),), unless=("layers",)),
        ),
        AFTERMATH | {"AMP206"}, verdicts=("warning", "failing"), rate=_OTHER,
        layer=story.culprit, onset=at,
    )  # fmt: skip


def _blame(story: Story, *, forward: bool) -> None:
    layers = story.task.kind.layers
    story.culprit = layers[int(story.random.integers(0, len(layers)))]
    story.is_forward = forward
