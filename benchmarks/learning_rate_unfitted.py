"""Families of trainings on which the learning-rate advice is scored, and none of it was fitted.

Split by kind before any of them was trained: LOOKED_AT may be read to mend something, of HELD_OUT
only the scores. Half of them in fp16 with a scaler, the others in fp32 or bf16 without one. A kind
is what sets a training apart: its optimizer, its architecture, or what happens to it on the way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from learning_rate_families import Patches, _changing
from learning_rate_models import Block, Sequence
from learning_rate_tasks import TASKS, Batch, Task, per_token, taught, tokens
from learning_rate_trainings import Configuration
from torch import Tensor, nn
from torch.nn import functional

LOOKED_AT, HELD_OUT = "looked at", "held out"
_PRETRAINING, _RANK = 150, 4


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank one beside it, which begins at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.up = base.requires_grad_(False), nn.Linear(_RANK, base.out_features, False)
        self.down = nn.Linear(base.in_features, _RANK, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.up(self.down(x))


def _adapted(name: str) -> Callable[[torch.Generator], Task]:
    """A task for which the network was trained before, then frozen; its teacher is another now."""

    def make(generator: torch.Generator) -> Task:
        task = TASKS[name](generator)
        optimizer = torch.optim.Adam(task.model.parameters(), 0.003)
        for _ in range(_PRETRAINING):
            inputs, targets = task.batch()
            optimizer.zero_grad()
            task.loss(task.model(inputs), targets).backward()
            optimizer.step()
        task.model.requires_grad_(False)
        for parent in list(task.model.modules()):
            for child, module in list(parent.named_children()):
                if isinstance(module, nn.Linear) and not isinstance(parent, Adapted):
                    setattr(parent, child, Adapted(module))
        return Task(task.model, _mostly(task.batch, TASKS[name](generator).batch), task.loss)

    return make


def _mostly(old: Callable[[], Batch], new: Callable[[], Batch]) -> Callable[[], Batch]:
    """Three quarters of each batch from another source."""

    def batch() -> Batch:
        (inputs, targets), (others, theirs) = old(), new()
        some = len(inputs) // 4
        return torch.cat([inputs[:some], others[some:]]), torch.cat([targets[:some], theirs[some:]])

    return batch


class Squeezed(nn.Module):
    """Two convolutions whose channels are weighed by what is in them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.next = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.squeeze, self.excite, self.head = nn.Linear(12, 6), nn.Linear(6, 12), nn.Linear(192, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x.unflatten(1, (1, 8, 8))).relu()
        weights = self.excite(self.squeeze(hidden.mean((2, 3))).relu()).sigmoid()
        hidden = self.next(hidden * weights[:, :, None, None]).relu()
        return self.head(functional.avg_pool2d(hidden, 2).flatten(1))


def _stack(*blocks: Callable[[], nn.Module]) -> Callable[[torch.Generator], Task]:
    return lambda generator: Task(
        Sequence(nn.Sequential(*(make() for make in blocks))), tokens(generator), per_token
    )


def _recurrent(kind: type[nn.Module], width: int) -> Callable[[torch.Generator], Task]:
    def make(generator: torch.Generator) -> Task:
        model = Sequence(kind(32, width, batch_first=True))
        model.head = nn.Linear(width, 16)
        return Task(model, tokens(generator), per_token)

    return make


def _regression(generator: torch.Generator) -> Task:
    teacher = torch.randn(24, 3, generator=generator) / 3

    def batch() -> Batch:
        x = torch.randn(48, 24, generator=generator)
        return x, torch.sin(x @ teacher) + 0.1 * torch.randn(48, 3, generator=generator)

    sizes = ((24, 96), (96, 48), (48, 3))
    layers = [part for pair in sizes for part in (nn.Linear(*pair), nn.SiLU())]
    return Task(nn.Sequential(*layers[:-1]), batch, functional.smooth_l1_loss)


def _pre() -> nn.Module:
    return Block(norm_first=True)


def _post() -> nn.Module:
    return Block(norm_first=False)


def _wide(generator: torch.Generator) -> Task:
    layers = [nn.Linear(40, 128), nn.GELU(), nn.Linear(128, 96), nn.GELU(), nn.Linear(96, 12)]
    return Task(nn.Sequential(*layers), taught(generator, 40, 12))


TASKS.update(
    {
        "u-wide": _wide,
        "u-squeezed": lambda generator: Task(Squeezed(), taught(generator, 64, 8)),
        "u-pre": _stack(_pre, _pre, _pre),
        "u-pre2": _stack(_pre, _pre),
        "u-post": _stack(_post, _post),
        "u-gru": _recurrent(nn.GRU, 40),
        "u-lstm": _recurrent(nn.LSTM, 40),
        "u-regression": _regression,
        "u-patches": lambda generator: Task(Patches(), taught(generator, 64, 10)),
    }
)
TASKS.update(
    {
        "u-pre-adapted": _adapted("u-pre"),
        "u-wide-adapted": _adapted("u-wide"),
        "u-changing-wide": _changing("u-wide"),
        "u-changing-squeezed": _changing("u-squeezed"),
    }
)
_F32, _B16 = torch.float32, torch.bfloat16


def _c(name: str, model: str, optimizer: str, nominal: float, schedule: str = "constant",
       **rest: object) -> Configuration:  # fmt: skip
    rest = {"steps": 200, "group": LOOKED_AT, **rest}
    return Configuration(name, f"u-{model}", optimizer, nominal, schedule, **rest)


UNFITTED = (
    _c("sgd mlp warm-up", "wide", "sgd", 0.3, "warmup"),
    _c("momentum cnn cosine", "squeezed", "momentum", 0.05, "cosine", precision=_F32, steps=300),
    _c("adam pre-norm", "pre", "adam", 0.003, precision=_B16),
    _c("lion mlp warm-up", "wide", "lion", 0.002, "warmup"),
    _c("adamw regression two groups", "regression", "adamw", 0.01, precision=_F32, two_groups=True),
    _c("momentum mlp accumulation", "wide", "momentum", 0.05, micro_batches=4),
    _c("adamw low-rank pre-norm", "pre-adapted", "adamw", 0.01),
    _c("rmsprop cnn", "squeezed", "rmsprop", 0.002, precision=_F32),
    _c("adamw pre-norm resumed", "pre2", "adamw", 0.003, resumed_after=20, steps=150),
    _c("momentum mlp raised late", "wide", "momentum", 0.1, "raised", precision=_F32, steps=300),
    _c("adam regression clipped", "regression", "adam", 0.01, clip=0.5, steps=300),
    _c("sgd mlp data change", "changing-wide", "sgd", 0.3, precision=_B16, steps=250),
)
_HELD = {"group": HELD_OUT}
UNFITTED += (
    _c("orthogonal pre-norm", "pre", "orthogonal", 0.01, precision=_B16, **_HELD),
    _c("adafactor mlp", "wide", "adafactor", 0.02, **_HELD),
    _c("nadam gru", "gru", "nadam", 0.04, **_HELD),
    _c("nadam cnn", "squeezed", "nadam", 0.005, **_HELD),
    _c("adamw post-norm clipped", "post", "adamw", 0.005, "warmup", clip=1.0, steps=150, **_HELD),
    _c("lion post-norm", "post", "lion", 0.001, precision=_F32, steps=400, **_HELD),
    _c("adam cnn data change", "changing-squeezed", "adam", 0.005, steps=250, **_HELD),
    _c("adam mlp data change", "changing-wide", "adam", 0.005, steps=250, **_HELD),
    _c("momentum low-rank mlp", "wide-adapted", "momentum", 0.1, precision=_F32, **_HELD),
    _c("sgd patches two groups", "patches", "sgd", 0.5, "cosine", two_groups=True, **_HELD),
    _c("adam lstm clipped", "lstm", "adam", 0.08, precision=_F32, clip=1.0, **_HELD),
    _c("momentum mlp resumed", "wide", "momentum", 0.05, precision=_B16, resumed_after=60, **_HELD),
    _c("adamw patches cosine", "patches", "adamw", 0.005, "cosine", weight_decay=0.1, steps=150,
       **_HELD),
    _c("rmsprop regression warm-up", "regression", "rmsprop", 0.003, "warmup", **_HELD),
    _c("adagrad cnn raised late", "squeezed", "adagrad", 0.05, "raised", precision=_F32, steps=300,
       **_HELD),
)  # fmt: skip
