"""A stand-in for Transformer Engine's Linear with delayed scaling, which needs a GPU.

It mirrors the source of version 2.20: `fp8_meta["scaling_fwd"|"scaling_bwd"]` with `scale` and
`amax_history`, row 0 for the pass in progress; at the autocast's end, and at the end of a backward
pass, the scales are renewed and the history rolls (`_amax_and_scale_update`). `fp8` is set in the
first pass. The casts are torch's own. It is no test of that library.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Maxima(NamedTuple):
    max_fwd: float
    max_bwd: float


class Format(enum.Enum):
    E4M3 = Maxima(448, 448)
    HYBRID = Maxima(448, 57344)


@dataclass
class DelayedScaling:
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 4
    amax_compute_algo: str = "max"
    reduce_amax: bool = True  # over all ranks, if there are several
    backward_override: None = None


class State:
    """DelayedScalingRecipeState."""

    def __init__(self, recipe: DelayedScaling, count: int, largest: float) -> None:
        self.recipe, self.largest = recipe, largest
        self.scale = torch.ones(count)
        self.amax_history = torch.zeros(recipe.amax_history_len, count)

    def renew(self) -> None:
        """`_amax_and_scale_update` with `_default_sf_compute`, after the reduction over ranks."""
        history = self.amax_history
        if self.recipe.reduce_amax and dist.is_available() and dist.is_initialized():
            newest = history[0].clone()
            dist.all_reduce(newest, op=dist.ReduceOp.MAX)
            history[0] = newest
        amax = history.amax(0) if self.recipe.amax_compute_algo == "max" else history[0].clone()
        history.copy_(torch.roll(history, -1, 0))
        history[0].fill_(0.0)
        scale = self.largest / amax
        scale = torch.where((amax > 0) & amax.isfinite(), scale, self.scale)
        self.scale.copy_(scale)


@dataclass
class Pass:
    """What one pass really did: its newest maxima times the scales in use, over the largest."""

    used: list[float] = field(default_factory=list)
    operands: list[tuple[str, Tensor, float]] = field(default_factory=list)  # role, tensor, scale


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Linear) -> Tensor:
        ctx.layer = layer
        x_cast = layer.cast("scaling_fwd", 0, x, torch.float8_e4m3fn, "input")
        w_cast = layer.cast("scaling_fwd", 1, weight, torch.float8_e4m3fn, "weight")
        ctx.save_for_backward(x_cast, w_cast)
        return x_cast @ w_cast.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        cast = ctx.layer.cast("scaling_bwd", 0, grad, torch.float8_e5m2, "grad")
        ctx.layer.fp8_meta["scaling_bwd"].renew()
        return cast @ weight, cast.flatten(0, -2).t() @ x.flatten(0, -2), None


class Linear(nn.Module):
    """The attributes and the arithmetic; named as the original is, for that is what is read."""

    def __init__(self, inputs: int, outputs: int, recipe: DelayedScaling) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        largest = recipe.fp8_format.value
        self.fp8 = self.fp8_initialized = False
        self.fp8_meta: dict[str, Any] = {
            "recipe": recipe, "num_gemms": 1, "fp8_checkpoint": True,
            "scaling_fwd": State(recipe, 3, largest.max_fwd),
            "scaling_bwd": State(recipe, 2, largest.max_bwd),
        }  # fmt: skip
        self.passes: list[Pass] = []

    def get_extra_state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, under `…_extra_state`."""
        kept = {}
        for end, key in (("fwd", "scaling_fwd"), ("bwd", "scaling_bwd")):
            state = self.fp8_meta[key]
            kept |= {f"scale_{end}": state.scale.clone(),
                     f"amax_history_{end}": state.amax_history.clone()}  # fmt: skip
        return kept

    def set_extra_state(self, kept: dict[str, Tensor]) -> None:
        """From a checkpoint."""
        for end, key in (("fwd", "scaling_fwd"), ("bwd", "scaling_bwd")):
            self.fp8_meta[key].scale.copy_(kept[f"scale_{end}"])
            self.fp8_meta[key].amax_history.copy_(kept[f"amax_history_{end}"])

    def cast(self, key: str, at: int, tensor: Tensor, dtype: torch.dtype, role: str) -> Tensor:
        """A saturating cast with the scale in use, and back; notes the maximum."""
        state = self.fp8_meta[key]
        scale, amax = float(state.scale[at]), tensor.detach().abs().amax()
        state.amax_history[0, at] = amax
        self.passes[-1].used.append(float(amax) * scale / state.largest)
        self.passes[-1].operands.append((role, tensor.detach().clone(), scale))
        scaled = (tensor * scale).clamp(-state.largest, state.largest)
        return scaled.to(dtype).to(tensor.dtype) / scale

    def forward(self, x: Tensor) -> Tensor:
        self.fp8 = self.fp8_initialized = True
        self.passes.append(Pass())
        return _Multiply.apply(x, self.weight, self)


@contextlib.contextmanager
def fp8_autocast(model: nn.Module) -> Iterator[None]:
    """At its end the forward scales are renewed."""
    yield
    for module in model.modules():
        if isinstance(module, Linear):
            module.fp8_meta["scaling_fwd"].renew()
