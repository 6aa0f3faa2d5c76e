"""Small trainings under the schedules people use, for what changes a rate in mid-training."""

import torch
from torch import nn

import ampwatch

BASE, FACTOR, BEFORE, AFTER = 0.5, 0.125, 7, 12
OF = torch.optim.lr_scheduler


def transformers_schedule(name, **options):
    def make(optimizer, base):
        from transformers import get_scheduler

        given = {"num_warmup_steps": 5, "num_training_steps": 40, **options}
        return get_scheduler(name, optimizer, **given)

    return make


# Each is made from the base rate: what else it was given is in proportion to it.
SCHEDULERS = {
    "none": None,
    "step": lambda o, base: OF.StepLR(o, 3, 0.5),
    "several steps": lambda o, base: OF.MultiStepLR(o, [4, 9], 0.1),
    "constant": lambda o, base: OF.ConstantLR(o, 0.3, 10),
    "linear": lambda o, base: OF.LinearLR(o, 0.1, 1.0, 10),
    "exponential": lambda o, base: OF.ExponentialLR(o, 0.9),
    "polynomial": lambda o, base: OF.PolynomialLR(o, 30, 2.0),
    "cosine": lambda o, base: OF.CosineAnnealingLR(o, 30),
    "cosine to a floor": lambda o, base: OF.CosineAnnealingLR(o, 30, eta_min=0.1 * base),
    "restarts": lambda o, base: OF.CosineAnnealingWarmRestarts(o, 5, eta_min=0.1 * base),
    "function": lambda o, base: OF.LambdaLR(o, lambda step: min(1.0, (step + 1) / 10)),
    "product": lambda o, base: OF.MultiplicativeLR(o, lambda step: 0.95),
    "one cycle": lambda o, base: OF.OneCycleLR(o, max_lr=base, total_steps=40),
    "cyclic": lambda o, base: OF.CyclicLR(o, 0.1 * base, base, step_size_up=4),
    "one after another": lambda o, base: OF.SequentialLR(
        o, [OF.LinearLR(o, 0.1, 1.0, 5), OF.CosineAnnealingLR(o, 30)], [5]
    ),
    "chained": lambda o, base: OF.ChainedScheduler(
        [OF.LinearLR(o, 0.1, 1.0, 5), OF.ExponentialLR(o, 0.95)]
    ),
    "transformers linear": transformers_schedule("linear"),
    "transformers cosine": transformers_schedule("cosine"),
    "transformers constant": transformers_schedule("constant_with_warmup"),
    "transformers root": transformers_schedule("inverse_sqrt"),
}


class Training:
    """A small training whose groups have rates of their own."""

    def __init__(self, make, base=BASE):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        groups = [
            {"params": self.model[0].parameters()},
            {"params": self.model[1].parameters(), "lr": base / 4},
        ]
        if make in EQUAL:  # these are given one rate for all groups
            groups[1].pop("lr")
        self.optimizer = torch.optim.SGD(groups, lr=base, momentum=0.9)
        self.scheduler = None if make is None else make(self.optimizer, base)

    def rates(self, steps):
        """The rates that so many steps are made with."""
        used = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(3, 4)).sum().backward()
            used.append([group["lr"] for group in self.optimizer.param_groups])
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
        return used

    def set_rate(self):
        return ampwatch.set_learning_rate(self.optimizer, BASE * FACTOR, self.scheduler)

    def saved(self, folder):
        state = {"optimizer": self.optimizer.state_dict()}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        torch.save(state, folder / "checkpoint.pt")

    def load(self, folder, *, with_schedule=True):
        state = torch.load(folder / "checkpoint.pt", weights_only=False)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and with_schedule:
            self.scheduler.load_state_dict(state["scheduler"])
        return self


EQUAL = (SCHEDULERS["one cycle"], SCHEDULERS["cyclic"])
