"""The learning-rate benchmark's small trainings: a model, a task, an optimizer, a schedule each.

Real trainings in real fp16 with a real GradScaler, on the CPU, watched as a user would watch them.
`held_out` configurations fitted no constant; their results were looked at once, which led to the
test for idle runs (fitted on the others). `pristine` ones were made after that, and nothing changed
since they were run.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import ampwatch
from ampwatch.diagnosis import Engine
from ampwatch.diagnosis.learning_rate import RateState

STEPS = 160
GRID = tuple(2.0**k for k in range(-5, 8))  # 13 rates: factors on a configuration's nominal rate

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Configuration:
    """One training, but for its rate and seed."""

    name: str
    model: str
    optimizer: str
    nominal: float
    schedule: str = "constant"
    clip: float | None = None
    micro_batches: int = 1
    weight_decay: float = 0.0
    two_groups: bool = False
    held_out: bool = False
    pristine: bool = False

    @property
    def is_tuned_on(self) -> bool:
        return not (self.held_out or self.pristine)

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(self.nominal * factor for factor in GRID)


CONFIGURATIONS = (
    Configuration("mlp-sgd", "mlp", "sgd", 0.5),
    Configuration("mlp-momentum", "mlp", "momentum", 0.1),
    Configuration("mlp-adam", "mlp", "adam", 0.01),
    Configuration("mlp-adamw-decay", "mlp", "adamw", 0.01, weight_decay=0.1),
    Configuration("mlp-momentum-cosine", "mlp", "momentum", 0.1, schedule="cosine"),
    Configuration("deep-mlp-sgd", "deep", "sgd", 0.2),
    Configuration("deep-mlp-adam-warmup", "deep", "adam", 0.005, schedule="warmup"),
    Configuration("cnn-momentum", "cnn", "momentum", 0.1),
    Configuration("cnn-adam-onecycle", "cnn", "adam", 0.01, schedule="onecycle"),
    Configuration("cnn-sgd-clip", "cnn", "sgd", 0.5, clip=1.0),
    Configuration("pre-ln-adamw-warmup", "pre-ln", "adamw", 0.01, schedule="warmup"),
    Configuration("pre-ln-sgd", "pre-ln", "sgd", 0.5),
    Configuration("post-ln-adam", "post-ln", "adam", 0.005),
    Configuration("post-ln-adam-clip", "post-ln", "adam", 0.005, clip=1.0),
    Configuration("rnn-adam", "rnn", "adam", 0.01),
    Configuration("gru-momentum-clip", "gru", "momentum", 0.2, clip=1.0),
    Configuration("regression-sgd", "regression", "sgd", 0.05),
    Configuration("regression-adam-step", "regression", "adam", 0.02, schedule="step"),
    Configuration("autoencoder-adam", "autoencoder", "adam", 0.01, held_out=True),
    Configuration("autoencoder-momentum", "autoencoder", "momentum", 0.2, held_out=True),
    Configuration("bag-adamw", "bag", "adamw", 0.02, held_out=True),
    Configuration("residual-sgd-warmup", "residual", "sgd", 0.3, "warmup", held_out=True),
    Configuration("residual-nadam", "residual", "nadam", 0.01, held_out=True),
    Configuration("mixer-adam-cosine", "mixer", "adam", 0.01, "cosine", held_out=True),
    Configuration("mixer-momentum-accum", "mixer", "momentum", 0.1, micro_batches=4, held_out=True),
    Configuration("mixer-adam-groups", "mixer", "adam", 0.01, two_groups=True, held_out=True),
    Configuration("conv1d-adam", "conv1d", "adam", 0.01, pristine=True),
    Configuration("conv1d-sgd-cosine", "conv1d", "sgd", 0.5, "cosine", pristine=True),
    Configuration("batchnorm-sgd-accum", "batchnorm", "sgd", 0.5, micro_batches=2, pristine=True),
    Configuration("batchnorm-adam-warmup", "batchnorm", "adam", 0.01, "warmup", pristine=True),
    Configuration("sine-rmsprop", "sine", "rmsprop", 0.002, pristine=True),
    Configuration("sine-adam-groups", "sine", "adam", 0.01, two_groups=True, pristine=True),
)


@dataclass(frozen=True)
class Task:
    """A model and where its batches come from."""

    model: nn.Module
    batch: Callable[[], Batch]
    loss: Callable[[Tensor, Tensor], Tensor] = field(default=functional.cross_entropy)


def train(configuration: Configuration, rate: float, seed: int) -> RateState:
    """Train once; what the advice knows of it, out of the run that the watch recorded."""
    torch.manual_seed(seed)
    task = _TASKS[configuration.model](torch.Generator().manual_seed(1000 + seed))
    optimizer = _optimizer(configuration, task.model, rate)
    scheduler = _scheduler(configuration, optimizer, rate)
    scaler = torch.amp.GradScaler("cpu")
    with tempfile.TemporaryDirectory() as folder:
        with ampwatch.attach(
            scaler, task.model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off"
        ):
            for _ in range(STEPS):
                _step(configuration, task, optimizer, scaler)
                if scheduler is not None:
                    scheduler.step()
        return Engine().feed(ampwatch.open_run(Path(folder) / "run")).case().rate


def _step(
    configuration: Configuration,
    task: Task,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    optimizer.zero_grad()
    for _ in range(configuration.micro_batches):
        inputs, targets = task.batch()
        with torch.autocast("cpu", torch.float16):
            outputs = task.model(inputs)
        loss = task.loss(outputs.float(), targets)
        scaler.scale(loss / configuration.micro_batches).backward()
    if configuration.clip is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(task.model.parameters(), configuration.clip)
    scaler.step(optimizer)
    scaler.update()


def _optimizer(
    configuration: Configuration, model: nn.Module, rate: float
) -> torch.optim.Optimizer:
    groups: list[dict[str, object]] = [{"params": list(model.parameters())}]
    if configuration.two_groups:
        parameters = list(model.parameters())
        groups = [{"params": parameters[:2], "lr": rate / 10}, {"params": parameters[2:]}]
    decay = configuration.weight_decay
    make = {
        "sgd": lambda: torch.optim.SGD(groups, rate, weight_decay=decay),
        "momentum": lambda: torch.optim.SGD(groups, rate, momentum=0.9, weight_decay=decay),
        "adam": lambda: torch.optim.Adam(groups, rate),
        "adamw": lambda: torch.optim.AdamW(groups, rate, weight_decay=decay),
        "rmsprop": lambda: torch.optim.RMSprop(groups, rate),
        "nadam": lambda: torch.optim.NAdam(groups, rate),
    }
    return make[configuration.optimizer]()


def _scheduler(
    configuration: Configuration, optimizer: torch.optim.Optimizer, rate: float
) -> torch.optim.lr_scheduler.LRScheduler | None:
    if configuration.schedule == "onecycle":
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rate, total_steps=STEPS + 1, cycle_momentum=False
        )
    factors: dict[str, Callable[[int], float]] = {
        "warmup": lambda t: min(1.0, (t + 1) / 40),
        "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t / STEPS)),
        "step": lambda t: 1.0 if t < 100 else 0.1,
    }
    factor = factors.get(configuration.schedule)
    return None if factor is None else torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


# --- tasks: a teacher's labels on random inputs, so that every seed has fresh data ----------------


def _taught(generator: torch.Generator, inputs: int, classes: int) -> Callable[[], Batch]:
    teacher = torch.randn(inputs, classes, generator=generator)

    def batch() -> Batch:
        x = torch.randn(32, inputs, generator=generator)
        return x, (x @ teacher).argmax(1)

    return batch


def _tokens(generator: torch.Generator) -> Callable[[], Batch]:
    """Sequences in which each token follows from the one before by a fixed table."""
    table = torch.randperm(16, generator=generator)

    def batch() -> Batch:
        rows = [torch.randint(16, (8,), generator=generator)]
        for _ in range(12):
            rows.append(table[rows[-1]])
        tokens = torch.stack(rows, 1)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def _per_token(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _mlp(generator: torch.Generator) -> Task:
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    return Task(nn.Sequential(*layers), _taught(generator, 32, 10))


def _deep(generator: torch.Generator) -> Task:
    hidden = [part for _ in range(6) for part in (nn.Linear(48, 48), nn.Tanh())]
    layers = [nn.Linear(32, 48), nn.Tanh(), *hidden, nn.Linear(48, 10)]
    return Task(nn.Sequential(*layers), _taught(generator, 32, 10))


def _cnn(generator: torch.Generator) -> Task:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    return Task(model, _taught(generator, 64, 10))


class Sequence(nn.Module):
    """Embedding, one sequence model, a head."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(16, 32), body, nn.Linear(32, 16)

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


def _transformer(*, norm_first: bool) -> Callable[[torch.Generator], Task]:
    def make(generator: torch.Generator) -> Task:
        body = nn.Sequential(Block(norm_first=norm_first), Block(norm_first=norm_first))
        return Task(Sequence(body), _tokens(generator), _per_token)

    return make


def _recurrent(kind: type[nn.Module]) -> Callable[[torch.Generator], Task]:
    def make(generator: torch.Generator) -> Task:
        return Task(Sequence(kind(32, 32, batch_first=True)), _tokens(generator), _per_token)

    return make


def _regression(generator: torch.Generator) -> Task:
    teacher = torch.randn(32, 4, generator=generator) / 4

    def batch() -> Batch:
        x = torch.randn(32, 32, generator=generator)
        return x, torch.tanh(x @ teacher)

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    return Task(model, batch, functional.mse_loss)


def _autoencoder(generator: torch.Generator) -> Task:
    basis = torch.randn(6, 40, generator=generator)

    def batch() -> Batch:
        x = torch.randn(32, 6, generator=generator) @ basis / 6**0.5
        return x, x

    model = nn.Sequential(
        nn.Linear(40, 24), nn.GELU(), nn.Linear(24, 8), nn.GELU(), nn.Linear(8, 40)
    )
    return Task(model, batch, functional.mse_loss)


def _bag(generator: torch.Generator) -> Task:
    weights = torch.randn(200, 5, generator=generator)

    def batch() -> Batch:
        words = torch.randint(200, (32, 12), generator=generator)
        return words, weights[words].sum(1).argmax(1)

    return Task(nn.Sequential(nn.EmbeddingBag(200, 32), nn.Linear(32, 5)), batch)


class Residual(nn.Module):
    """A plain residual network without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(32, 48), nn.Linear(48, 10)
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 48)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        for part in self.parts:
            hidden = hidden + part(hidden)
        return self.leave(hidden)


class Mixer(nn.Module):
    """Mixes along patches, then along features."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.across = nn.Linear(8, 8), nn.Linear(8, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.unflatten(1, (8, 8))
        hidden = hidden + self.along(hidden.transpose(1, 2)).transpose(1, 2).relu()
        return self.head(self.norm(self.across(hidden).relu()).mean(1))


class Shifted(nn.Module):
    """Looks back over the last three positions, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(32, 48, 3), nn.Conv1d(48, 32, 3)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = functional.pad(hidden.transpose(1, 2), (4, 0))
        return self.second(self.first(hidden).relu()).relu().transpose(1, 2)


def _batchnorm(generator: torch.Generator) -> Task:
    hidden = [part for _ in range(3) for part in (nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU())]
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), *hidden, nn.Linear(48, 10))
    return Task(model, _taught(generator, 32, 10))


class Sine(nn.Module):
    """A small network of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sin(self.second(torch.sin(2 * self.first(x)))))


def _sine(generator: torch.Generator) -> Task:
    teacher = torch.randn(8, 4, generator=generator) / 2

    def batch() -> Batch:
        x = torch.randn(32, 8, generator=generator)
        return x, torch.sin(x @ teacher)

    return Task(Sine(), batch, functional.mse_loss)


_TASKS: dict[str, Callable[[torch.Generator], Task]] = {
    "mlp": _mlp,
    "deep": _deep,
    "cnn": _cnn,
    "pre-ln": _transformer(norm_first=True),
    "post-ln": _transformer(norm_first=False),
    "rnn": _recurrent(nn.RNN),
    "gru": _recurrent(nn.GRU),
    "regression": _regression,
    "autoencoder": _autoencoder,
    "bag": _bag,
    "conv1d": lambda generator: Task(Sequence(Shifted()), _tokens(generator), _per_token),
    "batchnorm": _batchnorm,
    "sine": _sine,
    "residual": lambda generator: Task(Residual(), _taught(generator, 32, 10)),
    "mixer": lambda generator: Task(Mixer(), _taught(generator, 64, 10)),
}
