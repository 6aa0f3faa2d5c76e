"""What the casts of a training really do, by the casts themselves: the truth beside the diagnosis.

Recorded in a training without a watch. A drawn fault that took no hold (a channel that the training
shrank again) is no fault, and a healthy training that really loses a fifth of its values is not
healthy: such draws are left out, by what the casts did and never by what was said.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Callable
from typing import Any

import delayed_scaling as delayed
import torch
from low_precision_cases import DELAYED, WIDE
from low_precision_training import Training
from torch import Tensor, nn

# A fault is one, and health is health, by a margin.
_CUT, _FLUSHED, _STALE = 0.0015, 0.23, 2.2
_CUT_OFF = 0.001
_HEALTHY_CUT, _HEALTHY_FLUSHED, _HEALTHY_STALE = 0.01, 0.2, 2.0
_LAST = 5  # shares of steps: of the last fifth of a training and of all since the fault began

Shares = dict[tuple[str, str], list[float]]


class Truth:
    """The shares of each cast layer and role, step by step, while a training is stepped."""

    def __init__(self, made: Training) -> None:
        self._made = made
        self.cut: Shares = collections.defaultdict(list)
        self.flushed: Shares = collections.defaultdict(list)
        self.stale: dict[str, list[float]] = collections.defaultdict(list)
        self.step = -1
        made.before_step.append(self._begin)
        if made.case.recipe == DELAYED:
            made.after_step.append(self._of_passes)
        elif made.case.recipe not in WIDE:
            for name, module in made.model.named_modules():
                if is_cast(module):
                    module.register_forward_hook(self._of_layer(name, module))

    def _begin(self, step: int) -> None:
        self.step = step

    def _of_passes(self, step: int) -> None:
        if step < self._made.since:
            return
        for name, module in self._made.model.named_modules():
            if isinstance(module, delayed.Linear) and module.passes:
                last = module.passes[-1]
                self.stale[name].append(max(map(_known, last.used), default=0.0))
                for role, operand, scale in last.operands:
                    kind = torch.float8_e5m2 if role == "grad" else torch.float8_e4m3fn
                    self._add(name, role, operand.float() * scale, kind)

    def _of_layer(self, name: str, module: nn.Module) -> Callable[..., None]:
        recipe = self._made.case.recipe

        def seen(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if self.step < self._made.since:
                return
            for role, operand in (("input", inputs[0]), ("weight", module.weight)):
                self._add(name, role, *scaled(operand.detach(), recipe, role))
            if output.requires_grad:
                output.register_hook(
                    lambda grad: self._add(name, "grad", *scaled(grad.detach(), recipe, "grad"))
                )

        return seen

    def _add(self, name: str, role: str, ready: Tensor, kind: torch.dtype) -> None:
        there = ready != 0
        count = max(1, int(there.sum()))
        largest = torch.finfo(kind).max
        held = ready.clamp(-largest, largest).to(kind).float()
        self.flushed[name, role].append(int((there & (held == 0)).sum()) / count)
        self.cut[name, role].append(int((ready.abs() > largest * 1.04).sum()) / count)

    def holds(self) -> bool:
        """Whether the training is what its case says, clearly."""
        case, layers = self._made.case, self._made.layers
        if case.fault in ("quantised head", "quantised router", "filter that matched nothing"):
            return True
        cut, flushed = _typical(self.cut), _typical(self.flushed)
        stale = _typical(self.stale)
        if case.fault is None:
            weights = self._made.model.parameters()
            return all(bool(weight.isfinite().all()) for weight in weights) and (
                max(cut.values(), default=0.0) < _HEALTHY_CUT
                and max(flushed.values(), default=0.0) < _HEALTHY_FLUSHED
                and max(stale.values(), default=0.0) < _HEALTHY_STALE
            )
        if case.fault == "saturating outlier channel":
            return any(share > _CUT for (name, _), share in cut.items() if name in layers)
        if case.fault == "stale scale":
            return any(_STALE < value < math.inf for n, value in stale.items() if n in layers)
        if case.fault == "frozen scale":
            return any(value == math.inf for n, value in stale.items() if n in layers)
        role = "grad" if case.fault == "underflowing gradient" else "input"
        return any(
            share > _FLUSHED for (n, r), share in flushed.items() if n in layers and r == role
        )

    def confirms(self, code: str, layer: str) -> bool:
        """Whether a faulty training really does this too, in this layer."""
        shares = {"AMP701": _typical(self.cut), "AMP702": _typical(self.flushed)}.get(code, {})
        limit = _CUT_OFF if code == "AMP701" else _FLUSHED
        return any(share > limit for (name, _), share in shares.items() if name == layer)


def is_cast(module: nn.Module) -> bool:
    """Whether torchao has made this layer multiply below sixteen bits."""
    weight = getattr(module, "weight", None)
    return "Float8" in type(module).__name__ or "MXFP8" in type(weight).__name__


def scaled(tensor: Tensor, recipe: str, role: str) -> tuple[Tensor, torch.dtype]:
    """The tensor as it is before its cast to eight bits, and the format it is cast to."""
    tensor = getattr(tensor, "_data", tensor).float()
    wide = recipe == "tensorwise" and role == "grad"
    kind = torch.float8_e5m2 if wide else torch.float8_e4m3fn
    largest = torch.finfo(kind).max
    if recipe.startswith("tensorwise"):
        return tensor * (largest / tensor.abs().max().clamp(min=1e-12)), kind
    if recipe == "mxfp8":
        blocks = tensor.reshape(-1, 32)
        amax = blocks.abs().amax(1, keepdim=True).clamp(min=2.0**-126)
        return blocks / torch.exp2(torch.ceil(torch.log2(amax / largest))), kind
    amax = tensor.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    return tensor * torch.exp2(torch.floor(torch.log2(largest / amax))), kind


def _known(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _typical(steps: dict[Any, list[float]]) -> dict[Any, float]:
    """The lower of the medians since the fault began and of the last steps."""
    return {
        key: min(
            statistics.median(values), statistics.median(values[-max(1, len(values) // _LAST) :])
        )
        for key, values in steps.items()
        if values
    }
