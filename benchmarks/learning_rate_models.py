"""The models of the learning-rate benchmark's trainings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Sequence(nn.Module):
    """Embedding, one sequence model, a head."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(16, 32), body, nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.body(self.embed(tokens))
        return self.head(hidden[0] if isinstance(hidden, tuple) else hidden)


class Block(nn.Module):
    """A causal transformer block, its norms before or after."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.norm_first:
            hidden = hidden + self.attend(self.first(hidden))
            return hidden + self.down(functional.gelu(self.up(self.second(hidden))))
        hidden = self.first(hidden + self.attend(hidden))
        return self.second(hidden + self.down(functional.gelu(self.up(hidden))))

    def attend(self, hidden: Tensor) -> Tensor:
        query, key, value = self.mix(hidden).chunk(3, -1)
        length = hidden.shape[1]
        mask = torch.full((length, length), -1e4).triu(1)
        scores = (query @ key.transpose(1, 2)).float() / 32**0.5 + mask
        return self.out(scores.softmax(-1).to(value.dtype) @ value)


class Residual(nn.Module):
    """A plain residual network without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(32, 48), nn.Linear(48, 10)
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 48)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        for part in self.parts:
            hidden = hidden + part(hidden)
        return self.leave(hidden)


class Mixer(nn.Module):
    """Mixes along patches, then along features."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.across = nn.Linear(8, 8), nn.Linear(8, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.unflatten(1, (8, 8))
        hidden = hidden + self.along(hidden.transpose(1, 2)).transpose(1, 2).relu()
        return self.head(self.norm(self.across(hidden).relu()).mean(1))


class Shifted(nn.Module):
    """Looks back over the last three positions, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(32, 48, 3), nn.Conv1d(48, 32, 3)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = functional.pad(hidden.transpose(1, 2), (4, 0))
        return self.second(self.first(hidden).relu()).relu().transpose(1, 2)


class Sine(nn.Module):
    """A small network of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sin(self.second(torch.sin(2 * self.first(x)))))


class Gated(nn.Module):
    """A perceptron whose hidden values are gated."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.head = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.value(x) * torch.sigmoid(self.gate(x)))


class DeepSet(nn.Module):
    """Each element by itself, then their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(x).mean(1))


class AttentionPool(nn.Module):
    """Tokens weighed by a learnt score, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(40, 32), nn.Linear(32, 1)
        self.hidden, self.head = nn.Linear(32, 48), nn.Linear(48, 5)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embed(words)
        weights = self.score(hidden).softmax(1)
        return self.head(self.hidden((weights * hidden).sum(1)).relu())


class Denoiser(nn.Module):
    """Down and up again along a line, with a connection past it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv1d(1, 8, 5, padding=2), nn.Conv1d(8, 16, 4, 2, 1)
        self.up, self.leave = nn.ConvTranspose1d(16, 8, 4, 2, 1), nn.Conv1d(16, 1, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.enter(x).relu()
        deep = self.up(self.down(wide).relu()).relu()
        return self.leave(torch.cat([wide, deep], 1))


class TwoSided(nn.Module):
    """Two inputs that meet in a product."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 24), nn.Linear(16, 24)
        self.meet, self.head = nn.Linear(24, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x[:, :16]).tanh(), self.right(x[:, 16:]).tanh()
        return self.head(self.meet(left * right).relu())


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(16, 32), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 96), nn.Linear(96, 32)
        nn.init.normal_(self.embed.weight, std=0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        hidden = hidden + self.down(functional.gelu(self.up(self.norm(hidden))))
        return functional.linear(hidden, self.embed.weight)


class Maxout(nn.Module):
    """The largest of three linear pieces, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(32, 96), nn.Linear(32, 96), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).unflatten(1, (32, 3)).amax(2)
        return self.head(self.second(hidden).unflatten(1, (32, 3)).amax(2))
