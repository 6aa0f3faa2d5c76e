"""The blind cases' architectures and data: none of them is used by any other case."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.gallery.parts import Batch

WORDS, WIDE = 12, 24


def _random(step: int, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(7919 * seed + step)


# -- data ----------------------------------------------------------------------------------------


def blobs(step: int) -> Batch:
    """Pictures with a disc, and where it is, pixel by pixel."""
    random = _random(step, 11)
    place = torch.rand(8, 2, 1, 1, generator=random) * 16
    rows, columns = torch.arange(16.0)[None, :, None], torch.arange(16.0)[None, None, :]
    far = (rows - place[:, 0]) ** 2 + (columns - place[:, 1]) ** 2
    disc = (far < 12).float()[:, None]
    return disc + 0.5 * torch.randn(8, 1, 16, 16, generator=random), disc


def reversals(step: int) -> Batch:
    """Words, and the same backwards."""
    words = torch.randint(WORDS, (24, 6), generator=_random(step, 12))
    return words, words.flip(1)


def pairs(step: int) -> Batch:
    """Two noisy views of each of 24 things."""
    random = _random(step, 13)
    thing = torch.randn(24, 20, generator=random)
    views = [thing + 0.3 * torch.randn(24, 20, generator=random) for _ in range(2)]
    return views[0], views[1]


def rings(step: int) -> Batch:
    """Points on rings, whose number is the class."""
    random = _random(step, 14)
    ring = torch.randint(4, (40,), generator=random)
    point = functional.normalize(torch.randn(40, 10, generator=random), dim=1)
    return point * (1 + ring[:, None]) + 0.1 * torch.randn(40, 10, generator=random), ring


def waves(step: int) -> Batch:
    """Sound of one of six pitches."""
    random = _random(step, 15)
    pitch = torch.randint(6, (16,), generator=random)
    time = torch.arange(40.0) / 40
    sound = torch.sin(2 * math.pi * (2 + 2 * pitch[:, None]) * time)
    return (sound + 0.3 * torch.randn(16, 40, generator=random))[:, None], pitch


def moons(step: int) -> Tensor:
    """Points on two half circles."""
    random = _random(step, 16)
    angle, side = torch.rand(64, generator=random) * math.pi, torch.rand(64, generator=random) < 0.5
    x = torch.where(side, angle.cos(), 1 - angle.cos())
    y = torch.where(side, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], 1) + 0.05 * torch.randn(64, 2, generator=random)


# -- models --------------------------------------------------------------------------------------


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU()
    )


class UNet(nn.Module):
    """Down, through the waist, up again, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.waist, self.up = _stage(1, 6), _stage(6, 12), _stage(18, 6)
        self.out = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One logit a pixel."""
        wide = self.down(x)
        deep = functional.interpolate(self.waist(functional.max_pool2d(wide, 2)), scale_factor=2)
        return self.out(self.up(torch.cat([wide, deep], 1)))


class Translator(nn.Module):
    """A GRU reads, a GRU writes, and looks back at what was read."""

    def __init__(self, careful: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE)
        self.read = nn.GRU(WIDE, WIDE, batch_first=True)
        self.write = nn.GRU(WIDE, WIDE, batch_first=True)
        self.look = Look(careful)
        self.say = nn.Linear(2 * WIDE, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of each word of the answer."""
        memory, last = self.read(self.words(text))
        places = (torch.arange(6) / 6)[None, :, None].expand(len(text), 6, WIDE)
        state, _ = self.write(places, last)
        return self.say(torch.cat([state, self.look(state, memory)], -1))


class Look(nn.Module):
    """Additive attention, whose weights are made by hand in half unless it is careful."""

    def __init__(self, careful: bool) -> None:
        super().__init__()
        self.match, self.careful = nn.Linear(WIDE, WIDE), careful

    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        """A mixture of the memory for each state."""
        scores = self.match(state) @ memory.transpose(1, 2)
        if self.careful:
            return torch.softmax(scores, -1).to(memory.dtype) @ memory
        weights = (scores * 40).half().exp()
        return (weights / weights.sum(-1, keepdim=True)) @ memory


class Sight(nn.Module):
    """A picture in patches, a transformer over them."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.patchify = nn.Conv2d(1, WIDE, 4, stride=4, bias=False)
        self.norm = norm or nn.LayerNorm(WIDE)
        self.body = nn.TransformerEncoderLayer(WIDE, 2, 48, dropout=0.0, batch_first=True)
        self.place = nn.Parameter(torch.randn(16, WIDE) * 0.1)
        self.paint = nn.Linear(WIDE, 16)

    def forward(self, x: Tensor) -> Tensor:
        """One logit a pixel, patch by patch."""
        patches = self.norm(self.patchify(x).flatten(2).transpose(1, 2))
        drawn = self.paint(self.body(patches + self.place))
        return functional.fold(drawn.float().transpose(1, 2), (16, 16), 4, stride=4)


class ByTheLargest(nn.Module):
    """Divides by the largest, in units of 1e-5, in half unless `upcast`."""

    def __init__(self, upcast: bool) -> None:
        super().__init__()
        self.gain, self.upcast = nn.Parameter(torch.ones(WIDE)), upcast

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of one size."""
        wide = (x.float() if self.upcast else x) * 1e-5
        return wide / wide.abs().amax(-1, keepdim=True) * self.gain


class Dispatch(nn.Module):
    """Each word goes to its favourite expert, and what that says is written back in place."""

    def __init__(self, cast: bool = True) -> None:
        super().__init__()
        self.route = nn.Linear(10, 4)
        self.experts = nn.ModuleList(nn.Linear(10, WIDE) for _ in range(4))
        self.cast = cast

    def forward(self, x: Tensor) -> Tensor:
        """The favourites' opinions, weighted by how much they are liked."""
        liked, favourite = torch.softmax(self.route(x).float(), -1).max(-1)
        out = torch.zeros(len(x), WIDE)
        for number, expert in enumerate(self.experts):
            mine = favourite == number
            said = expert(x[mine])
            out[mine] = said.to(out.dtype) if self.cast else said
        return out * liked[:, None]


def switch(cast: bool = True) -> nn.Sequential:
    """Experts, bent, and a head."""
    return nn.Sequential(Dispatch(cast), nn.Tanh(), nn.Linear(WIDE, 4))


class Similarity(nn.Module):
    """How alike all pairs are, sharpened; as plain exponentials in half if `bare`."""

    def __init__(self, temperature: float, bare: bool) -> None:
        super().__init__()
        self.temperature, self.bare = temperature, bare

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Logits, or their exponentials."""
        logits = a @ b.T / self.temperature
        return logits.half().exp() if self.bare else logits.float()


class Twins(nn.Module):
    """Two encoders into one space."""

    def __init__(self, temperature: float = 0.1, bare: bool = False) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 16))
        self.right = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 16))
        self.compare = Similarity(temperature, bare)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """The comparison of all with all."""
        left, right = self.left(a), self.right(b)
        unit = functional.normalize(left.float(), dim=1), functional.normalize(right.float(), dim=1)
        return self.compare(*unit)


class Denoiser(nn.Module):
    """Predicts the noise in a point, given how long it was stirred."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.first = nn.Linear(8, 32), nn.Linear(2, 32)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 2))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """The noise."""
        phases = time[:, None] * 2.0 ** torch.arange(4)
        return self.body(self.first(x) + self.clock(torch.cat([phases.sin(), phases.cos()], 1)))


class Listener(nn.Module):
    """Convolutions over sound; one column of logits every second sample."""

    def __init__(self, outputs: int = 6) -> None:
        super().__init__()
        self.hear = nn.Conv1d(1, 16, 9, padding=4)
        self.grasp = nn.Conv1d(16, 16, 5, stride=2, padding=2)
        self.say = nn.Conv1d(16, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits over time."""
        return self.say(torch.relu(self.grasp(torch.relu(self.hear(x)))))


class Fixpoint(nn.Module):
    """One cell applied thirty times over."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.enter, self.cell, self.leave = nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        nn.init.orthogonal_(self.cell.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        """Where it ends."""
        state = self.enter(x)
        for _ in range(30):
            state = self.cell(state)
        return self.leave(state)


class Forked(nn.Module):
    """One trunk, a head for each of two tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.LayerNorm(32))
        self.main, self.aside = nn.Linear(32, 4), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What both heads say."""
        shared = self.trunk(x)
        return self.main(shared), self.aside(shared)


class Variational(nn.Module):
    """Encoder, noise, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(10, 12), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What comes back, and how far the code is from plain noise."""
        mean, spread = self.encode(x).float().chunk(2, 1)
        code = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.decode(code), (mean**2 + spread.exp() - spread - 1).sum(1).mean() / 2


# -- optimizers written by hand ------------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mixture of momentum and gradient."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                past = self.state[p].setdefault("past", torch.zeros_like(p))
                p.sub_(torch.sign(0.9 * past + 0.1 * p.grad), alpha=group["lr"])
                past.mul_(0.99).add_(p.grad, alpha=0.01)


class Muon(torch.optim.Optimizer):
    """Steps by the orthogonal part of the momentum; by its direction where there is no matrix."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                past = self.state[p].setdefault("past", torch.zeros_like(p))
                past.mul_(0.9).add_(p.grad)
                p.sub_(_orthogonal(past) if p.ndim == 2 else _unit(past), alpha=group["lr"])


def _unit(x: Tensor) -> Tensor:
    return x / (x.norm() + 1e-12)


def _orthogonal(x: Tensor) -> Tensor:
    x = _unit(x)
    for _ in range(8):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x
