"""The held-out cases' architectures: none of them is used by any other case."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.gallery.parts import CLASSES, WIDTH


class Recurrent(nn.Module):
    """A tagger: embedding, a recurrent layer, a head."""

    def __init__(self, cell: type[nn.Module] = nn.GRU) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.cell = cell(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of each next token."""
        return self.head(self.cell(self.embed(text))[0])


class Dilated(nn.Module):
    """Causal convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.near = nn.Conv1d(WIDTH, WIDTH, 2)
        self.far = nn.Conv1d(WIDTH, WIDTH, 2, dilation=2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of each next token."""
        x = self.embed(text).transpose(1, 2)
        x = torch.relu(self.near(functional.pad(x, (1, 0))))
        x = torch.relu(self.far(functional.pad(x, (2, 0))))
        return self.head(x.transpose(1, 2))


def autoencoder() -> nn.Sequential:
    """Through a narrow waist and back."""
    return nn.Sequential(
        nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, WIDTH)
    )


class Pool(nn.Module):
    """Adds up or averages the members of a set, in their own format."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        """One vector a set."""
        return (x * self.gain).sum(1)


class DeepSet(nn.Module):
    """The order of a set's members does not matter."""

    def __init__(self, gain: float = 1 / 16) -> None:
        super().__init__()
        self.member, self.pool = nn.Linear(1, 32), Pool(gain)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """What is said of each set."""
        return self.head(self.norm(self.pool(torch.relu(self.member(x[..., None])))))


class Unit(nn.Module):
    """Vectors of length one."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The direction."""
        length = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True).to(x.dtype)
        return x / torch.maximum(length, torch.tensor(self.eps, dtype=x.dtype))


class Siamese(nn.Module):
    """Two inputs through one branch, compared."""

    def __init__(self, compare: nn.Module) -> None:
        super().__init__()
        self.branch, self.compare = nn.Linear(WIDTH, WIDTH, bias=False), compare
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The targets, from an input and its mirror image."""
        return self.head(self.compare(self.branch(x)) - self.compare(self.branch(x.flip(-1))))


class Mixer(nn.Module):
    """Mixes places, then channels, by plain matrices."""

    def __init__(self, act: type[nn.Module] = nn.SiLU) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.places, self.channels = nn.Linear(16, 16), nn.Linear(WIDTH, WIDTH)
        self.act, self.head = act(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the picture."""
        x = self.patch(x).flatten(2)
        x = x + self.places(x)
        x = x.transpose(1, 2)
        return self.head((x + self.act(self.channels(x))).mean(1))


class Neighbours(nn.Module):
    """The mean over each node's neighbours; isolated nodes need the floor on the degree."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor
        links = torch.rand(32, 32, generator=torch.Generator().manual_seed(5)) < 0.2
        links[0] = False
        self.register_buffer("links", links.float())

    def forward(self, x: Tensor) -> Tensor:
        """The neighbourhood of each node."""
        links = self.links.to(x.dtype)
        return (links @ x) / links.sum(1, keepdim=True).clamp(min=self.floor)


def graph(floor: float = 1.0) -> nn.Sequential:
    """Two rounds of messages."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Neighbours(floor), nn.ReLU(), nn.Linear(WIDTH, 4))


class Gate(nn.Module):
    """Shares of attention for each expert; in half, unless it is careful."""

    def __init__(self, careful: bool) -> None:
        super().__init__()
        self.choose, self.careful = nn.Linear(WIDTH, 4), careful

    def forward(self, x: Tensor) -> Tensor:
        """Four shares that add up to one."""
        scores = 24 * self.choose(x).half()
        if self.careful:
            return torch.softmax(scores.float(), -1)
        powers = scores.exp()
        return powers / powers.sum(-1, keepdim=True)


class Experts(nn.Module):
    """A gated mixture of four linear experts."""

    def __init__(self, careful: bool = True, hard: bool = False) -> None:
        super().__init__()
        self.gate, self.hard = Gate(careful), hard
        self.experts = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """The experts' common opinion, or that of the favourite alone."""
        shares = self.gate(x)
        if self.hard:
            favourite = int(shares.mean(0).argmax())
            return self.experts[favourite](x) * shares[:, favourite, None].float()
        opinions = torch.stack([expert(x).float() for expert in self.experts], 1)
        return (shares[..., None].float() * opinions).sum(1)


class Recommender(nn.Module):
    """Users and items as bags of features, compared by a product."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.EmbeddingBag(64, WIDTH), nn.EmbeddingBag(64, WIDTH)
        self.mix, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The targets, from the buckets that an input falls into."""
        buckets = (x.nan_to_num() * 8).long().clamp(-32, 31) + 32
        users, items = self.users(buckets[:, :8]), self.items(buckets[:, 8:])
        return self.head(torch.relu(self.mix(users * items + 0 * x.mean(1, keepdim=True))))


class Product(nn.Module):
    """Attention between patches whose scores are divided before or after the product."""

    def __init__(self, divide_first: bool) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64)
        self.divide_first = divide_first

    def forward(self, x: Tensor) -> Tensor:
        """Each patch's look at all of them."""
        query, key = self.query(x), self.key(x)
        if self.divide_first:
            scores = (query / 4096) @ key.transpose(1, 2)
        else:
            scores = query @ key.transpose(1, 2) / 4096
        return torch.softmax(scores.float(), -1) @ x.float()


class Patches(nn.Module):
    """A picture as sixteen words."""

    def __init__(self, divide_first: bool = True) -> None:
        super().__init__()
        self.patch, self.attend = nn.Conv2d(3, WIDTH, 2, stride=2), Product(divide_first)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the picture."""
        return self.head(self.attend(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


class Painter(nn.Module):
    """A small encoder and decoder that marks the bright bar."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 2, stride=2), nn.ConvTranspose2d(8, 1, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """One logit a pixel."""
        return self.up(torch.relu(self.down(x)))
