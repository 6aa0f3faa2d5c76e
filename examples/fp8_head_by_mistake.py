"""fp8 training with torchao, emulated on a CPU: a filter that no longer fits quantises the head.

The filter was written for a model whose head was called `output`. This one calls it `lm_head`, so
the filter lets it through. ampwatch names the layer and prints the lines that leave it out:

    python examples/fp8_head_by_mistake.py && ampwatch report ampwatch-runs/<run>

`--keep lm_head` is the cure. On a GPU with fp8, take `emulate=True` out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

import ampwatch

WORDS, WIDTH, LENGTH = 64, 64, 16


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm_1(x)).unflatten(-1, (3, 4, WIDTH // 4))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Language(nn.Module):
    """A small transformer that predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    torch.manual_seed(options.seed)

    model = Language().bfloat16()
    kept = set(options.keep)  # stay in bf16
    convert_to_float8_training(
        model,
        config=Float8LinearConfig(emulate=True),
        module_filter_fn=lambda _module, name: name not in kept,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with ampwatch.attach(None, model, optimizer=optimizer, log_dir=options.log_dir) as watch:  # <--
        for step in range(options.steps):
            start = torch.randint(WORDS, (16, 1))
            tokens = (start + torch.arange(LENGTH + 1) * 3) % WORDS  # each word is the last plus 3
            logits = model(tokens[:, :-1]).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            watch.log(loss=loss)  # <-- added
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step}  loss {loss.item():.6g}")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--keep", nargs="*", default=["output"], help="layers to leave in bf16")
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
