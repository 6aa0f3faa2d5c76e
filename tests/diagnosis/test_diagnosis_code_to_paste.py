"""What an action prints to be pasted does what it says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.code_to_paste import (
    Root,
    float32_island,
    rate_lines,
    roots_of,
    with_lines,
    words_and_lines,
)


class Masked(nn.Module):
    """Tells which types it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, mask, *, scale=None):
        self.called_with = (x.dtype, mask.dtype, None if scale is None else scale.dtype)
        return self.inner(x)


def test_an_action_parts_into_its_words_and_its_lines():
    action = with_lines("Do this:", "if it:\n    works")
    assert words_and_lines(action) == ("Do this:", "if it:\n    works")
    assert words_and_lines("Do nothing.") == ("Do nothing.", "")


@pytest.mark.parametrize("name", ["0", "(root)"])
def test_the_island_runs_its_layer_in_float32_and_leaves_masks_alone(name):
    model = nn.Sequential(Masked()) if name == "0" else Masked()
    layer = model[0] if name == "0" else model
    exec(float32_island(name), {"torch": torch, "model": model})
    with torch.autocast("cpu", torch.float16):
        half = torch.ones(2, 4).half()
        output = layer(half, torch.ones(2).bool(), scale=half)
    assert output.dtype == torch.float32
    assert layer.called_with == (torch.float32, torch.bool, torch.float32)


PAIR = {"G": nn.Sequential(nn.Linear(4, 4)), "D": nn.Sequential(nn.Linear(4, 4))}


@pytest.mark.parametrize(
    ("name", "roots", "given", "model"),
    [
        ("0", [Root()], "model", nn.Sequential(nn.Linear(4, 4))),
        ("0", [Root("", ("DataParallel",))], "model", nn.DataParallel(PAIR["G"])),
        ("0", [], "model", nn.Sequential(nn.Linear(4, 4))),
        ("D.0", [Root("G"), Root("D")], "models", PAIR),
        ("1.0", [Root("0"), Root("1", ("DataParallel",))], "models",
         [PAIR["G"], nn.DataParallel(PAIR["D"])]),
    ],
)  # fmt: skip
def test_the_island_finds_its_layer_in_what_was_given_to_attach(name, roots, given, model):
    scope = {"torch": torch, given: model}
    exec(float32_island(name, roots), scope)
    assert isinstance(scope["layer"], nn.Linear)
    with torch.autocast("cpu", torch.float16):
        assert scope["layer"](torch.ones(2, 4).half()).dtype == torch.float32


def test_models_that_the_record_does_not_tell_rightly_are_none():
    assert roots_of(None) == roots_of("x") == roots_of([{"prefix": 3}, 7]) == ()
    told = [{"prefix": "D", "wrapped": ["DistributedDataParallel", 3]}, {"prefix": "G"}]
    assert roots_of(told) == (Root("D", ("DistributedDataParallel",)), Root("G"))


# --- the rate, with the schedulers people use ----------------------------------------------------

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

    def paste(self):
        lines = rate_lines(FACTOR, BASE)
        if self.scheduler is None:
            lines = lines.replace("[getattr(scheduler, 'scheduler', scheduler)]", "[]")
        exec(lines, {"optimizer": self.optimizer, "scheduler": self.scheduler})

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


def near(rates):
    return [pytest.approx(one, rel=1e-6) for one in rates]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_pasted_rate_holds_for_a_whole_schedule_and_every_resume(name, tmp_path):
    make = SCHEDULERS[name]
    lowered = near(Training(make, BASE * FACTOR).rates(BEFORE + AFTER))

    fresh = Training(make)
    fresh.paste()
    assert fresh.rates(BEFORE) == lowered[:BEFORE]

    failed = Training(make)
    failed.rates(BEFORE)
    failed.saved(tmp_path)
    resumed = Training(make).load(tmp_path)
    resumed.paste()
    resumed.paste()  # by mistake
    assert resumed.rates(3) == lowered[BEFORE : BEFORE + 3]

    resumed.saved(tmp_path)
    later = Training(make).load(tmp_path)  # the lines are still in the script
    later.paste()
    assert later.rates(AFTER - 3) == lowered[BEFORE + 3 :]


@pytest.mark.parametrize("name", ["cosine", "function", "transformers linear"])
def test_the_pasted_rate_holds_where_the_schedule_begins_anew(name, tmp_path):
    make = SCHEDULERS[name]
    failed = Training(make)
    failed.rates(BEFORE)
    failed.saved(tmp_path)
    bare = Training(make).load(tmp_path, with_schedule=False).rates(AFTER)
    resumed = Training(make).load(tmp_path, with_schedule=False)
    resumed.paste()
    assert resumed.rates(AFTER) == near([[FACTOR * rate for rate in step] for step in bare])


def test_the_pasted_rate_is_the_ceiling_of_a_plateau():
    training = Training(lambda o, base: OF.ReduceLROnPlateau(o, patience=0, min_lr=base / 8))
    training.paste()
    for loss in (1.0, 2.0, 3.0):
        training.scheduler.step(loss)
    rates = [group["lr"] for group in training.optimizer.param_groups]
    assert rates == [pytest.approx(BASE * FACTOR / 8)] * 2
