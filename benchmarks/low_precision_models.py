"""Small models in many shapes for trainings below sixteen bits; linear layers are made to order.

Each has a normalisation before its inner layers, as large models do, heads of different names, and
a task of its own. What makes the layers decides which are cast: the models know only which of them
are usually kept wide.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Makes a layer of so many inputs and outputs; its part, if it is usually kept wide.
Maker = Callable[[int, int, str], nn.Module]
INNER, FIRST, HEAD, ROUTER = "", "first", "head", "router"
HEADS = (
    "lm_head", "head", "classifier", "output_layer", "score", "logits", "to_logits", "fc_out",
    "decoder_out", "proj_out", "readout", "final",
)  # fmt: skip
ACTIVATIONS = {
    "relu": nn.functional.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu,
    "tanh": torch.tanh,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """Which model, and how large."""

    family: str
    width: int
    blocks: int
    head: str  # its name
    activation: str
    tied: bool  # the embedding is the head: no layer of its own
    router: str
    gated: bool = False  # blocks have a gate, as wide as what it gates
    mixed: str = "out"  # the name of the layer after attention
    dropout: float = 0.0

    @classmethod
    def drawn(cls, draw: random.Random) -> Shape:
        """Any of them."""
        return cls(
            family=draw.choice(sorted(FAMILIES)),
            width=draw.choice((32, 64, 96)),
            blocks=draw.randint(1, 4),
            head=draw.choice(HEADS),
            activation=draw.choice(sorted(ACTIVATIONS)),
            tied=draw.random() < 0.2,
            router=draw.choice(("router", "gate", "gating")),
            gated=draw.random() < 0.4,
            mixed=draw.choice(("out", "proj", "score", "head")),
            dropout=draw.choice((0.0, 0.0, 0.1)),
        )


class Block(nn.Module):
    """Normalised, up, down, and added."""

    def __init__(self, shape: Shape, make: Maker) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.up = make(shape.width, 2 * shape.width, INNER)
        self.down = make(2 * shape.width, shape.width, INNER)
        self.gate = make(shape.width, 2 * shape.width, INNER) if shape.gated else None
        self.act = ACTIVATIONS[shape.activation]
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        inner = self.act(self.up(seen) if self.gate is None else self.gate(seen))
        if self.gate is not None:
            inner = inner * self.up(seen)
        return x + self.dropout(self.down(inner))


class Attention(nn.Module):
    """Four heads that see what came before."""

    def __init__(self, shape: Shape, make: Maker) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.qkv = make(shape.width, 3 * shape.width, INNER)
        self.mixed = shape.mixed
        setattr(self, shape.mixed, make(shape.width, shape.width, INNER))

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, 4, width // 4))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + getattr(self, self.mixed)(mixed.transpose(1, 2).flatten(-2))


class Experts(nn.Module):
    """A router that weighs four experts."""

    def __init__(self, shape: Shape, make: Maker) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.router_name = shape.router
        setattr(self, shape.router, make(shape.width, 32, ROUTER))
        self.experts = nn.ModuleList([Block(shape, make) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        chosen = getattr(self, self.router_name)(self.norm(x))[..., :2].softmax(-1)
        return sum(chosen[..., n, None] * one(x) for n, one in enumerate(self.experts))


class Mlp(nn.Module):
    """Numbers to numbers: a first layer, blocks, a head."""

    def __init__(self, shape: Shape, make: Maker) -> None:
        super().__init__()
        self.first = make(32, shape.width, FIRST)
        self.blocks = nn.ModuleList([Block(shape, make) for _ in range(shape.blocks)])
        self.head_name = shape.head
        setattr(self, shape.head, make(shape.width, 32, HEAD))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return getattr(self, self.head_name)(x)

    @staticmethod
    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A fixed map of normal inputs."""
        x = torch.randn(64, 32, generator=generator)
        return x, torch.sin(x) + 0.5 * x.roll(1, 1)


class Sequence(nn.Module):
    """The same as `nn.Sequential`, whose layers have numbers for names."""

    batch = Mlp.batch

    def __init__(self, shape: Shape, make: Maker) -> None:
        super().__init__()
        act = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}[shape.activation]
        layers: list[nn.Module] = [make(32, shape.width, FIRST), act()]
        for _ in range(shape.blocks):
            layers += [nn.LayerNorm(shape.width), make(shape.width, shape.width, INNER), act()]
        self.net = nn.Sequential(*layers, make(shape.width, 32, HEAD))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


_WORDS = 64


class Language(nn.Module):
    """A transformer that predicts the next word, with its own head or the embedding's weight."""

    mixer: type[nn.Module] = Block

    def __init__(self, shape: Shape, make: Maker) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, shape.width)
        layers: list[nn.Module] = []
        for _ in range(shape.blocks):
            layers += [Attention(shape, make), self.mixer(shape, make)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(shape.width)
        self.head_name = None if shape.tied else shape.head
        if self.head_name:
            setattr(self, self.head_name, make(shape.width, _WORDS, HEAD))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        if self.head_name is None:
            return nn.functional.linear(x, self.embed.weight)
        return getattr(self, self.head_name)(x)

    @staticmethod
    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Each word is the last plus 3, or by chance any."""
        start = torch.randint(_WORDS, (8, 1), generator=generator)
        tokens = (start + torch.arange(17) * 3) % _WORDS
        noise = torch.rand(tokens.shape, generator=generator) < 0.1
        tokens = torch.where(noise, torch.randint(_WORDS, (8, 17), generator=generator), tokens)
        return tokens[:, :-1], tokens[:, 1:]


class Mixture(Language):
    """The same with experts."""

    mixer = Experts


class Vision(nn.Module):
    """Convolutions, then linear layers."""

    def __init__(self, shape: Shape, make: Maker) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.conv = nn.Conv2d(16, 32, 3, 2, 1)
        self.widen = make(128, shape.width, INNER)
        self.stages = nn.ModuleList([Block(shape, make) for _ in range(shape.blocks)])
        self.head_name = shape.head
        setattr(self, shape.head, make(shape.width, 32, HEAD))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.conv(nn.functional.relu(self.stem(x))))
        x = self.widen(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))
        for stage in self.stages:
            x = stage(x)
        return getattr(self, self.head_name)(x)

    @staticmethod
    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Stripes of sixteen widths."""
        kinds = torch.randint(16, (64,), generator=generator)
        stripes = torch.sin(torch.arange(16) * (kinds[:, None] + 1) / 5)
        x = stripes[:, None, None].expand(64, 3, 16, 16).clone()
        return x + 0.1 * torch.randn(x.shape, generator=generator), kinds


FAMILIES: dict[str, type[nn.Module]] = {
    "mlp": Mlp, "sequential": Sequence, "transformer": Language, "mixture of experts": Mixture,
    "vision": Vision,
}  # fmt: skip


def loss_of(output: Tensor, wanted: Tensor, weights: Tensor | None = None) -> Tensor:
    """Squared errors or cross entropy, each row weighed."""
    output = output.float()
    if wanted.is_floating_point():
        each = (output - wanted).square().mean(-1)
    else:
        each = nn.functional.cross_entropy(
            output.flatten(0, -2), wanted.flatten(), reduction="none"
        )
    return (each if weights is None else each * weights).mean()


def make_model(shape: Shape, make: Maker) -> nn.Module:
    """The model of this shape."""
    return FAMILIES[shape.family](shape, make)
