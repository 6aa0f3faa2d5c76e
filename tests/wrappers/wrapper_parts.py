"""A small training in half precision that can be wrapped in many ways, and the truth about it.

The truth is a twin's: the same training without ampwatch, in which the gradients are unscaled by
hand and their norms taken in double precision. Seeds are the same, so are the weights at the end.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import ampwatch
from ampwatch.probe import courier

STEPS, SPOILT = 6, 4
BATCHES = 4
RATE_STEPS = 28  # in which a rate that is too high shows


class Gain(nn.Module):
    """Multiplies by a buffer; a large one makes this layer's output leave half precision."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(()))

    def forward(self, x):
        return x * self.factor


class Head(nn.Linear):
    """The last layer, in float32 as is usual."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


class Net(nn.Module):
    def __init__(self, middle=None):
        super().__init__()
        self.first, self.gain = nn.Linear(8, 16), Gain()
        self.middle = nn.Linear(16, 16) if middle is None else middle
        self.head = Head(16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.middle(self.gain(self.first(x)))))


def batch(step, part=0):
    """One of a few that come again and again: there is something to learn."""
    random = torch.Generator().manual_seed(100 * (step % BATCHES) + part)
    return torch.randn(8, 8, generator=random), torch.randn(8, 4, generator=random)


@dataclass
class Training:
    """One training; what a wrapper changes are its fields."""

    model: nn.Module = field(default_factory=Net)  # as the log names its layers
    attached: Any = None  # what attach is given, if it is not the model
    call: Any = None  # what the loop calls, if it is not what is attached
    optimizers: list[Any] = field(default_factory=list)
    scaler: Any = None
    backward: Callable[[Training, int], None] | None = None
    once_attached: Callable[[Training], None] | None = None
    between_steps: Callable[[Training, int], None] | None = None

    def __post_init__(self):
        self.attached = self.model if self.attached is None else self.attached
        self.call = self.attached if self.call is None else self.call
        if self.scaler is None:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        if not self.optimizers:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizers = [torch.optim.SGD(trained, lr=0.1)]

    def loss(self, step, part=0, call=None):
        inputs, targets = batch(step, part)
        with torch.autocast("cpu", torch.float16):
            outputs = (call or self.call)(inputs)
        return nn.functional.mse_loss(outputs.float(), targets)

    def run_backward(self, step):
        if self.backward is None:
            self.scaler.scale(self.loss(step)).backward()
        else:
            self.backward(self, step)


@dataclass
class Truth:
    """What the unwatched twin knows, and how it ended."""

    norms: dict[tuple[int, int], float] = field(default_factory=dict)  # by step and optimizer
    layer_norms: dict[tuple[int, str], float] = field(default_factory=dict)
    weights: list[torch.Tensor] = field(default_factory=list)
    hooks: int = 0
    scaler: Any = None
    random: torch.Tensor | None = None


def unwatched(make, steps=STEPS) -> Truth:
    """Train without ampwatch and write down what is true."""
    truth = Truth()

    def note(training, step):
        for number, optimizer in enumerate(training.optimizers):
            training.scaler.unscale_(optimizer)
            held = [p for group in optimizer.param_groups for p in group["params"]]
            truth.norms[step, number] = norm_of(held)
        for layer, parameters in parameters_by_layer(training.model).items():
            if any(p.grad is not None for p in parameters):
                truth.layer_norms[step, layer] = norm_of(parameters)

    with seeded():
        training = make()
        if training.once_attached is not None:
            training.once_attached(training)
        train(training, note, steps)
        return ended(training, truth)


def watched(
    make, folder, steps=STEPS, spoilt=SPOILT, rate_factor=1.0, **settings
) -> tuple[Truth, ampwatch.Run]:
    """The same training with ampwatch; the run it left."""
    with seeded():
        training = make()
        raised = raise_rates(training, rate_factor)
        own_class = type(training.scaler)
        settings = {"log_dir": folder, "run": "r", **settings}
        watch = ampwatch.attach(training.scaler, training.attached, **settings)
        if training.once_attached is not None:
            training.once_attached(training)
            raise_rates(training, rate_factor, but=raised)
        train(training, steps=steps, spoilt=spoilt)
        with patch.object(courier, "JOIN_SECONDS", 120.0):  # a slow machine's log is whole, too
            watch.close()
        assert type(training.scaler) is own_class
        return ended(training, Truth()), ampwatch.open_run(watch.run_folder)


def raise_rates(training, factor, but=()):
    """Other learning rates, of optimizers made meanwhile as well; those that have them now."""
    groups = [group for one in training.optimizers for group in one.param_groups]
    for group in groups:
        if not any(group is one for one in but):
            group["lr"] *= factor
    return groups


def train(training, note=None, steps=STEPS, spoilt=SPOILT):
    for step in range(steps):
        spoil(training.model, step == spoilt)
        for optimizer in training.optimizers:
            optimizer.zero_grad()
        training.run_backward(step)
        if note is not None:
            note(training, step)
        for optimizer in training.optimizers:
            training.scaler.step(optimizer)
        training.scaler.update()
        if training.between_steps is not None:
            training.between_steps(training, step)


def spoil(model, spoilt):
    for module in model.modules():
        if isinstance(module, Gain):
            module.factor.fill_(1e6 if spoilt else 1.0)


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def ended(training, truth) -> Truth:
    truth.weights = [p.detach().clone() for p in training.model.parameters()]
    truth.hooks = hooks_of(training.model)
    truth.scaler = training.scaler.state_dict()
    truth.random = torch.get_rng_state()
    return truth


def hooks_of(model) -> int:
    modules = sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in model.modules()
    )
    return modules + sum(len(p._backward_hooks or ()) for p in model.parameters())


def norm_of(parameters) -> float:
    """In double precision; of sharded gradients, what this rank holds."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    held = [getattr(gradient, "_local_tensor", gradient).double() for gradient in gradients]
    return sum(part.square().sum().item() for part in held) ** 0.5


def parameters_by_layer(model) -> dict[str, list[nn.Parameter]]:
    """Parameters under the layer that first holds them, by the names that the log gives."""
    found: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        holder = name.rpartition(".")[0]
        leaf = not list(model.get_submodule(holder).children())
        found.setdefault(unwrapped(holder if leaf else name), []).append(parameter)
    return found


def unwrapped(name: str) -> str:
    for word in ("_checkpoint_wrapped_module", "_orig_mod", "module", "_fsdp_wrapped_module"):
        name = ".".join(part for part in name.split(".") if part != word)
    return name


def culprits(run, rank=0) -> dict[int, str | None]:
    """The layer that each overflow event names, by step."""
    found = {}
    for event in run.events.to_pylist():
        if event["kind"] == "overflow" and event["rank"] == rank:
            detail = json.loads(event["detail"])
            found[event["step"]] = detail.get("layer") if detail.get("exact", True) else "bound"
    return found
