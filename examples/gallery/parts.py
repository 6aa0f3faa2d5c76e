"""What the cases are made of: small models, endless data, one right training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.gallery.vocabulary import Stage

WIDTH = 16
BATCH = 32
CLASSES = 8
Batch = tuple[Tensor, Tensor]


def autocast(dtype: torch.dtype = torch.float16, *, enabled: bool = True) -> torch.autocast:
    """Half precision on the CPU: as narrow as a GPU's."""
    return torch.autocast("cpu", dtype, enabled=enabled)


def scaler(init_scale: float = 2.0**16, growth_interval: int = 2000) -> torch.amp.GradScaler:
    """A real loss scaler."""
    return torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)


# -- data ----------------------------------------------------------------------------------------


def _random(step: int, seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + step)


def regression(step: int) -> Batch:
    """Inputs, and what a fixed teacher says of them."""
    x = torch.randn(BATCH, WIDTH, generator=_random(step))
    teacher = torch.randn(WIDTH, 4, generator=_random(0, seed=7))
    return x, torch.tanh(x @ teacher / 4)


def classes(step: int) -> Batch:
    """Noisy points around the centres of eight classes."""
    labels = torch.randint(CLASSES, (BATCH,), generator=_random(step, seed=1))
    centres = torch.randn(CLASSES, WIDTH, generator=_random(0, seed=8))
    return centres[labels] + torch.randn(BATCH, WIDTH, generator=_random(step)), labels


def tokens(step: int, length: int = 8) -> Batch:
    """Sequences in which each token follows from the one before it, most of the time."""
    random = _random(step, seed=2)
    text = torch.zeros(BATCH, length + 1, dtype=torch.long)
    text[:, 0] = torch.randint(CLASSES, (BATCH,), generator=random)
    noise = torch.randint(CLASSES, (BATCH, length), generator=random)
    keep = torch.rand(BATCH, length, generator=random) < 0.8
    for at in range(length):
        text[:, at + 1] = torch.where(keep[:, at], (3 * text[:, at] + 1) % CLASSES, noise[:, at])
    return text[:, :-1], text[:, 1:]


def images(step: int) -> Batch:
    """Small pictures with a bright bar whose place is the class."""
    x, labels = torch.randn(16, 3, 8, 8, generator=_random(step)), None
    labels = torch.randint(CLASSES, (16,), generator=_random(step, seed=3))
    x[torch.arange(16), :, labels] += 2
    return x, labels


# -- losses --------------------------------------------------------------------------------------


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error, in float32."""
    return functional.mse_loss(output.float(), target)


def entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over the last dimension, in float32."""
    return functional.cross_entropy(output.float().flatten(0, -2), target.flatten())


# -- models --------------------------------------------------------------------------------------


class SquaredReLU(nn.Module):
    """relu(x)^2: large inputs become very large."""

    def forward(self, x: Tensor) -> Tensor:
        """The square."""
        positive = torch.relu(x)
        return positive * positive


class Block(nn.Module):
    """Normalise, widen, bend, narrow, add."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.act, self.down = nn.Linear(WIDTH, 32), act, nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The input and the block's addition to it."""
        return x + self.down(self.act(self.up(self.norm(x))))


class Tower(nn.Module):
    """A residual perceptron."""

    def __init__(self, outputs: int = 4, act: type[nn.Module] = nn.GELU, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(act()) for _ in range(depth))
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Attention(nn.Module):
    """One head; `mask` is added to the scores, `upcast` takes the softmax in float32."""

    def __init__(self, mask: float = -1e4) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mask = mask

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Each position's look at those before it; `padding` marks positions that do not count."""
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / WIDTH**0.5
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        if padding is not None:
            hidden = hidden | padding[:, None, :]
        scores = scores + hidden.to(scores.dtype) * torch.tensor(self.mask).to(scores.dtype)
        return self.out(torch.softmax(scores, -1) @ self.value(x))


class Language(nn.Module):
    """Embedding, attention, a block, a head."""

    def __init__(self, attention: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.attend = attention or Attention()
        self.block = Block(nn.GELU())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of each next token."""
        x = self.embed(text)
        return self.head(self.block(x + self.attend(x)))


def convnet() -> nn.Sequential:
    """Two convolutions and a head."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 16, CLASSES),
    )  # fmt: skip


# -- the loop ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Loop:
    """A right training loop. A case changes what it is about and leaves the rest."""

    model: nn.Module
    batch: Callable[[int], Batch] = regression
    loss_of: Callable[[Tensor, Tensor], Tensor] = squared
    optimizer: torch.optim.Optimizer | None = None
    scaler: torch.amp.GradScaler | None = None
    steps: int = 100
    clip: float | None = None
    rate: Callable[[int], float] | None = None  # the learning rate of a step
    before: Callable[[int], None] | None = None  # what else happens before a step

    def run(self, stage: Stage, **options: Any) -> None:
        """Train under the stage's watch."""
        self.scaler = self.scaler or scaler()
        self.optimizer = self.optimizer or torch.optim.SGD(self.model.parameters(), lr=0.02)
        with stage.watch(self.scaler, self.model, **options):
            self.go(range(self.steps))

    def go(self, steps: Iterable[int]) -> None:
        """Train these steps, under a watch that is there."""
        for step in steps:
            if self.before is not None:
                self.before(step)
            self._step(step)

    def _step(self, step: int) -> None:
        assert self.optimizer is not None
        assert self.scaler is not None
        if self.rate is not None:
            set_rate(self.optimizer, self.rate(step))
        x, y = self.batch(step)
        with autocast():
            loss = self.loss_of(self.model(x), y)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
