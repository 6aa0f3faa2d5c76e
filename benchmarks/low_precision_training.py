"""A case that can be stepped: its model, converted to the format.

Delayed scaling is the tests' stand-in for Transformer Engine, which needs a GPU; all else is
torchao's emulation. NVFP4 does not train on a CPU and is left out.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import delayed_scaling as delayed
import low_precision_models as models
import torch
from low_precision_cases import DELAYED, WIDE, Case
from torch import Tensor, nn


@dataclass(slots=True)
class Training:
    """A case that can be stepped."""

    case: Case
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    layers: frozenset[str]  # those in which the fault is; empty: it is of none
    config: dict[str, Any]
    generator: torch.Generator
    since: int  # the first step with the fault
    before_step: list[Callable[[int], None]] = field(default_factory=list)
    after_step: list[Callable[[int], None]] = field(default_factory=list)
    weights: Callable[[int, Tensor], Tensor | None] = lambda _step, _wanted: None

    def steps(self) -> Iterator[float]:
        """Train; each step's loss."""
        case = self.case
        for step in range(case.steps):
            for change in self.before_step:
                change(step)
            loss = sum(self._backward(step) for _ in range(case.accumulate))
            self._update()
            for change in self.after_step:
                change(step)
            yield loss

    def _backward(self, step: int) -> float:
        x, wanted = type(self.model).batch(self.generator)
        if x.is_floating_point():
            x = x.to(next(self.model.parameters()).dtype)
        dtype = torch.float16 if self.case.recipe == "fp16" else torch.bfloat16
        wide = torch.autocast("cpu", dtype, enabled=self.case.recipe in WIDE)
        with wide, delayed.fp8_autocast(self.model):
            output = self.model(x)
        loss = models.loss_of(output, wanted, self.weights(step, wanted)) / self.case.accumulate
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss.item()

    def _update(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.case.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        for module in self.model.modules():
            if isinstance(module, delayed.Linear):
                del module.passes[:-1]


_OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def converted(case: Case) -> Training:
    """The model of a case, converted; its fault is not made yet."""
    torch.manual_seed(case.seed)
    parts: dict[nn.Module, str] = {}
    model = models.make_model(case.shape, _maker(case, parts))
    if case.low_weights and case.recipe not in (*WIDE, DELAYED):
        model = model.bfloat16()
    named = {name: parts.get(module, "") for name, module in model.named_modules()}
    kept = {name for name, part in named.items() if part and part != case.let_through}
    found = {name for name, part in named.items() if part and part == case.let_through}
    config = _convert(case, model, kept)
    rate = case.rate * (10 if case.optimizer == "sgd" else 1)
    return Training(
        case, model, _OPTIMIZERS[case.optimizer](model.parameters(), lr=rate),
        torch.amp.GradScaler("cpu") if case.recipe == "fp16" else None,
        frozenset(found), config, torch.Generator().manual_seed(case.seed + 1),
        case.begins,
    )  # fmt: skip


def _maker(case: Case, parts: dict[nn.Module, str]) -> models.Maker:
    recipe = delayed.DelayedScaling(
        fp8_format=delayed.Format.HYBRID,
        amax_history_len=case.history,
        amax_compute_algo="most_recent" if case.newest else "max",
    )

    def make(inputs: int, outputs: int, part: str) -> nn.Module:
        if case.recipe != DELAYED or (part and part != case.let_through):
            layer: nn.Module = nn.Linear(inputs, outputs, bias=case.variant == 1)
        else:
            layer = delayed.Linear(inputs, outputs, recipe)
        parts[layer] = part
        return layer

    return make


def _convert(case: Case, model: nn.Module, kept: set[str]) -> dict[str, Any]:
    """Convert what is not kept; the settings that the script tells of."""
    if case.recipe in (*WIDE, DELAYED):
        return {}
    nothing = case.fault == "filter that matched nothing"
    if nothing and case.variant == 2:  # asked for and never done
        return {"precision": "fp8"} if case.size < 4 else {"use_fp8": True}

    def chosen(module: nn.Module, name: str) -> bool:
        if not isinstance(module, nn.Linear) or name in kept:
            return False
        return name.startswith("_orig_mod.") if nothing and case.variant == 0 else True

    if nothing and case.variant == 1:  # another copy of the model
        model = copy.deepcopy(model)
    convert(model, case.recipe, chosen)
    return {}


def convert(model: nn.Module, recipe: str, chosen: Callable[[nn.Module, str], bool]) -> None:
    """By torchao, emulated."""
    if recipe == "mxfp8":
        from torchao.prototype.moe_training.config import (
            MXFP8TrainingOpConfig,
            MXFP8TrainingRecipe,
        )
        from torchao.quantization import quantize_

        made = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL)
        quantize_(model, made, chosen)
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.config import CastConfig

    config = Float8LinearConfig.from_recipe_name(recipe.split(maxsplit=1)[0])
    if recipe.endswith("e4m3"):
        e4m3 = CastConfig(target_dtype=torch.float8_e4m3fn)
        config = dataclasses.replace(
            config, cast_config_grad_output=e4m3, cast_config_grad_output_for_grad_weight=e4m3
        )
    config = dataclasses.replace(config, emulate=True)
    convert_to_float8_training(model, config=config, module_filter_fn=chosen)
