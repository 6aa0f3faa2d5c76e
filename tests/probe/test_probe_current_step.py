"""Forward passes that no step follows, and what enters a model that another one made."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from loop_harness import Trainer, column, events
from torch import nn

import ampwatch

ROWS = torch.linspace(-1, 1, 32).reshape(8, 4)


class Guarded:
    """A loop that looks at its loss before it does anything with it."""

    def __init__(self, folder, *, scaler=True, model=None, **settings):
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaler else None
        optimizer = None if scaler else self.optimizer
        self.watch = ampwatch.attach(
            self.scaler, self.model, optimizer=optimizer, log_dir=folder, run="r", **settings
        )

    def forward(self, rows=ROWS):
        return self.model(rows).square().mean()

    def step(self, loss):
        """Whether there was one."""
        if not math.isfinite(loss.item()):
            return False
        self.optimizer.zero_grad()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return True

    def break_weight(self):
        with torch.no_grad():
            self.model[2].weight.fill_(math.inf)

    def mend_weight(self):
        with torch.no_grad():
            self.model[2].weight.fill_(0.1)

    def read(self):
        self.watch.close()
        return ampwatch.open_run(self.watch.run_folder)


@pytest.mark.parametrize("scaler", [True, False])
def test_a_loop_that_stops_at_a_forward_that_is_not_finite_leaves_a_row_of_it(tmp_path, scaler):
    loop = Guarded(tmp_path, scaler=scaler)
    for number in itertools.count():
        if number == 30:
            loop.break_weight()
        if not loop.step(loop.forward()):
            break
    run = loop.read()
    assert column(run, "step") == list(range(31))
    assert column(run, "update_seen")[-2:] == [True if scaler else None, False]
    assert column(run, "scale")[-1] == (1024.0 if scaler else None)
    (event,) = events(run, "overflow")
    assert (event["guarded"], event["direction"], event["layer"]) == (True, "weights", "2")


@pytest.mark.parametrize("scaler", [True, False])
def test_a_loop_that_leaves_steps_out_has_a_row_for_each(tmp_path, scaler):
    loop = Guarded(tmp_path, scaler=scaler)
    stepped = []
    for number in range(80):
        loop.break_weight() if number in (30, 31, 60) else loop.mend_weight()
        stepped.append(loop.step(loop.forward()))
    run = loop.read()
    assert column(run, "step") == list(range(80))
    left_out = [n for n, seen in enumerate(column(run, "update_seen")) if seen is False]
    assert left_out == [n for n, was in enumerate(stepped) if not was] == [30, 31, 60]
    assert [run.events["step"][n].as_py() for n in at(run, "overflow")] == [30, 31, 60]


def at(run, kind):
    return [n for n, row in enumerate(run.events["kind"].to_pylist()) if row == kind]


def test_a_layer_is_named_where_the_step_was_looked_into_and_bounded_where_not(tmp_path):
    class Overflows(nn.Module):
        on = False

        def forward(self, x):
            return x * math.inf if self.on else x

    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(Overflows(), nn.ReLU()), nn.Linear(8, 2))
    loop = Guarded(tmp_path, model=model)
    for number in range(40):
        model[1][0].on = number >= 35
        loop.step(loop.forward())
    first, *later = events(loop.read(), "overflow")
    assert (first.get("layer"), first["exact"], first["from"], first["to"]) == (
        None, False, "0", "(root)",
    )  # fmt: skip
    assert {(event["layer"], event["exact"]) for event in later} == {("1.0", True)}


def test_the_first_layer_is_named_on_any_step(tmp_path):
    loop = Guarded(tmp_path)
    for _ in range(30):
        loop.step(loop.forward())
    with torch.no_grad():
        loop.model[0].weight.fill_(3e38)
    loop.step(loop.forward())
    (event,) = events(loop.read(), "overflow")
    assert (event["direction"], event["layer"]) == ("forward", "0")


def test_an_input_that_is_not_finite_is_told_from_what_follows(tmp_path):
    loop = Guarded(tmp_path)
    for number in range(40):
        loop.step(loop.forward(ROWS * (math.nan if number == 35 else 1.0)))
    run = loop.read()
    assert column(run, "input_finite")[34:37] == [True, False, True]
    assert events(run, "overflow")[0]["direction"] == "input"


def test_a_logged_loss_that_is_not_finite_is_a_step_left_out(tmp_path):
    loop = Guarded(tmp_path)
    for number in range(30):
        loss = loop.forward()
        if number in (20, 29):
            loop.watch.log(loss=math.nan)
            continue
        loop.step(loss)
    run = loop.read()
    assert [n for n, seen in enumerate(column(run, "update_seen")) if not seen] == [20, 29]
    assert {event["direction"] for event in events(run, "overflow")} == {"loss"}


def test_outputs_that_are_infinite_by_intention_make_no_rows_of_their_own(tmp_path):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x).masked_fill(torch.eye(4, dtype=torch.bool)[0], -math.inf)

    loop = Guarded(tmp_path, model=Masked())
    for _ in range(30):  # two towers: two forward passes a step
        loss = loop.model(ROWS).softmax(1).square().mean() - loop.model(-ROWS).softmax(1).mean()
        loop.step(loss)
    run = loop.read()
    assert column(run, "step") == list(range(30))
    assert column(run, "update_seen") == [True] * 30
    assert not events(run, "overflow")


def test_a_policy_that_masks_actions_may_act_before_it_learns(tmp_path):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).masked_fill(torch.tensor([False, True, False]), -math.inf)

    loop = Guarded(tmp_path, model=Policy())
    for _ in range(4):
        acted = [loop.model(ROWS).softmax(1).square().mean() for _ in range(10)]
        loop.step(acted[-1])
    run = loop.read()
    assert column(run, "update_seen") == [True] * 4
    assert not events(run, "overflow")


def test_a_training_forward_for_its_own_sake_makes_no_row(tmp_path):
    loop = Guarded(tmp_path)
    for _ in range(30):
        loop.step(loop.forward())
        loop.forward()
    assert column(loop.read(), "step") == list(range(30))


def test_a_micro_batch_left_out_does_not_end_the_step_of_the_others(tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(20):
        trainer.optimizer.zero_grad()
        trainer.backward()
        trainer.model(torch.full((3, 4), math.nan))  # its loss is nan: the loop goes on to the next
        trainer.backward()
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    assert column(run, "update_seen") == [True] * 20
    assert column(run, "micro_batches") == [2] * 20


@pytest.mark.parametrize("joined", [False, True])
def test_what_another_watched_model_gave_is_not_the_data(tmp_path, joined):
    torch.manual_seed(0)
    maker, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    models = {"G": maker, "D": critic}
    with ampwatch.attach(scaler, models, log_dir=tmp_path, run="r") as watch:
        for number in range(20):
            with torch.no_grad():
                maker.bias.fill_(math.inf if number == 15 else 0.0)
            made = maker(ROWS).detach()
            made = made * math.nan if number == 12 else made
            fed = torch.cat([ROWS, made]) if joined else made
            optimizer.zero_grad()
            scaler.scale(critic(fed).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    finite = column(ampwatch.open_run(watch.run_folder), "input_finite")
    # What the loop spoils on the way is the loop's; what the maker gave is not known as data.
    assert (finite[12], finite[15]) == (False, True)
    assert finite[11] is True


def test_the_first_norm_is_unclipped_where_only_parts_of_the_model_are_called(tmp_path):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    torch.manual_seed(0)
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    norms, watch = [], ampwatch.attach(None, model, optimizer=optimizer, log_dir=tmp_path, run="r")
    for _ in range(12):
        optimizer.zero_grad()
        (model.head(model.encoder(ROWS)).square().mean() * 100).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    watch.close()
    run = ampwatch.open_run(watch.run_folder)
    assert min(norms) > 1.0
    assert column(run, "grad_norm") == norms
    assert column(run, "grad_norm_applied") == pytest.approx([1.0] * 12, rel=1e-5)


def test_what_waits_for_the_loss_keeps_no_larger_tensor_alive(tmp_path):
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4096)

        def forward(self, x):
            return self.layer(x)[:, :2]

    loop = Guarded(tmp_path, model=First())
    loop.forward()
    samples = loop.watch.loop.forwards._samples
    assert [part.untyped_storage().nbytes() for _, part in samples] == [8 * 2 * 4]
    loop.read()


def test_of_many_forwards_before_a_loss_each_is_judged_by_its_own_output(tmp_path):
    torch.manual_seed(0)
    maker, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with ampwatch.attach(scaler, {"G": maker, "D": critic}, log_dir=tmp_path, run="r") as watch:
        for step in range(3):
            for number in range(20):
                with torch.no_grad():
                    maker.bias.fill_(math.inf if (step, number) == (2, 18) else 0.0)
                made = maker(ROWS).detach()
            fed = torch.cat([ROWS, made * (math.nan if step else 1.0)])
            scaler.scale(critic(fed).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    # The second step's nan is the loop's own; before the third's a model had given inf.
    assert column(ampwatch.open_run(watch.run_folder), "input_finite") == [True, False, True]
