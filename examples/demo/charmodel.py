"""A small language model of characters, and the text it learns: a module of Python's own."""

import argparse
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

CONTEXT = 16  # characters that the model sees
CHARACTERS = 128  # ASCII


def arguments() -> argparse.Namespace:
    """What every scenario may be told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--run", default=None, help="the run's name")
    return parser.parse_args()


def device() -> str:
    """A CUDA device where there is one; else the CPU, whose fp16 is slow and just as narrow."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class Batches:
    """Random pieces of the text, each with the character that follows it."""

    def __init__(self, seed: int, size: int = 96, of: ModuleType = argparse) -> None:
        text = Path(str(of.__file__)).read_bytes()
        self.text = torch.tensor([min(byte, CHARACTERS - 1) for byte in text])
        self.random = torch.Generator().manual_seed(seed)
        self.size = size

    def next(self, where: str) -> tuple[Tensor, Tensor]:
        """One batch: contexts, and the characters to predict."""
        last = len(self.text) - CONTEXT - 1
        starts = torch.randint(last, (self.size, 1), generator=self.random)
        pieces = self.text[starts + torch.arange(CONTEXT + 1)]
        return pieces[:, :-1].to(where), pieces[:, -1].to(where)


class Block(nn.Module):
    """Normalise, widen, bend, narrow, add."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.act = activation
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The block's addition to its input."""
        return x + self.down(self.act(self.up(self.norm(x))))


class CharacterModel(nn.Module):
    """Which character comes next?"""

    def __init__(self, activation: type[nn.Module] = nn.GELU, width: int = 112) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARACTERS, 16)
        self.mix = nn.Linear(16 * CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, activation()) for _ in range(3))
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        """The logits of the next character."""
        x = self.mix(self.embed(characters).flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy; autocast computes it in float32."""
    return nn.functional.cross_entropy(logits, targets)
