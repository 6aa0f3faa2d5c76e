"""Below sixteen bits: layers that should not be cast, scales that do not fit, filters that miss.

fp8 is torchao's, emulated on the CPU. Delayed scaling is a stand-in that mirrors Transformer
Engine's source, which needs a GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from examples.gallery.delayed_scaling import DelayedScaling, Linear, fp8_autocast
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("low-precision", held_out=True)  # made after its rules, and right at once
NOT_THE_RATE = "not-the-cause"
STEPS, WIDTH = 120, 64
OUTLYING = ("blocks.0.up", "blocks.1.up", "blocks.2.up")
FACTOR = 3e5
# Where a tensor is not finite there are findings of their own.
NOT_FINITE = ("AMP203", "AMP204", "AMP207", "AMP209", "AMP211")


class Block(nn.Module):
    """Normalised, up, down, and added."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = make(WIDTH, 2 * WIDTH), make(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The input, and what the block makes of it."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """A residual network whose first layer and head are usually kept wide."""

    def __init__(self, make: Callable[[int, int], nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.first = nn.Linear(32, WIDTH)
        self.blocks = nn.ModuleList([Block(make) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _train(
    stage: Stage,
    model: nn.Module,
    before: Callable[[int], None] = lambda _step: None,
    steps: int = STEPS,
    **options: Any,
) -> None:
    """A right loop that learns a function of 32 numbers."""
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with stage.watch(None, model, optimizer=optimizer, layer_every=10, **options) as watch:
        for step in range(steps):
            before(step)
            x = torch.randn(128, 32, generator=torch.Generator().manual_seed(step))
            with fp8_autocast(model):
                output = model(x.to(dtype))
            wanted = torch.sin(2 * x) + 0.5 * x.roll(1, 1) * x
            loss = (output.float() - wanted).square().mean()
            watch.log(loss=loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _convert(model: nn.Module, kept: set[str]) -> None:
    """To fp8 by torchao, except the layers of these names; `*` keeps all."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(
        model,
        config=dataclasses.replace(Float8LinearConfig(), emulate=True),
        module_filter_fn=lambda _module, name: "*" not in kept and name not in kept,
    )


@FAMILY.fault(
    Label(must=("AMP704",), layer="head", advice=NOT_THE_RATE, onset=0),
    issue="pytorch/torchtitan#4008",
)
def fp8_reaches_the_head(stage: Stage, fault: bool) -> None:
    """The filter names another model's head, so this one's is cast to fp8."""
    model = Net()
    _convert(model, {"first", "output" if fault else "head"})
    _train(stage, model)


@FAMILY.fault(
    Label(must=("AMP705",), advice=NOT_THE_RATE, onset=0), issue="pytorch/torchtitan#3150"
)
def fp8_filter_matches_nothing(stage: Stage, fault: bool) -> None:
    """The settings ask for fp8, and the filter keeps every layer."""
    model = Net()
    _convert(model, {"*"} if fault else {"first", "head"})
    _train(stage, model, config={"use_fp8": True})


@FAMILY.fault(Label(must=("AMP702",), advice=NOT_THE_RATE, onset=0))
def fp8_outlying_channels(stage: Stage, fault: bool) -> None:
    """A channel sets the scale of all others; the twin leaves these layers in bf16, and learns."""
    model = Net()
    with torch.no_grad():
        for at, name in enumerate(OUTLYING):
            block = model.get_submodule(name.removesuffix(".up"))
            block.norm.weight[at] *= FACTOR
            block.up.weight[:, at] /= FACTOR
            for weight in (block.norm.weight, block.up.weight):
                kept = torch.ones_like(weight)
                kept[..., at] = 0  # the optimizer leaves that channel as it is
                weight.register_hook(kept.mul)
    _convert(model, {"first", "head"} | (set() if fault else set(OUTLYING)))
    _train(stage, model, steps=400)


def _delayed(inputs: int, outputs: int) -> Linear:
    return Linear(inputs, outputs, DelayedScaling(amax_history_len=16))


@FAMILY.fault(
    Label(must=("AMP703",), may=("AMP701",), layer="blocks.1.up", advice=NOT_THE_RATE, onset=40),
    issue="NVIDIA/TransformerEngine#982",
)
def fp8_scale_is_never_renewed(stage: Stage, fault: bool) -> None:
    """The input grows as training goes on, and a layer's scales stay at those of a checkpoint."""
    model = Net(_delayed)
    block = model.blocks[1]

    def before(step: int) -> None:
        if step == 40:
            with torch.no_grad():
                block.norm.weight *= 8
                block.up.weight /= 8
            if fault:
                block.up.fp8_meta["scaling_fwd"].renew = lambda: None

    _train(stage, model, before)


@FAMILY.fault(
    Label(must=("AMP701",), may=("AMP703",), layer="blocks.1.up", advice=NOT_THE_RATE, onset=0),
    issue="NVIDIA/Megatron-LM#442",
)
def fp8_maxima_of_the_wrong_group(stage: Stage, fault: bool) -> None:
    """Maxima are reduced over ranks whose values are smaller, so the largest here are cut off."""
    model = Net(_delayed)
    state = model.blocks[1].up.fp8_meta["scaling_fwd"]
    renew = state.renew

    def reduced() -> None:
        state.amax_history[0] /= 6
        renew()

    if fault:
        state.renew = reduced
    _train(stage, model)


@FAMILY.fault(
    Label(must=("AMP706",), may=(*NOT_FINITE, "AMP701", "AMP702", "AMP703"), layer="blocks.1.up",
          advice=None, onset=40)
)  # fmt: skip
def fp8_scale_is_frozen_by_nan(stage: Stage, fault: bool) -> None:
    """Padding that nobody filled is nan in a layer's input; the gradients are emptied of it."""
    model = Net(_delayed)
    layer, now = model.blocks[1].up, {"step": 0}

    def pad(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        x = inputs[0].clone()
        if now["step"] >= 40:
            x[-1] = math.nan if fault else 0.0
        return (x,)

    layer.register_forward_pre_hook(pad)
    layer.register_forward_hook(lambda _module, _inputs, output: output.nan_to_num(0.0))
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad.nan_to_num(0.0))
    _train(stage, model, lambda step: now.__setitem__("step", step))
