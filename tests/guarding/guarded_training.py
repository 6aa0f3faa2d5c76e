"""A real loop with bad batches at given steps, guarded or without them."""

import copy
import json

import torch
from torch import nn
from torch.nn import functional

import ampwatch


class Lion(torch.optim.Optimizer):
    """A user's own optimizer, which counts steps in its group and has a moment a parameter."""

    def __init__(self, params, lr=1e-3, beta=0.9, weight_decay=0.1):
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay, "step": 0})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                moment.lerp_(p.grad, 1 - group["beta"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(moment.sign(), alpha=-group["lr"])
        return loss


class DecaysAlways(torch.optim.SGD):
    """Decays every weight, whether or not it has a gradient."""

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(0.999)
        return super().step(closure)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "sgd-fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adam-foreach": lambda p: torch.optim.Adam(p, 1e-2, foreach=True, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2, lr_decay=1e-3),
    "lion": lambda p: Lion(p),
}


class Training:
    """A small bf16 training; a bad batch's loss is a thousand times too large, or nan."""

    def __init__(self, optimizer="adamw", seed=0, scaler=None):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        made = OPTIMIZERS.get(optimizer, optimizer)
        self.optimizer = made(self.model.parameters())
        self.random = torch.Generator().manual_seed(seed)
        self.scaler = scaler
        self.watch = self.guard = None
        self.losses = []

    def attach(self, folder, run="run", *, lower_rate=False, **guard):
        """Watch it; guard it, if it is said how. Whoever lowers the rate starts a process."""
        self.watch = ampwatch.attach(
            self.scaler, self.model, optimizer=self.optimizer, log_dir=folder, run=run,
            endpoint="off",
        )  # fmt: skip
        if guard:
            self.guard = ampwatch.guard(self.watch, lower_rate=lower_rate, **guard)
        return self

    def steps(self, count, bad=(), leave_out=(), factor=1000.0, closure=False):
        for step in range(count):
            x = torch.randn(16, 6, generator=self.random)
            if step in leave_out:
                continue
            self.one(x, factor if step in bad else 1.0, closure=closure)
        return self

    def one(self, x, factor, *, closure):
        def evaluate():
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = (self.model(x).squeeze(1).float() - x.sin().sum(1)).square().mean() * factor
            self.losses.append(loss.detach())
            if self.watch is not None and self.scaler is None:
                self.watch.log(loss=loss)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            return loss

        if closure:
            self.optimizer.step(evaluate)
            return
        evaluate()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def state(self):
        """A copy of weights and the optimizer's state."""
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def close(self):
        """The run and what its guard events say."""
        folder = self.watch.run_folder
        self.watch.close()
        run = ampwatch.open_run(folder)
        return run, guard_events(run)


class Classes(Training):
    """Learns classes; a bad batch has another's labels, or inputs fifty times too large."""

    def __init__(self, what="labels", optimizer="adamw", **options):
        super().__init__(optimizer, **options)
        self.what = what
        self.model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())

    def one(self, x, factor, *, closure):
        is_bad = factor != 1.0
        labels = (x @ torch.linspace(-1, 1, 18).reshape(6, 3)).argmax(1)
        if is_bad and self.what == "labels":
            labels = (labels + 1) % 3
        if is_bad and self.what == "input":
            x = x * 50
        if is_bad and self.what == "rate":
            self.optimizer.param_groups[0]["lr"] *= 20
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(self.model(x).float(), labels)
        if self.watch is not None:
            self.watch.log(loss=loss)
        loss.backward()
        self.optimizer.step()
        if is_bad and self.what == "rate":
            self.optimizer.param_groups[0]["lr"] /= 20


def guard_events(run, rank=0):
    rows = [row for row in run.events.to_pylist() if row["rank"] == rank]
    return [(row["step"], json.loads(row["detail"])) for row in rows if row["kind"] == "guard"]


def same(one, other):
    """Whether two states are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(
            one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
