"""The wrappers that one process can try: what each changes in the training, and what is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint
from wrapper_parts import Net, Training, batch

EAGER = {"first": "float16", "gain": "float16", "head": "float32"}


@dataclass(frozen=True, eq=False)
class Wrapper:
    """One row of the matrix: a way to train, and what is expected of it."""

    name: str
    make: Callable[[], Training]
    dtypes: Mapping[str, str | None] = field(default_factory=lambda: EAGER)
    culprit: str | None = "gain"
    unknown: tuple[int, ...] = ()  # steps of which no norm is told
    compiled: bool = False
    large: bool = False  # takes seconds
    too_high: float | None = 200.0  # times the rate that it trains well with; none: not tried


# -- models ----------------------------------------------------------------------------------------


def after(change) -> Callable[[], Training]:
    """A training whose model is changed once the watch is attached."""
    return lambda: Training(once_attached=change)


def compiled_before():
    model = Net()
    return Training(model, attached=torch.compile(model, backend="aot_eager"))


def compiled_after():
    def compile_it(training):
        training.call = torch.compile(training.model, backend="aot_eager")

    return Training(once_attached=compile_it)


def compiled_in_place():
    model = Net()
    model.compile(backend="aot_eager")
    return Training(model)


def compiled_part():
    model = Net()
    model.middle = torch.compile(model.middle, backend="aot_eager")
    return Training(model)


class Beside(Net):
    """Calls a layer through a compiled wrapper that is no part of the model."""

    fast = ()

    def forward(self, x):
        hidden = self.gain(self.first(x))
        (middle,) = self.fast or (self.middle,)
        return self.head(torch.relu(middle(hidden)))


def compiled_part_after():
    def compile_it(training):
        training.model.fast = (torch.compile(training.model.middle, backend="aot_eager"),)

    return Training(Beside(), once_attached=compile_it)


class Checkpointed(Net):
    def __init__(self, *, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x):
        hidden = self.first(x)
        hidden = checkpoint(self.block, hidden, use_reentrant=self.reentrant)
        return self.head(torch.relu(hidden))

    def block(self, hidden):
        return self.middle(self.gain(hidden))


def checkpoint_wrapped():
    model = Net()
    model.gain = checkpoint_wrapper(model.gain)
    model.middle = checkpoint_wrapper(model.middle)
    return Training(model)


def tied():
    model = Net()
    model.middle = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    model.middle[2].weight = model.middle[0].weight
    return Training(model)


class Repeated(Net):
    def forward(self, x):
        hidden = self.gain(self.first(x))
        for _ in range(3):
            hidden = torch.relu(self.middle(hidden))
        return self.head(hidden)


class LoRA(nn.Module):
    def __init__(self, rank=2):
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(16, rank, bias=False), nn.Linear(rank, 16, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def lora():
    model = Net(LoRA())
    model.first.requires_grad_(False)
    return Training(model)


class Quantised(nn.Module):
    """An int8 layer, as torch's dynamic quantisation makes it, beside one that trains."""

    def __init__(self):
        super().__init__()
        frozen = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(16, 16)).eval())
        self.frozen, self.trained = frozen[0], nn.Linear(16, 16)

    def forward(self, x):
        return self.trained(x) + self.frozen(x.detach().float())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class DoubledWide(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        return 2 * gradient


class Custom(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x)


def functional():
    def call(training):
        parameters = dict(training.model.named_parameters())
        buffers = dict(training.model.named_buffers())
        training.call = lambda x: torch.func.functional_call(
            training.model, {**parameters, **buffers}, (x,)
        )

    return Training(once_attached=call)


def many():
    return Training(Net(nn.Sequential(*(nn.Identity() for _ in range(10_000)))))


# -- loops -----------------------------------------------------------------------------------------


def accumulated(training, step):
    for part in range(3):
        training.scaler.scale(training.loss(step, part) / 3).backward()


def penalised(training, step):
    inputs, targets = batch(step)
    inputs.requires_grad_()
    with torch.autocast("cpu", torch.float16):
        outputs = training.call(inputs)
        loss = nn.functional.mse_loss(outputs.float(), targets)
    scaled = torch.autograd.grad(training.scaler.scale(loss), inputs, create_graph=True)[0]
    slope = scaled / training.scaler.get_scale()
    training.scaler.scale(loss + slope.float().square().sum()).backward()


class Branches(nn.Module):
    """Two networks with an optimizer each."""

    def __init__(self):
        super().__init__()
        self.one, self.other = Net(), Net()


def two_losses():
    model = Branches()

    def backward(training, step):
        for part, net in enumerate((model.one, model.other)):
            training.scaler.scale(training.loss(step, part, net)).backward()

    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model.one, model.other)]
    return Training(model, optimizers=optimizers, backward=backward)


class Lion(torch.optim.Optimizer):
    """A third-party optimizer with a step of its own."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    p.sub_(momentum.lerp(p.grad, 0.1).sign(), alpha=group["lr"])
                    momentum.lerp_(p.grad, 0.01)


class Foreign:
    """An optimizer that is no torch.optim.Optimizer, as 8-bit and fused ones sometimes are."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters), "lr": 0.1}]

    def zero_grad(self):
        for p in self.param_groups[0]["params"]:
            p.grad = None

    def step(self):
        for p in self.param_groups[0]["params"]:
            p.data.sub_(p.grad, alpha=self.param_groups[0]["lr"])


def stepped_by(optimizer) -> Callable[[], Training]:
    def make():
        model = Net()
        return Training(model, optimizers=[optimizer(model.parameters())])

    return make


def another_scaler(training, step):
    if step == 1:
        training.scaler = torch.amp.GradScaler("cpu", init_scale=512.0)


# -- attached too early ----------------------------------------------------------------------------


def loaded(training):
    state = {name: value * 0.5 for name, value in training.model.state_dict().items()}
    state["gain.factor"] = torch.ones(())
    training.model.load_state_dict(state)


def assigned(training):
    """`assign=True` puts other parameters into the model; the optimizer is made after."""
    state = {name: value.clone() for name, value in training.model.state_dict().items()}
    training.model.load_state_dict(state, assign=True)
    training.optimizers[:] = [torch.optim.SGD(training.model.parameters(), lr=0.1)]


def materialised():
    """A model begun on the meta device is given memory, and with it new parameters."""
    with torch.device("meta"):
        model = Net()

    def give_memory(training):
        training.model.to_empty(device="cpu")
        for parameter in training.model.parameters():
            nn.init.normal_(parameter, std=0.3)
        training.optimizers[:] = [torch.optim.SGD(training.model.parameters(), lr=0.1)]

    return Training(model, once_attached=give_memory)


def moved(training):
    training.model.to(torch.float64).to(torch.float32)


INSIDE = {"(root)": "float32", "first": None}
UNSEEN = {"first": None}

WRAPPERS = (
    Wrapper("no wrapper", Training),
    Wrapper("torch.compile, then attach", compiled_before, INSIDE, "(root)", compiled=True),
    Wrapper("attach, then torch.compile", compiled_after, UNSEEN, None, compiled=True),
    Wrapper("model.compile(), then attach", compiled_in_place, UNSEEN, None, compiled=True),
    Wrapper("a layer compiled, then attach", compiled_part, compiled=True),
    Wrapper("attach, then a layer compiled", compiled_part_after, compiled=True),
    Wrapper("checkpoint(use_reentrant=True)", lambda: Training(Checkpointed(reentrant=True))),
    Wrapper("checkpoint(use_reentrant=False)", lambda: Training(Checkpointed(reentrant=False))),
    Wrapper("checkpoint_wrapper", checkpoint_wrapped),
    Wrapper("tied weights", tied),
    Wrapper("a module called three times", lambda: Training(Repeated())),
    Wrapper("LoRA on frozen layers", lora),
    Wrapper("an int8 layer (dynamic)", lambda: Training(Net(Quantised()))),
    Wrapper("a custom autograd function", lambda: Training(Net(Custom(Doubled))),
            {**EAGER, "middle": "float16"}),
    Wrapper("a custom autograd function with custom_fwd(float32)",
            lambda: Training(Net(Custom(DoubledWide))), {**EAGER, "middle": "float32"}),
    Wrapper("functional_call", functional),
    Wrapper("10,000 modules", many, too_high=None, large=True),
    Wrapper("gradient accumulation", lambda: Training(backward=accumulated)),
    Wrapper("gradient penalty", lambda: Training(backward=penalised)),
    Wrapper("two losses, two optimizers", two_losses,
            {f"one.{name}": dtype for name, dtype in EAGER.items()}, "one.gain"),
    Wrapper("a third-party optimizer", stepped_by(Lion), too_high=2000.0),
    Wrapper("an optimizer that is not torch's", stepped_by(Foreign)),
    Wrapper("another scaler in mid-run", lambda: Training(between_steps=another_scaler),
            unknown=(2,)),
    Wrapper("attach, then .to()", after(moved)),
    Wrapper("attach, then load_state_dict", after(loaded)),
    Wrapper("attach, then load_state_dict(assign=True)", after(assigned)),
    Wrapper("attach on the meta device, then to_empty()", materialised),
)  # fmt: skip
