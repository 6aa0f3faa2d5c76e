"""Families of small trainings to which no rule and no constant of ampwatch was ever fitted.

Split by kind before any of them was trained: LOOKED_AT may be read to mend something, of HELD_OUT
only the scores. Half of them in fp16 with a scaler, the others in fp32 or bf16 without one. A kind
is what sets a training apart: its optimizer, its architecture, or what happens to it on the way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

LOOKED_AT, HELD_OUT = "looked at", "held out"
PRETRAINING_STEPS, LOW_RANK, CHANGE_AT = 150, 4, 80
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model and where its batches come from."""

    model: nn.Module
    batch: Callable[[], Batch]
    loss: Callable[[Tensor, Tensor], Tensor] = field(default=functional.cross_entropy)


MakeTask = Callable[[torch.Generator], Task]


# --- models ---------------------------------------------------------------------------------------


class Sequence(nn.Module):
    """Embedding, one sequence model, a head."""

    def __init__(self, body: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(16, 32), body, nn.Linear(32, 16)
        if width != 32:
            self.head = nn.Linear(width, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.body(self.embed(tokens))
        return self.head(hidden[0] if isinstance(hidden, tuple) else hidden)


class Block(nn.Module):
    """A causal transformer block, its norms before or after."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.norm_first:
            hidden = hidden + self.attend(self.first(hidden))
            return hidden + self.down(functional.gelu(self.up(self.second(hidden))))
        hidden = self.first(hidden + self.attend(hidden))
        return self.second(hidden + self.down(functional.gelu(self.up(hidden))))

    def attend(self, hidden: Tensor) -> Tensor:
        query, key, value = self.mix(hidden).chunk(3, -1)
        length = hidden.shape[1]
        mask = torch.full((length, length), -1e4).triu(1)
        scores = (query @ key.transpose(1, 2)).float() / 32**0.5 + mask
        return self.out(scores.softmax(-1).to(value.dtype) @ value)


class Patches(nn.Module):
    """A vision transformer of two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.head = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(256, 10)
        self.blocks = nn.Sequential(Block(norm_first=True), Block(norm_first=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.enter(x.unflatten(1, (8, 8))))).flatten(1))


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


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank one beside it, which begins at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.up = nn.Linear(LOW_RANK, base.out_features, False)
        self.down = nn.Linear(base.in_features, LOW_RANK, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.up(self.down(x))


# --- optimizers that torch has not ----------------------------------------------------------------


class Orthogonal(torch.optim.Optimizer):
    """As Muon: a matrix moves by its momentum made orthogonal; all else by its sign."""

    def __init__(self, groups: list[dict[str, object]], lr: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(group["momentum"]).add_(p.grad)
                p.sub_(group["lr"] * (_orthogonal(mean) if p.ndim > 1 else mean.sign()))


def _orthogonal(values: Tensor) -> Tensor:
    matrix = values.flatten(1)
    matrix = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):  # Newton-Schulz
        square = matrix @ matrix.T
        matrix = 3.4445 * matrix + (-4.7750 * square + 2.0315 * square @ square) @ matrix
    return matrix.view_as(values)


class Lion(torch.optim.Optimizer):
    """The sign of a mean of gradients, as its paper writes it."""

    def __init__(self, groups: list[dict[str, object]], lr: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            early, late = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.sub_(group["lr"] * (early * mean + (1 - early) * p.grad).sign())
                mean.lerp_(p.grad, 1 - late)


# --- tasks: a teacher's labels on random inputs, so that every seed has fresh data ----------------


def taught(generator: torch.Generator, inputs: int, classes: int) -> Callable[[], Batch]:
    teacher = torch.randn(inputs, classes, generator=generator)

    def batch() -> Batch:
        x = torch.randn(32, inputs, generator=generator)
        return x, (x @ teacher).argmax(1)

    return batch


def tokens(generator: torch.Generator) -> Callable[[], Batch]:
    """Sequences in which each token follows from the one before by a fixed table."""
    table = torch.randperm(16, generator=generator)

    def batch() -> Batch:
        rows = [torch.randint(16, (8,), generator=generator)]
        for _ in range(12):
            rows.append(table[rows[-1]])
        tokens = torch.stack(rows, 1)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def per_token(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def blocks(count: int, *, norm_first: bool) -> MakeTask:
    def make(generator: torch.Generator) -> Task:
        body = nn.Sequential(*(Block(norm_first=norm_first) for _ in range(count)))
        return Task(Sequence(body), tokens(generator), per_token)

    return make


def recurrent(kind: type[nn.Module]) -> MakeTask:
    return lambda generator: Task(
        Sequence(kind(32, 40, batch_first=True), width=40), tokens(generator), per_token
    )


def regression(generator: torch.Generator) -> Task:
    teacher = torch.randn(24, 3, generator=generator) / 3

    def batch() -> Batch:
        x = torch.randn(48, 24, generator=generator)
        return x, torch.sin(x @ teacher) + 0.1 * torch.randn(48, 3, generator=generator)

    sizes = ((24, 96), (96, 48), (48, 3))
    layers = [part for pair in sizes for part in (nn.Linear(*pair), nn.SiLU())]
    return Task(nn.Sequential(*layers[:-1]), batch, functional.smooth_l1_loss)


def mlp(generator: torch.Generator) -> Task:
    layers = [nn.Linear(40, 128), nn.GELU(), nn.Linear(128, 96), nn.GELU(), nn.Linear(96, 12)]
    return Task(nn.Sequential(*layers), taught(generator, 40, 12))


def cnn(generator: torch.Generator) -> Task:
    return Task(Squeezed(), taught(generator, 64, 8))


def patches(generator: torch.Generator) -> Task:
    return Task(Patches(), taught(generator, 64, 10))


def adapted(make_task: MakeTask) -> MakeTask:
    """A task for which the network was trained before, then frozen; its teacher is another now."""

    def make(generator: torch.Generator) -> Task:
        task = make_task(generator)
        optimizer = torch.optim.Adam(task.model.parameters(), 0.003)
        for _ in range(PRETRAINING_STEPS):
            inputs, targets = task.batch()
            optimizer.zero_grad()
            task.loss(task.model(inputs), targets).backward()
            optimizer.step()
        task.model.requires_grad_(False)
        for parent in list(task.model.modules()):
            for child, module in list(parent.named_children()):
                if isinstance(module, nn.Linear) and not isinstance(parent, Adapted):
                    setattr(parent, child, Adapted(module))
        return Task(task.model, _mostly(task.batch, make_task(generator).batch), task.loss)

    return make


def _mostly(old: Callable[[], Batch], new: Callable[[], Batch]) -> Callable[[], Batch]:
    """Three quarters of each batch from another source."""

    def batch() -> Batch:
        (inputs, targets), (others, theirs) = old(), new()
        some = len(inputs) // 4
        return torch.cat([inputs[:some], others[some:]]), torch.cat([targets[:some], theirs[some:]])

    return batch


def changing(make_task: MakeTask) -> MakeTask:
    """The same task, whose teacher is another one from some batch on."""

    def make(generator: torch.Generator) -> Task:
        task = make_task(generator)
        state = torch.random.get_rng_state()
        other = make_task(generator).batch
        torch.random.set_rng_state(state)
        sources = itertools.chain([task.batch] * CHANGE_AT, itertools.repeat(other))

        def batch() -> Batch:
            return next(sources)()

        return Task(task.model, batch, task.loss)

    return make


# --- trainings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """One training, but for its learning rate and seed."""

    name: str
    make_task: MakeTask
    optimizer: str
    nominal: float  # a learning rate about which the sweep is laid
    schedule: str = "constant"
    clip: float | None = None
    micro_batches: int = 1
    weight_decay: float = 0.0
    two_groups: bool = False
    steps: int = 200
    resumed_after: int = 0  # steps at the nominal rate, before what is watched begins
    precision: torch.dtype = torch.float16  # with a scaler; any other without one
    group: str = LOOKED_AT


@dataclass(frozen=True)
class Training:
    """Everything of one training that goes on from step to step."""

    family: Family
    task: Task
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    scaler: torch.amp.GradScaler

    def run(self, log: Callable[..., None]) -> None:
        for _ in range(self.family.steps):
            loss = train_step(self.family, self.task, self.optimizer, self.scaler)
            if not self.scaler.is_enabled():
                log(loss=loss)  # no scaler sees it
            if self.scheduler is not None and self.scheduler.last_epoch < self.family.steps:
                self.scheduler.step()


def begin(family: Family, rate: float, seed: int) -> Training:
    torch.manual_seed(seed)
    task = family.make_task(torch.Generator().manual_seed(1000 + seed))
    scaler = torch.amp.GradScaler("cpu", enabled=family.precision is torch.float16)
    optimizer = _optimizer(family, task.model, rate)
    if family.resumed_after:
        good = _optimizer(family, task.model, family.nominal)
        for _ in range(family.resumed_after):
            train_step(family, task, good, scaler)
        own = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({**good.state_dict(), "param_groups": own})
    return Training(family, task, optimizer, _scheduler(family, optimizer), scaler)


def train_step(
    family: Family, task: Task, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Tensor:
    optimizer.zero_grad()
    half = family.precision is not torch.float32
    for _ in range(family.micro_batches):
        inputs, targets = task.batch()
        with torch.autocast("cpu", family.precision if half else None, enabled=half):
            outputs = task.model(inputs)
        loss = task.loss(outputs.float(), targets)
        scaler.scale(loss / family.micro_batches).backward()
    if family.clip is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(task.model.parameters(), family.clip)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def _optimizer(family: Family, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, object]] = [{"params": parameters}]
    if family.two_groups:
        groups = [{"params": parameters[:2], "lr": rate / 10}, {"params": parameters[2:]}]
    decay = family.weight_decay
    make = {
        "sgd": lambda: torch.optim.SGD(groups, rate, weight_decay=decay),
        "momentum": lambda: torch.optim.SGD(groups, rate, momentum=0.9, weight_decay=decay),
        "adam": lambda: torch.optim.Adam(groups, rate),
        "adamw": lambda: torch.optim.AdamW(groups, rate, weight_decay=decay),
        "rmsprop": lambda: torch.optim.RMSprop(groups, rate),
        "nadam": lambda: torch.optim.NAdam(groups, rate),
        "adagrad": lambda: torch.optim.Adagrad(groups, rate),
        "adafactor": lambda: torch.optim.Adafactor(groups, rate),
        "lion": lambda: Lion(groups, rate),
        "orthogonal": lambda: Orthogonal(groups, rate),
    }
    return make[family.optimizer]()


def _scheduler(
    family: Family, optimizer: torch.optim.Optimizer
) -> torch.optim.lr_scheduler.LRScheduler | None:
    factors: dict[str, Callable[[int], float]] = {
        "warmup": lambda t: min(1.0, (t + 1) / 40),
        "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t / family.steps)),
        "raised": lambda t: 0.1 if t < 100 else 1.0,
    }
    factor = factors.get(family.schedule)
    return None if factor is None else torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


# --- the families ---------------------------------------------------------------------------------

PRE2, PRE3 = blocks(2, norm_first=True), blocks(3, norm_first=True)
POST2 = blocks(2, norm_first=False)
FLOAT32 = {"precision": torch.float32}
BFLOAT16 = {"precision": torch.bfloat16}
HELD = {"group": HELD_OUT}
FAMILIES = (
    Family("sgd mlp warm-up", mlp, "sgd", 0.3, "warmup"),
    Family("momentum cnn cosine", cnn, "momentum", 0.05, "cosine", steps=300, **FLOAT32),
    Family("adam pre-norm", PRE3, "adam", 0.003, **BFLOAT16),
    Family("lion mlp warm-up", mlp, "lion", 0.002, "warmup"),
    Family("adamw regression two groups", regression, "adamw", 0.01, two_groups=True, **FLOAT32),
    Family("momentum mlp accumulation", mlp, "momentum", 0.05, micro_batches=4),
    Family("adamw low-rank pre-norm", adapted(PRE3), "adamw", 0.01),
    Family("rmsprop cnn", cnn, "rmsprop", 0.002, **FLOAT32),
    Family("adamw pre-norm resumed", PRE2, "adamw", 0.003, resumed_after=20, steps=150),
    Family("momentum mlp raised late", mlp, "momentum", 0.1, "raised", steps=300, **FLOAT32),
    Family("adam regression clipped", regression, "adam", 0.01, clip=0.5, steps=300),
    Family("sgd mlp data change", changing(mlp), "sgd", 0.3, steps=250, **BFLOAT16),
    Family("orthogonal pre-norm", PRE3, "orthogonal", 0.01, **BFLOAT16, **HELD),
    Family("adafactor mlp", mlp, "adafactor", 0.02, **HELD),
    Family("nadam gru", recurrent(nn.GRU), "nadam", 0.04, **HELD),
    Family("nadam cnn", cnn, "nadam", 0.005, **HELD),
    Family("adamw post-norm clipped", POST2, "adamw", 0.005, "warmup", clip=1.0, steps=150, **HELD),
    Family("lion post-norm", POST2, "lion", 0.001, steps=400, **FLOAT32, **HELD),
    Family("adam cnn data change", changing(cnn), "adam", 0.005, steps=250, **HELD),
    Family("adam mlp data change", changing(mlp), "adam", 0.005, steps=250, **HELD),
    Family("momentum low-rank mlp", adapted(mlp), "momentum", 0.1, **FLOAT32, **HELD),
    Family("sgd patches two groups", patches, "sgd", 0.5, "cosine", two_groups=True, **HELD),
    Family("adam lstm clipped", recurrent(nn.LSTM), "adam", 0.08, clip=1.0, **FLOAT32, **HELD),
    Family("momentum mlp resumed", mlp, "momentum", 0.05, resumed_after=60, **BFLOAT16, **HELD),
    Family(
        "adamw patches cosine", patches, "adamw", 0.005, "cosine",
        weight_decay=0.1, steps=150, **HELD,
    ),
    Family("rmsprop regression warm-up", regression, "rmsprop", 0.003, "warmup", **HELD),
    Family("adagrad cnn raised late", cnn, "adagrad", 0.05, "raised", steps=300, **FLOAT32, **HELD),
)  # fmt: skip
