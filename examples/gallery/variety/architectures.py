"""Architectures: what the loss, the gradient and the weights of a healthy training look like.

Numbers are ranges from which a case draws; they describe trainings, not rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.gallery.variety.noise import LAWS, Floats, Random, remembering

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A kind of model on its kind of task."""

    first_loss: Range
    learnable: Range  # the share of the first loss that can be learnt
    exponent: Range  # how fast: the loss falls with this power of the steps
    noise: Range  # of the loss, as a share of it
    grad_noise: Range  # of the gradient norm's logarithm
    grad_fall: Range  # the power of the loss that the gradient norm follows
    ceiling: Range = (11, 19)  # log2 of the scale that its backward pass tolerates
    weight_norm: Range = (20, 400)
    is_signed: bool = False  # the loss may have any sign
    clips: float = 0.5  # how often its users clip
    layers: tuple[str, ...] = ("stem", "blocks.0", "blocks.1", "blocks.2", "head")


_TEXT = ("embed", "blocks.0.attend", "blocks.0.up", "blocks.1.attend", "blocks.1.up", "head")
_PICTURE = ("stem", "stages.0.conv", "stages.1.conv", "stages.2.conv", "head")
_CELLS = ("embed", "cells.0", "cells.1", "project")
ARCHITECTURES = {
    "decoder": Architecture((8, 11.5), (0.6, 0.8), (0.15, 0.4), (0.01, 0.06), (0.1, 0.3), (0.3, 1),
                            clips=0.95, layers=_TEXT),
    "masked-encoder": Architecture((7, 10.5), (0.5, 0.85), (0.15, 0.4), (0.02, 0.08), (0.1, 0.4),
                                   (0.2, 1), clips=0.8, layers=_TEXT),
    "post-norm": Architecture((6, 11), (0.4, 0.8), (0.2, 0.4), (0.02, 0.08), (0.2, 0.5), (0.2, 1),
                              ceiling=(9, 16), layers=_TEXT),
    "experts": Architecture((8, 11), (0.6, 0.8), (0.15, 0.4), (0.01, 0.05), (0.2, 0.5), (0.3, 1),
                            clips=0.9, layers=("embed", "blocks.0.router", "blocks.0.experts.0",
                                               "blocks.0.experts.1", "head")),
    "translation": Architecture((8, 10.5), (0.5, 0.8), (0.2, 0.5), (0.03, 0.1), (0.1, 0.4),
                                (0.2, 0.8), ceiling=(4, 12), layers=_TEXT),
    "convnet": Architecture((2.3, 7), (0.5, 0.97), (0.3, 0.8), (0.05, 0.25), (0.1, 0.5), (0.1, 0.8),
                            clips=0.1, layers=_PICTURE),
    "vision-transformer": Architecture((4.6, 7), (0.3, 0.8), (0.2, 0.5), (0.03, 0.1), (0.1, 0.3),
                                       (-0.3, 0.6), clips=0.8, layers=_TEXT[1:]),
    "diffusion": Architecture((0.6, 1.1), (0.8, 0.97), (0.4, 0.9), (0.2, 0.6), (0.2, 0.5), (0.5, 1),
                              clips=0.6, layers=_PICTURE),
    "detector": Architecture((3, 30), (0.5, 0.9), (0.2, 0.6), (0.1, 0.3), (0.3, 0.7), (0.2, 0.8),
                             ceiling=(6, 15), layers=_PICTURE),
    "segmenter": Architecture((0.7, 3), (0.4, 0.9), (0.2, 0.7), (0.08, 0.3), (0.2, 0.5), (0.2, 0.8),
                              clips=0.2, layers=_PICTURE),
    "recurrent": Architecture((4, 10), (0.3, 0.7), (0.2, 0.5), (0.03, 0.12), (0.3, 0.8), (0.1, 0.7),
                              clips=0.95, layers=_CELLS),
    "speech": Architecture((3, 60), (0.5, 0.95), (0.2, 0.6), (0.05, 0.25), (0.3, 0.7), (0.2, 0.8),
                           ceiling=(3, 14), clips=0.8, layers=_CELLS),
    "summed-autoencoder": Architecture((200, 20000), (0.4, 0.9), (0.3, 0.7), (0.02, 0.1),
                                       (0.1, 0.4), (0.3, 1), ceiling=(-6, 3), clips=0.3),
    "adversary": Architecture((0.6, 1.5), (0.0, 0.3), (0.1, 0.4), (0.1, 0.3), (0.2, 0.6),
                              (-0.3, 0.3), is_signed=True, clips=0.2, layers=_PICTURE),
    "policy": Architecture((0.05, 1), (0.0, 0.4), (0.1, 0.5), (0.3, 0.8), (0.4, 0.8), (-0.2, 0.3),
                           is_signed=True, clips=0.8),
    "contrastive": Architecture((4, 11), (0.2, 0.6), (0.1, 0.4), (0.02, 0.08), (0.1, 0.4),
                                (-0.2, 0.5), layers=_PICTURE),
    "recommender": Architecture((0.6, 0.75), (0.1, 0.4), (0.1, 0.3), (0.03, 0.1), (0.3, 0.7),
                                (-0.2, 0.4), ceiling=(12, 22), clips=0.1),
    "graph": Architecture((0.5, 4), (0.4, 0.9), (0.3, 0.7), (0.05, 0.3), (0.3, 0.7), (0.2, 0.9),
                          clips=0.3),
    "forecaster": Architecture((0.5, 2), (0.3, 0.8), (0.3, 0.8), (0.1, 0.4), (0.2, 0.6), (0.3, 1),
                               layers=_CELLS),
    "fine-tuned": Architecture((0.4, 2.5), (0.1, 0.6), (0.2, 0.6), (0.1, 0.5), (0.2, 0.7),
                               (0.1, 0.6), clips=0.9, layers=_TEXT),
    "speaker": Architecture((5, 15), (0.4, 0.9), (0.2, 0.6), (0.05, 0.2), (0.2, 0.5), (0.2, 0.8),
                            clips=0.4, layers=_CELLS),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """One architecture's numbers, drawn for a case."""

    kind: Architecture
    level: Floats  # the loss without its noise
    loss: Floats
    unit: Floats  # what a change of the loss is measured in: its size; of a signed one, its spread
    grad_norm: Floats
    grad_trend: Floats  # the same without its noise
    sigma: float  # the noise of the loss, in units
    ceiling: float
    weight_norm: float
    elements: int


def draw(random: Random, value: Range) -> float:
    """A number of this range."""
    return float(random.uniform(*value))


def task_of(kind: Architecture, random: Random, steps: int) -> Task:
    """The loss and the gradient of a healthy training of so many steps."""
    first, learnable = draw(random, kind.first_loss), draw(random, kind.learnable)
    pace = float(np.exp(random.uniform(np.log(5), np.log(max(10, steps / 8)))))
    fallen = (1 + np.arange(steps) / pace) ** -draw(random, kind.exponent)
    level = first * (1 - learnable + learnable * fallen)
    sigma = draw(random, kind.noise)
    shake = _noise(random, steps, (0.0, 0.0, 0.3, 0.9, 0.99) if sigma < 0.12 else (0.0, 0.3))
    if kind.is_signed:
        level = level - first * random.uniform(0, 1.5)
        unit = np.full(steps, first)
        loss = level + sigma * unit * shake
    else:
        unit = level
        loss = level * np.exp((sigma * shake).clip(-2.5, 2.5) - sigma**2 / 2)
    shaken = np.exp(
        (draw(random, kind.grad_noise) * _noise(random, steps, (0.0, 0.3, 0.9))).clip(-3, 3)
    )
    trend = float(np.exp(random.uniform(-3, 3))) * fallen ** draw(random, kind.grad_fall)
    return Task(
        kind, level, loss, unit, trend * shaken, trend, sigma,
        ceiling=draw(random, kind.ceiling),
        weight_norm=float(np.exp(random.uniform(*np.log(kind.weight_norm)))),
        elements=int(10 ** random.uniform(4, 9)),
    )  # fmt: skip


def _noise(random: Random, steps: int, memories: tuple[float, ...]) -> Floats:
    """Noise of deviation 1 under a law, and with a memory, of the case's own."""
    law = LAWS[random.integers(len(LAWS))]
    memory = float(random.choice(memories))
    return remembering(law(random, steps), memory).clip(-12, 12)
