"""The faults, made in the training itself, as they happen to people.

A channel of a normalisation that is far larger than the rest, a filter that names another head,
scales that are not renewed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import delayed_scaling as delayed
import low_precision_models as models
import torch
from low_precision_cases import DELAYED, Case
from low_precision_training import Training, converted
from torch import Tensor, nn


def training(case: Case) -> Training:
    """The model of a case, converted, with its fault."""
    made = converted(case)
    _FAULTS[case.fault](made)
    return made


def _inner(made: Training) -> tuple[str, nn.Module, nn.Module]:
    """A layer that is cast: its name, itself, and the normalisation before it."""
    pairs: list[tuple[str, nn.Module, nn.Module]] = []
    before: nn.Module | None = None
    for name, module in made.model.named_modules():
        if isinstance(module, nn.LayerNorm):
            before = module
        elif hasattr(module, "weight") and module.weight.dim() == 2 and before is not None:
            if name.rpartition(".")[2] in ("up", "qkv", "widen") or name.startswith("net."):
                pairs.append((name, module, before))
            before = None
    return pairs[made.case.block % len(pairs)]


def _outlying_channel(made: Training, factor: float) -> str:
    """One channel of a normalisation is so much larger; the next layer makes up for it."""
    name, layer, norm = _inner(made)
    channel = made.case.seed % norm.weight.numel()
    takers = [layer, *_gates(made, name).values()]

    def grow(step: int) -> None:
        if step == made.case.begins:
            with torch.no_grad():
                norm.weight[channel] *= factor
                for taker in takers:
                    taker.weight[:, channel] /= factor

    made.before_step.append(grow)
    made.layers = frozenset({name, *_gates(made, name)})
    return name


def _gates(made: Training, name: str) -> dict[str, nn.Module]:
    """The gate that takes the same input as this layer, if there is one."""
    parent = name.rpartition(".")[0]
    gate = getattr(made.model.get_submodule(parent), "gate", None) if parent else None
    return {} if gate is None else {f"{parent}.gate": gate}


def _healthy(made: Training) -> None:
    """None; but some look like it: one large channel, one large batch, a head in bf16."""
    case = made.case
    if case.variant == 0:
        _outlying_channel(made, 30 * case.size)  # to 300 times: large models have such
        made.layers = frozenset()
    elif case.variant == 1:
        at = case.begins + 5
        made.weights = lambda step, wanted: (
            torch.full((_rows(wanted),), 20 * case.size) if step == at else None
        )
    else:  # losses of uneven size, as batches of uneven difficulty give
        draw = random.Random(case.seed)
        sizes = [math.exp(draw.gauss(0.0, 0.3)) for _ in range(case.steps)]
        made.weights = lambda step, wanted: torch.full((_rows(wanted),), sizes[step])


def _rows(wanted: Tensor) -> int:
    return wanted.shape[0] if wanted.is_floating_point() else wanted.numel()


def _saturating(made: Training) -> None:
    """A maximum of other ranks' channels is used, that know nothing of the outlying one."""
    factor = 2 + 4 * made.case.size
    name = _outlying_channel(made, factor)
    layer = made.model.get_submodule(name)
    state = layer.fp8_meta["scaling_fwd"]
    renew = state.renew

    def renewed() -> None:
        state.amax_history[0, 0] /= factor
        renew()

    def begin(step: int) -> None:
        if step == made.case.begins:
            state.renew = renewed

    made.before_step.append(begin)


def _underflowing_gradient(made: Training) -> None:
    """A few gradients set the scale of all others."""
    case = made.case
    if case.recipe in ("tensorwise", "tensorwise e4m3", DELAYED):
        factor = (1e7 if case.recipe.endswith("e4m3") else 1e12) * case.size

        def weights(step: int, wanted: Tensor) -> Tensor | None:
            if step < case.begins:
                return None
            found = torch.ones(_rows(wanted))
            found[0] = factor
            return found / factor

        made.weights = weights
        cast = _cast_layers(made.model, case.recipe)
        made.layers = frozenset(cast)
        return
    up, down = _pair(made)
    name = next(name for name, module in made.model.named_modules() if module is up)
    gate = next(iter(_gates(made, name).values()), None)
    every = 32 if case.recipe == "mxfp8" else up.out_features
    first = case.seed % every
    for layer in (up, down):  # an optimizer's step would be far larger than what is made small
        layer.weight.requires_grad_(False)

    def widen(step: int) -> None:
        if step == case.begins:
            with torch.no_grad():
                down.weight[:, first::every] *= 1e8 * case.size
                up.weight[first::every] /= 1e8 * case.size

    made.before_step.append(widen)
    # The second one's weight has the same few large values, and the rest is as small beside them.
    made.layers = frozenset(
        name
        for name, module in made.model.named_modules()
        if module in (up, down) or (module is not None and module is gate)
    )


def _cast_layers(model: nn.Module, recipe: str) -> list[str]:
    if recipe == DELAYED:
        return [n for n, m in model.named_modules() if isinstance(m, delayed.Linear)]
    return [n for n, m in model.named_modules() if "Float8" in type(m).__name__]


def _pair(made: Training) -> tuple[nn.Module, nn.Module]:
    """Two layers in a row, the first of them cast."""
    blocks = [m for m in made.model.modules() if isinstance(m, models.Block)]
    if blocks:
        block = blocks[made.case.block % len(blocks)]
        return block.up, block.down
    layers = [m for m in made.model.net if isinstance(m, nn.Linear)]
    at = 1 + made.case.block % (len(layers) - 2)
    return layers[at], layers[at + 1]


def _underflowing_input(made: Training) -> None:
    """One channel is so large that with one scale for the tensor the rest is nothing."""
    _outlying_channel(made, 6e4 * made.case.size)


def _stale(made: Training) -> None:
    """Values that outgrow their scale: its maxima are old, of other ranks, or never taken in."""
    (_growing, _never_renewed, _of_other_ranks)[made.case.variant](made)


def _growing(made: Training) -> None:
    """The input of a frozen layer grows with each step, to the end."""
    name, layer, norm = _inner(made)
    made.layers = frozenset({name})
    layer.weight.requires_grad_(False)
    first = made.since = max(4, made.case.steps - 6 * made.case.layer_every)

    def grow(step: int) -> None:
        if step >= first:
            with torch.no_grad():
                norm.weight *= 2.5
                layer.weight /= 2.5

    made.before_step.append(grow)


def _never_renewed(made: Training) -> None:
    """From some step on the scales stay, as if the update were never called."""
    case = made.case
    name, layer, norm = _inner(made)
    made.layers = frozenset({name})
    begins, factor = max(case.begins, 4), 1.5 + 1.5 * case.size
    of_gradients = case.seed % 2 == 1

    def stop(step: int) -> None:
        if step != begins:
            return
        layer.fp8_meta["scaling_bwd" if of_gradients else "scaling_fwd"].renew = lambda: None
        if not of_gradients:
            with torch.no_grad():
                norm.weight *= factor
                layer.weight /= factor

    made.before_step.append(stop)
    if of_gradients:
        made.weights = lambda step, wanted: (
            torch.full((_rows(wanted),), factor) if step >= begins else None
        )


def _of_other_ranks(made: Training) -> None:
    """The maxima are those of ranks whose values are smaller."""
    case = made.case
    name, layer, _ = _inner(made)
    made.layers = frozenset({name})
    state = layer.fp8_meta["scaling_bwd" if case.seed % 2 else "scaling_fwd"]
    renew = state.renew

    def smaller() -> None:
        state.amax_history[0] /= 1.5 + 1.5 * case.size
        renew()

    def begin(step: int) -> None:
        if step == case.begins:
            state.renew = smaller

    made.before_step.append(begin)


def _frozen(made: Training) -> None:
    """Padding that nobody filled is nan, or inf, in a layer's input; its gradients are emptied."""
    name, layer, _ = _inner(made)
    made.layers = frozenset({name})
    bad = math.inf if made.case.variant else math.nan
    now = {"step": -1}

    def poison(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        if now["step"] < made.case.begins:
            return (inputs[0],)
        x = inputs[0].clone()
        x.view(-1, x.shape[-1])[-1] = bad
        return (x,)

    def clean(module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return torch.nan_to_num(output, 0.0, 0.0, 0.0)

    def emptied(grad: Tensor) -> Tensor:
        return torch.nan_to_num(grad, 0.0, 0.0, 0.0)

    layer.register_forward_pre_hook(poison)
    layer.register_forward_hook(clean)
    for parameter in made.model.parameters():
        parameter.register_hook(emptied)
    made.before_step.append(lambda step: now.__setitem__("step", step))


def _none(_made: Training) -> None:
    """The fault is in the conversion."""


_FAULTS: dict[str | None, Callable[[Training], None]] = {
    None: _healthy, "saturating outlier channel": _saturating, "stale scale": _stale,
    "underflowing gradient": _underflowing_gradient, "underflowing input": _underflowing_input,
    "quantised head": _none, "quantised router": _none, "filter that matched nothing": _none,
    "frozen scale": _frozen,
}  # fmt: skip
