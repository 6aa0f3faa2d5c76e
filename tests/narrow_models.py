"""Models that a library has made multiply below sixteen bits, on a CPU: torchao, emulated."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

Filter = Callable[[nn.Module, str], bool]


def everything(_module: nn.Module, _name: str) -> bool:
    return True


def needs_torchao() -> None:
    """Skip where torchao is not installed; what it says of missing kernels is of no interest."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip("torchao.float8")
            pytest.importorskip("torchao.prototype.moe_training.config")
    finally:
        logging.disable(logging.NOTSET)


def float8(model: nn.Module, recipe: str = "tensorwise", chosen: Filter = everything) -> Any:
    """The model with its linear layers converted for fp8 training."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    config = dataclasses.replace(config, emulate=True)
    return convert_to_float8_training(model, config=config, module_filter_fn=chosen)


def mxfp8(model: nn.Module, chosen: Filter = everything) -> Any:
    """The model with weights that make every product one of MXFP8; rows in whole blocks of 32."""
    from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe
    from torchao.quantization import quantize_

    config = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL)
    quantize_(
        model, config, lambda module, name: isinstance(module, nn.Linear) and chosen(module, name)
    )
    return model


class Block(nn.Module):
    """A residual block of a transformer, without its attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Language(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, width: int = 32, words: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
