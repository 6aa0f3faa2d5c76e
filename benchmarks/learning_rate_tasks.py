"""The models and tasks of the learning-rate benchmark's small trainings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model and where its batches come from."""

    model: nn.Module
    batch: Callable[[], Batch]
    loss: Callable[[Tensor, Tensor], Tensor] = field(default=functional.cross_entropy)


# --- tasks: a teacher's labels on random inputs, so that every seed has fresh data ----------------


def _taught(generator: torch.Generator, inputs: int, classes: int) -> Callable[[], Batch]:
    teacher = torch.randn(inputs, classes, generator=generator)

    def batch() -> Batch:
        x = torch.randn(32, inputs, generator=generator)
        return x, (x @ teacher).argmax(1)

    return batch


def _tokens(generator: torch.Generator) -> Callable[[], Batch]:
    """Sequences in which each token follows from the one before by a fixed table."""
    table = torch.randperm(16, generator=generator)

    def batch() -> Batch:
        rows = [torch.randint(16, (8,), generator=generator)]
        for _ in range(12):
            rows.append(table[rows[-1]])
        tokens = torch.stack(rows, 1)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def _per_token(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _mlp(generator: torch.Generator) -> Task:
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    return Task(nn.Sequential(*layers), _taught(generator, 32, 10))


def _deep(generator: torch.Generator) -> Task:
    hidden = [part for _ in range(6) for part in (nn.Linear(48, 48), nn.Tanh())]
    layers = [nn.Linear(32, 48), nn.Tanh(), *hidden, nn.Linear(48, 10)]
    return Task(nn.Sequential(*layers), _taught(generator, 32, 10))


def _cnn(generator: torch.Generator) -> Task:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    return Task(model, _taught(generator, 64, 10))


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


def _transformer(*, norm_first: bool) -> Callable[[torch.Generator], Task]:
    def make(generator: torch.Generator) -> Task:
        body = nn.Sequential(Block(norm_first=norm_first), Block(norm_first=norm_first))
        return Task(Sequence(body), _tokens(generator), _per_token)

    return make


def _recurrent(kind: type[nn.Module]) -> Callable[[torch.Generator], Task]:
    def make(generator: torch.Generator) -> Task:
        return Task(Sequence(kind(32, 32, batch_first=True)), _tokens(generator), _per_token)

    return make


def _regression(generator: torch.Generator) -> Task:
    teacher = torch.randn(32, 4, generator=generator) / 4

    def batch() -> Batch:
        x = torch.randn(32, 32, generator=generator)
        return x, torch.tanh(x @ teacher)

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    return Task(model, batch, functional.mse_loss)


def _autoencoder(generator: torch.Generator) -> Task:
    basis = torch.randn(6, 40, generator=generator)

    def batch() -> Batch:
        x = torch.randn(32, 6, generator=generator) @ basis / 6**0.5
        return x, x

    model = nn.Sequential(
        nn.Linear(40, 24), nn.GELU(), nn.Linear(24, 8), nn.GELU(), nn.Linear(8, 40)
    )
    return Task(model, batch, functional.mse_loss)


def _bag(generator: torch.Generator) -> Task:
    weights = torch.randn(200, 5, generator=generator)

    def batch() -> Batch:
        words = torch.randint(200, (32, 12), generator=generator)
        return words, weights[words].sum(1).argmax(1)

    return Task(nn.Sequential(nn.EmbeddingBag(200, 32), nn.Linear(32, 5)), batch)


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


def _batchnorm(generator: torch.Generator) -> Task:
    hidden = [part for _ in range(3) for part in (nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU())]
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), *hidden, nn.Linear(48, 10))
    return Task(model, _taught(generator, 32, 10))


class Sine(nn.Module):
    """A small network of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sin(self.second(torch.sin(2 * self.first(x)))))


def _sine(generator: torch.Generator) -> Task:
    teacher = torch.randn(8, 4, generator=generator) / 2

    def batch() -> Batch:
        x = torch.randn(32, 8, generator=generator)
        return x, torch.sin(x @ teacher)

    return Task(Sine(), batch, functional.mse_loss)


# --- made last ---


class Gated(nn.Module):
    """A perceptron whose hidden values are gated."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.head = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.value(x) * torch.sigmoid(self.gate(x)))


def _groupnorm(generator: torch.Generator) -> Task:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(),
        nn.Linear(144, 10),
    )  # fmt: skip
    return Task(model, _taught(generator, 64, 10))


class DeepSet(nn.Module):
    """Each element by itself, then their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(x).mean(1))


def _deepset(generator: torch.Generator) -> Task:
    teacher = torch.randn(8, 5, generator=generator)

    def batch() -> Batch:
        x = torch.randn(32, 6, 8, generator=generator)
        return x, (x.mean(1) @ teacher).argmax(1)

    return Task(DeepSet(), batch)


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


def _attention_pool(generator: torch.Generator) -> Task:
    weights = torch.randn(40, 5, generator=generator)

    def batch() -> Batch:
        words = torch.randint(40, (32, 6), generator=generator)
        return words, weights[words].sum(1).argmax(1)

    return Task(AttentionPool(), batch)


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


def _denoise(generator: torch.Generator) -> Task:
    at = torch.arange(32) / 32

    def batch() -> Batch:
        speed, phase = torch.rand(2, 32, 1, generator=generator) * 6
        clean = torch.sin(speed * at * 3 + phase).unsqueeze(1)
        return clean + 0.5 * torch.randn(clean.shape, generator=generator), clean

    return Task(Denoiser(), batch, functional.mse_loss)


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


TASKS: dict[str, Callable[[torch.Generator], Task]] = {
    "mlp": _mlp,
    "deep": _deep,
    "cnn": _cnn,
    "pre-ln": _transformer(norm_first=True),
    "post-ln": _transformer(norm_first=False),
    "rnn": _recurrent(nn.RNN),
    "gru": _recurrent(nn.GRU),
    "regression": _regression,
    "autoencoder": _autoencoder,
    "bag": _bag,
    "conv1d": lambda generator: Task(Sequence(Shifted()), _tokens(generator), _per_token),
    "batchnorm": _batchnorm,
    "sine": _sine,
    "residual": lambda generator: Task(Residual(), _taught(generator, 32, 10)),
    "mixer": lambda generator: Task(Mixer(), _taught(generator, 64, 10)),
    "gated": lambda generator: Task(Gated(), _taught(generator, 32, 10)),
    "groupnorm": _groupnorm,
    "deepset": _deepset,
    "attention-pool": _attention_pool,
    "denoise": _denoise,
    "product": lambda generator: Task(TwoSided(), _taught(generator, 32, 4)),
    "tied": lambda generator: Task(Tied(), _tokens(generator), _per_token),
    "maxout": lambda generator: Task(Maxout(), _taught(generator, 32, 10)),
}
