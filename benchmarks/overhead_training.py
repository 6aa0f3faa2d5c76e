"""The trainings that the overhead benchmark watches: small ones for a CPU, a large for a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class Training:
    """A model, its optimizer, its scaler and one batch; `step` is an ordinary fp16 AMP step."""

    name: str
    device: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    inputs: Tensor
    target: Tensor
    block_steps: int  # how many the benchmark times in a row; half as many warm up
    half: bool = True  # autocast to fp16
    steps_done: int = 0

    def step(self) -> None:
        with torch.autocast(self.device, torch.float16, enabled=self.half):
            output = self.model(self.inputs)
            loss = nn.functional.mse_loss(output.float(), self.target)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps_done += 1


def make_training(
    name: str, model: nn.Module, inputs: Tensor, device: str, block_steps: int,
    *, half: bool = True, scaled: bool = True,
) -> Training:  # fmt: skip
    """Adam at a rate that changes nothing much: every step costs what the first did."""
    model.to(device)
    inputs = inputs.to(device)
    with torch.no_grad():
        target = torch.zeros_like(model(inputs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=10**9, enabled=scaled)
    return Training(name, device, model, optimizer, scaler, inputs, target, block_steps, half)


def mlp() -> Training:
    """Twelve Linear layers with ReLU: about 1.5 ms a step on one core."""
    layers = [module for _ in range(12) for module in (nn.Linear(64, 64), nn.ReLU())]
    return make_training("12-layer MLP", nn.Sequential(*layers), torch.randn(12, 64), "cpu", 400)


def transformer(
    device: str = "cpu", block_steps: int = 100, *, half: bool = True, scaled: bool = True
) -> Training:
    """Twelve blocks, 100 parameter tensors: small on a CPU, 100 M parameters elsewhere."""
    large = device != "cpu"
    vocabulary, width, heads, shape = (
        (10_000, 768, 12, (8, 512)) if large else (256, 32, 4, (2, 16))
    )
    model = Transformer(vocabulary, width, heads, blocks=12)
    tokens = torch.randint(0, vocabulary, shape)
    return make_training(
        "12-layer transformer", model, tokens, device, block_steps, half=half, scaled=scaled
    )


class Transformer(nn.Module):
    """A plain pre-norm transformer with a head of its own."""

    def __init__(self, vocabulary: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Block(nn.Module):
    """Attention and a feed-forward network: eight parameter tensors."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attend(self.norm1(hidden))
        return hidden + self.down(nn.functional.gelu(self.up(self.norm2(hidden))))

    def attend(self, hidden: Tensor) -> Tensor:
        parts = self.qkv(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))
