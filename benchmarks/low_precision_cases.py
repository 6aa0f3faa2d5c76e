"""Trainings below sixteen bits that nobody wrote, drawn from a number: healthy, or with one fault.

What a fault must be called, and in which layers, is said here and not taken from the diagnosis.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

import low_precision_models as models

DYNAMIC = ("tensorwise", "tensorwise e4m3", "rowwise", "rowwise_with_gw_hp", "mxfp8")
DELAYED = "delayed"
WIDE = ("bf16", "fp16")
FAULTS = (
    "saturating outlier channel", "underflowing gradient", "underflowing input", "stale scale",
    "quantised head", "quantised router", "filter that matched nothing", "frozen scale",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One training, and what must be said of it."""

    number: int
    seed: int
    shape: models.Shape
    recipe: str
    fault: str | None
    variant: int  # of the fault, or of what a healthy run resembles
    optimizer: str
    rate: float
    steps: int
    layer_every: int
    begins: int  # the first step with the fault
    block: int  # where it is
    size: float  # how large
    history: int  # of delayed scales
    newest: bool  # they follow the most recent maximum
    low_weights: bool  # in bf16
    clip: bool
    accumulate: int

    @property
    def must(self) -> frozenset[str]:
        """The finding that has to be there."""
        code = {
            "saturating outlier channel": "AMP701", "underflowing gradient": "AMP702",
            "underflowing input": "AMP702", "stale scale": "AMP703", "quantised head": "AMP704",
            "quantised router": "AMP704", "filter that matched nothing": "AMP705",
            "frozen scale": "AMP706",
        }  # fmt: skip
        return frozenset() if self.fault is None else frozenset({code[self.fault]})

    @property
    def let_through(self) -> str | None:
        """The part that the filter should have kept."""
        return {"quantised head": models.HEAD, "quantised router": models.ROUTER}.get(
            self.fault or ""
        )

    @property
    def may(self) -> frozenset[str]:
        """What is true as well: a stale scale cuts off, and what is cut off makes a scale stale."""
        if self.fault in ("saturating outlier channel", "stale scale"):
            return frozenset({"AMP701", "AMP703"})
        if self.fault == "frozen scale":  # what is not finite has findings of its own
            return frozenset(
                {"AMP701", "AMP702", "AMP703", "AMP203", "AMP204", "AMP207", "AMP209", "AMP211"}
            )
        return frozenset()


def drawn(seed: int, number: int, share_of_faults: float = 0.5) -> Case:
    """The case of this number."""
    draw = random.Random(f"{seed}:{number}")
    shape = models.Shape.drawn(draw)
    fault = draw.choice(FAULTS) if draw.random() < share_of_faults else None
    if fault == "quantised head":
        shape = dataclasses.replace(shape, tied=False)
    if fault == "quantised router":
        shape = dataclasses.replace(shape, family="mixture of experts")
    steps, every = draw.randint(50, 90), draw.randint(3, 10)
    return Case(
        number=number,
        seed=draw.randrange(2**31),
        shape=shape,
        recipe=_recipe(draw, fault),
        fault=fault,
        variant=draw.randrange(3),
        optimizer=draw.choice(("sgd", "adam", "adamw")),
        rate=10 ** draw.uniform(-3.5, -2.5),
        steps=steps,
        layer_every=every,
        begins=0 if draw.random() < 0.5 else draw.randint(4, max(5, steps - 9 * every)),
        block=draw.randrange(shape.blocks),
        size=10 ** draw.uniform(0.0, 1.0),
        history=draw.choice((1, 4, 16, 64, 1024)),
        newest=draw.random() < 0.4,
        low_weights=draw.random() < 0.5,
        clip=draw.random() < 0.5,
        accumulate=draw.choice((1, 1, 1, 2)),
    )


def _recipe(draw: random.Random, fault: str | None) -> str:
    """A format in which the fault can happen."""
    if fault in ("saturating outlier channel", "stale scale", "frozen scale"):
        return DELAYED
    if fault == "underflowing input":
        return draw.choice((*DYNAMIC[:2], DELAYED))
    if fault in ("quantised head", "quantised router", "underflowing gradient"):
        return draw.choice((*DYNAMIC, DELAYED))
    if fault == "filter that matched nothing":
        return draw.choice(DYNAMIC)
    return draw.choice((*DYNAMIC, DELAYED, DELAYED, *WIDE))
