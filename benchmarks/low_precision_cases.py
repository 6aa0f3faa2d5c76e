"""Trainings below sixteen bits that nobody wrote, drawn from a number: healthy, or with one fault.

A fault is made in the training itself, as it happens to people: a channel of a normalisation that
is far larger than the rest, a filter that names another head, scales that are not renewed. What it
must be called, and in which layers, is said here and not taken from the diagnosis.

Delayed scaling is the tests' stand-in for Transformer Engine, which needs a GPU; all else is
torchao's emulation. NVFP4 does not train on a CPU and is left out.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import delayed_scaling as delayed
import low_precision_models as models
import torch
from torch import Tensor, nn

DYNAMIC = ("tensorwise", "tensorwise e4m3", "rowwise", "rowwise_with_gw_hp", "mxfp8")
DELAYED = "delayed"
WIDE = ("bf16", "fp16")
FAULTS = (
    "saturating outlier channel", "underflowing gradient", "underflowing input", "stale scale",
    "quantised head", "quantised router", "filter that matched nothing", "frozen scale",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One training, and what must be said of it."""

    number: int
    seed: int
    shape: models.Shape
    recipe: str
    fault: str | None
    variant: int  # of the fault, or of what a healthy run resembles
    optimizer: str
    rate: float
    steps: int
    layer_every: int
    begins: int  # the first step with the fault
    block: int  # where it is
    size: float  # how large
    history: int  # of delayed scales
    newest: bool  # they follow the most recent maximum
    low_weights: bool  # in bf16
    clip: bool
    accumulate: int

    @property
    def must(self) -> frozenset[str]:
        """The finding that has to be there."""
        code = {
            "saturating outlier channel": "AMP701", "underflowing gradient": "AMP702",
            "underflowing input": "AMP702", "stale scale": "AMP703", "quantised head": "AMP704",
            "quantised router": "AMP704", "filter that matched nothing": "AMP705",
            "frozen scale": "AMP706",
        }  # fmt: skip
        return frozenset() if self.fault is None else frozenset({code[self.fault]})

    @property
    def let_through(self) -> str | None:
        """The part that the filter should have kept."""
        return {"quantised head": models.HEAD, "quantised router": models.ROUTER}.get(
            self.fault or ""
        )

    @property
    def may(self) -> frozenset[str]:
        """What is true as well: a stale scale cuts off, and what is cut off makes a scale stale."""
        if self.fault in ("saturating outlier channel", "stale scale"):
            return frozenset({"AMP701", "AMP703"})
        if self.fault == "frozen scale":  # what is not finite has findings of its own
            return frozenset(
                {"AMP701", "AMP702", "AMP703", "AMP203", "AMP204", "AMP207", "AMP209", "AMP211"}
            )
        return frozenset()


def drawn(seed: int, number: int, share_of_faults: float = 0.5) -> Case:
    """The case of this number."""
    draw = random.Random(f"{seed}:{number}")
    shape = models.Shape.drawn(draw)
    fault = draw.choice(FAULTS) if draw.random() < share_of_faults else None
    if fault == "quantised head":
        shape = dataclasses.replace(shape, tied=False)
    if fault == "quantised router":
        shape = dataclasses.replace(shape, family="mixture of experts")
    steps, every = draw.randint(50, 90), draw.randint(3, 10)
    return Case(
        number=number,
        seed=draw.randrange(2**31),
        shape=shape,
        recipe=_recipe(draw, fault),
        fault=fault,
        variant=draw.randrange(3),
        optimizer=draw.choice(("sgd", "adam", "adamw")),
        rate=10 ** draw.uniform(-3.5, -2.5),
        steps=steps,
        layer_every=every,
        begins=0 if draw.random() < 0.5 else draw.randint(4, max(5, steps - 9 * every)),
        block=draw.randrange(shape.blocks),
        size=10 ** draw.uniform(0.0, 1.0),
        history=draw.choice((1, 4, 16, 64, 1024)),
        newest=draw.random() < 0.4,
        low_weights=draw.random() < 0.5,
        clip=draw.random() < 0.5,
        accumulate=draw.choice((1, 1, 1, 2)),
    )


def _recipe(draw: random.Random, fault: str | None) -> str:
    """A format in which the fault can happen."""
    if fault in ("saturating outlier channel", "stale scale", "frozen scale"):
        return DELAYED
    if fault == "underflowing input":
        return draw.choice((*DYNAMIC[:2], DELAYED))
    if fault in ("quantised head", "quantised router", "underflowing gradient"):
        return draw.choice((*DYNAMIC, DELAYED))
    if fault == "filter that matched nothing":
        return draw.choice(DYNAMIC)
    return draw.choice((*DYNAMIC, DELAYED, DELAYED, *WIDE))


# --- the model, converted ------------------------------------------------------------------------


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


def training(case: Case) -> Training:
    """The model of a case, converted, with its fault."""
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
    made = Training(
        case, model, _OPTIMIZERS[case.optimizer](model.parameters(), lr=rate),
        torch.amp.GradScaler("cpu") if case.recipe == "fp16" else None,
        frozenset(found), config, torch.Generator().manual_seed(case.seed + 1),
        case.begins,
    )  # fmt: skip
    _FAULTS[case.fault](made)
    return made


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


# --- the faults ----------------------------------------------------------------------------------


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
