"""Which call belongs to which step, where a step ends, and what its row then says."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections import Counter

import pytest
import torch
from loop_harness import Trainer, column, events
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import ampwatch
from ampwatch.errors import AmpwatchWarning, AttachError
from ampwatch.probe import loop


def test_each_update_closes_one_row(tmp_path):
    trainer = Trainer(tmp_path)
    losses = [trainer.step() for _ in range(60)]
    run = trainer.read()
    assert column(run, "step") == list(range(60))
    assert column(run, "loss") == losses
    assert column(run, "micro_batches") == [1] * 60
    assert column(run, "update_seen") == [True] * 60
    assert column(run, "stepped") == [True] * 60


@pytest.mark.parametrize("is_late", [True, False])
def test_a_loss_logged_after_its_step_is_said_to_count_for_the_next(tmp_path, recwarn, is_late):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.attach(None, model, optimizer=optimizer, log_dir=tmp_path) as watch:
        for _ in range(5):
            loss = model(torch.ones(3, 4)).square().mean()
            if not is_late:
                watch.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(tokens=10)
            if is_late:
                watch.log(loss=loss)
    told = [w for w in recwarn if "after its step had ended" in str(w.message)]
    assert len(told) == is_late


@pytest.mark.parametrize("model", [None, "no model"])
def test_divided_micro_batches_add_up_to_the_whole(tmp_path, model):
    trainer = Trainer(tmp_path, model=model)
    sums = []
    for _ in range(40):
        trainer.optimizer.zero_grad()
        sums.append(sum(trainer.backward(factor / 10) for factor in (1, 2, 3)))
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    assert column(run, "loss") == pytest.approx(sums, rel=1e-12)
    assert column(run, "micro_batches") == [3] * 40


def penalised_step(trainer):
    """One step of PyTorch's gradient-penalty recipe; returns the loss whose backward counts."""
    trainer.optimizer.zero_grad()
    loss = trainer.loss()
    scaled = torch.autograd.grad(
        trainer.scaler.scale(loss), trainer.model.parameters(), create_graph=True
    )
    gradients = [gradient / trainer.scaler.get_scale() for gradient in scaled]
    whole = loss + sum(gradient.square().sum() for gradient in gradients).sqrt()
    trainer.scaler.scale(whole).backward()
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    return whole.item()


@pytest.mark.parametrize("model", [None, "no model"])
@pytest.mark.parametrize("every", [1, 16])
def test_the_inner_loss_of_a_gradient_penalty_does_not_count(tmp_path, model, every):
    trainer = Trainer(tmp_path, model=model)
    # Every 16th is a lazy penalty: the loop looks plain in between.
    losses = [penalised_step(trainer) if n % every == 0 else trainer.step() for n in range(50)]
    run = trainer.read()
    assert column(run, "loss") == pytest.approx(losses, rel=1e-12)
    assert column(run, "micro_batches") == [1] * 50


def test_two_losses_summed_before_one_backward_both_count(tmp_path):
    trainer = Trainer(tmp_path)
    expected = []
    for number in range(40):
        trainer.optimizer.zero_grad()
        if number == 30:  # for the first time
            first, second = trainer.loss(), trainer.loss(0.5)
            (trainer.scaler.scale(first) + trainer.scaler.scale(second)).backward()
            expected.append(first.item() + second.item())
        else:
            expected.append(trainer.backward())
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    assert column(trainer.read(), "loss") == pytest.approx(expected, rel=1e-12)


def test_a_loss_that_is_scaled_but_never_used_does_not_count(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.optimizer.zero_grad()
    trainer.scaler.scale(trainer.loss(100.0))
    loss = trainer.backward()
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    assert column(trainer.read(), "loss") == [loss]


def test_two_optimizers_give_two_rows_a_step_each_with_its_own_loss(tmp_path):
    trainer = Trainer(tmp_path)
    other = nn.Linear(4, 1)
    second = torch.optim.Adam(other.parameters(), lr=0.5)
    for _ in range(3):
        trainer.optimizer.zero_grad()
        first_loss = trainer.backward()
        trainer.scaler.step(trainer.optimizer)
        second.zero_grad()
        loss = other(torch.ones(2, 4)).square().mean()
        trainer.scaler.scale(loss).backward()
        trainer.scaler.step(second)
        trainer.scaler.update()
    run = trainer.read()
    assert column(run, "step") == [0, 0, 1, 1, 2, 2]
    assert column(run, "optimizer") == [0, 1] * 3
    assert column(run, "loss")[-2:] == [first_loss, loss.item()]
    assert column(run, "lr") == [0.1, 0.5] * 3
    assert [event["class"] for event in events(run, "optimizer")] == ["SGD", "Adam"]


def test_of_two_optimizers_only_the_one_that_overflowed_has_skipped(tmp_path):
    trainer = Trainer(tmp_path)
    other = nn.Linear(4, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.5)
    trainer.backward()
    trainer.scaler.scale(other(torch.full((2, 4), math.inf)).mean()).backward()
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.step(second)
    trainer.scaler.update()
    run = trainer.read()
    assert column(run, "skipped") == [False, True]
    assert column(run, "stepped") == [True, False]
    assert column(run, "scale_after") == [512.0, 512.0]
    assert events(run, "overflow")[0]["optimizers"] == [1]


def test_a_loop_without_update_has_a_row_for_each_round(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.optimizer.zero_grad()
    trainer.backward()
    trainer.scaler.step(trainer.optimizer)
    trainer.backward()
    with pytest.raises(RuntimeError, match="already been called"):
        trainer.scaler.step(trainer.optimizer)
    run = trainer.read()
    assert column(run, "update_seen") == [False, False]
    assert [event["where"] for event in events(run, "exception")] == ["step"]
    assert events(run, "exception")[0]["second_step"]


def test_unscaling_after_a_step_without_update_counts_as_a_second_step(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.backward()
    trainer.scaler.step(trainer.optimizer)
    trainer.backward()
    with pytest.raises(RuntimeError, match="after step"):
        trainer.scaler.unscale_(trainer.optimizer)
    assert [event["second_step"] for event in events(trainer.read(), "exception")] == [True]


def test_unscaling_twice_is_no_second_step(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.backward()
    trainer.scaler.unscale_(trainer.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        trainer.scaler.unscale_(trainer.optimizer)
    said = events(trainer.read(), "exception")
    assert [(event["second_step"], event["second_unscale"]) for event in said] == [(False, False)]


def test_unscaling_again_after_another_backward_is_told_apart(tmp_path):
    """The loop left its step and update out, or unscales after each micro-batch."""
    trainer = Trainer(tmp_path)
    trainer.step()
    trainer.backward()
    trainer.scaler.unscale_(trainer.optimizer)
    trainer.backward()
    with pytest.raises(RuntimeError, match="already been called"):
        trainer.scaler.unscale_(trainer.optimizer)
    said = events(trainer.read(), "exception")
    assert [(event["second_step"], event["second_unscale"]) for event in said] == [(False, True)]


def test_a_step_left_open_is_closed_with_the_watch(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.step()
    trainer.backward()
    trainer.scaler.step(trainer.optimizer)
    assert column(trainer.read(), "update_seen") == [True, False]


def test_an_optimizer_stepped_past_the_scaler_is_said(tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(3):
        trainer.optimizer.zero_grad()
        trainer.backward()
        trainer.optimizer.step()
    run = trainer.read()
    assert column(run, "stepped") == [True] * 3
    assert column(run, "found_inf") == [None] * 3
    assert [event["code"] for event in events(run, "misuse")] == ["AMP404"]


def test_a_second_step_past_the_scaler_is_no_missing_update(tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(5):
        trainer.step()
        trainer.optimizer.step()
    run = trainer.read()
    assert False not in column(run, "update_seen")
    assert [event["code"] for event in events(run, "misuse")] == ["AMP404"]


@pytest.mark.parametrize("from_step", [0, 15])
def test_clipping_before_unscale_costs_the_norm_and_is_said(tmp_path, from_step):
    trainer = Trainer(tmp_path)
    for number in range(from_step + 25):
        trainer.optimizer.zero_grad()
        trainer.backward()
        if number >= from_step:
            nn.utils.clip_grad_norm_(trainer.model.parameters(), 0.001)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    unknown = [norm is None for norm in column(run, "grad_norm")]
    assert unknown == [number >= from_step for number in range(from_step + 25)]
    assert column(run, "grad_norm_applied")[-1] == pytest.approx(0.001 / 1024, rel=1e-3)
    assert [event["code"] for event in events(run, "misuse")] == ["AMP401"]


def test_clipping_after_unscale_gives_both_norms(tmp_path):
    trainer = Trainer(tmp_path)
    expected = []
    for _ in range(30):
        trainer.optimizer.zero_grad()
        trainer.backward()
        trainer.scaler.unscale_(trainer.optimizer)
        expected.append(nn.utils.clip_grad_norm_(trainer.model.parameters(), 0.01).item())
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    assert column(run, "grad_norm") == expected
    assert column(run, "grad_norm_applied") == pytest.approx([0.01] * 30, rel=1e-3)
    assert events(run, "misuse") == []


def test_gradients_zeroed_in_place_are_not_taken_for_clipped(tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(40):
        trainer.optimizer.zero_grad(set_to_none=False)
        trainer.backward()
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    assert column(run, "grad_norm").count(None) <= 1  # where the loop first stopped being plain
    assert events(run, "misuse") == []


def test_a_backward_under_autocast_is_said(tmp_path):
    trainer = Trainer(tmp_path)
    with torch.autocast("cpu", torch.float16):
        trainer.backward()
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    assert [event["code"] for event in events(trainer.read(), "misuse")] == ["AMP409"]


def test_forward_passes_for_evaluation_make_no_rows(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.step()
    trainer.model.eval()
    trainer.loss()
    trainer.model.train()
    with torch.no_grad():
        trainer.loss()
    assert trainer.read().steps.num_rows == 1


def test_what_the_user_logs_stands_in_the_step_in_progress(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.watch.log(tokens=10, val_loss=torch.tensor(2.5))
    trainer.step()
    trainer.step()
    trainer.watch.log(tokens=30)
    trainer.step()
    run = trainer.read()
    assert column(run, "tokens") == [10.0, None, 30.0]
    assert column(run, "val_loss") == [2.5, None, None]


def test_scalars_are_logged_in_a_mapping_by_keywords_or_both(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.watch.log({"val/acc": 0.9, "loss": 5.0, "eval loss, 2": torch.tensor(2.5)})
    trainer.step()
    trainer.watch.log({"val/acc": 0.1, "values": 1.0}, **{"val/acc": 0.8}, values=3)
    trainer.step()
    trainer.watch.log(None)
    trainer.watch.log({})
    trainer.step()
    run = trainer.read()
    assert column(run, "val/acc") == [0.9, 0.8, None]  # a keyword is nearer
    assert column(run, "eval loss, 2") == [2.5, None, None]
    assert column(run, "values") == [None, 3.0, None]
    assert column(run, "loss")[0] == 5.0


@pytest.mark.filterwarnings("always")
def test_what_cannot_be_logged_is_warned_of_once_each_and_the_rest_is_logged(tmp_path, recwarn):
    trainer = Trainer(tmp_path)
    wrong = {"a/list": [1, 2], "none": None, "text": "high", "inner": {"acc": 1.0}, 3: 1.0}
    for _ in range(3):
        trainer.watch.log({**wrong, "val/acc": 0.5})
        trainer.watch.log(0.5)
        trainer.watch.log([("val/acc", 0.5)])
        trainer.step()
    trainer.watch.log(loss=1.0)  # late, which is a mistake of its own
    run = trainer.read()
    assert column(run, "val/acc")[:3] == [0.5] * 3
    assert not {"a/list", "none", "text", "inner", "3"} & set(run.steps.column_names)
    said = [str(one.message) for one in recwarn if issubclass(one.category, AmpwatchWarning)]
    begins = [
        "ampwatch: log() was given an int as a name",
        "ampwatch: log({'a/list': ...}) is no number (list)",
        "ampwatch: log(none=...) is no number (NoneType)",
        "ampwatch: log(text=...) is no number (str)",
        "ampwatch: log(inner=...) is no number (dict)",
        "ampwatch: log() was given a float and does not record it: pass a mapping",
        "ampwatch: log(loss=...) came after its step had ended",
    ]
    assert len(said) == len(begins), said
    assert all(one.startswith(begin) for one, begin in zip(said, begins, strict=True)), said


def test_what_is_no_number_is_said_and_keeps_nothing_else_from_the_log(tmp_path):
    class Wordless:
        def __str__(self):
            raise ValueError

    trainer = Trainer(tmp_path, config={"object": Wordless()})
    logged = {"phase": "train", "many": torch.tensor([1, 2]), "spectrum": torch.ones(2) * 1j}
    with pytest.warns(AmpwatchWarning, match="is no number"):
        trainer.watch.log(**logged)
    for _ in range(2):
        trainer.step()
        trainer.watch.log(**logged)  # said once
    trainer.step()
    run = trainer.read()
    assert column(run, "many") == [1.5] * 3
    assert not {"phase", "spectrum"} & set(run.steps.column_names)


def test_a_scale_set_by_hand_and_a_saved_state_are_events(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.step()
    state = trainer.scaler.state_dict()
    trainer.optimizer.zero_grad()
    trainer.backward()
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update(8.0)
    trainer.scaler.load_state_dict(state)
    trainer.step()
    run = trainer.read()
    assert column(run, "scale") == [1024.0, 1024.0, 1024.0]
    assert column(run, "scale_after") == [1024.0, 8.0, 1024.0]
    kinds = run.events["kind"].to_pylist()
    assert [kind for kind in kinds if kind.startswith(("scale-", "state-"))] == [
        "state-saved",
        "scale-set",
        "state-loaded",
    ]


def test_another_optimizer_over_the_same_parameters_replaces_the_first(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.step()
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.2)
    trainer.step()
    run = trainer.read()
    assert column(run, "lr") == [0.1, 0.2]
    assert column(run, "optimizer") == [0, 0]  # its curves go on
    assert len(events(run, "optimizer-replaced")) == 1


def test_parameters_that_take_the_place_of_others_are_those_that_are_measured(tmp_path):
    """As in Gaussian splatting, where points come and go; and as many as before."""
    trainer = Trainer(tmp_path)
    norms, moves = [], []
    for number in range(6):
        if number == 3:
            weight = nn.Parameter(torch.randn(8, 4))
            trainer.optimizer.param_groups[0]["params"][0] = trainer.model[0].weight = weight
        before = [p.detach().clone() for p in trainer.model.parameters()]
        trainer.step()
        norms.append(total_norm(trainer.model))
        pairs = zip(trainer.model.parameters(), before, strict=True)
        moves.append(torch.stack([(p.detach() - old).norm() for p, old in pairs]).norm().item())
    run = trainer.read()
    assert column(run, "grad_norm") == pytest.approx(norms, rel=1e-5)
    assert column(run, "update_norm") == pytest.approx(moves, rel=1e-4)


def test_a_layer_that_is_added_after_attach_is_warned_of(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.model[2] = nn.Linear(8, 2)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    with pytest.warns(AmpwatchWarning, match="layer 2 was added to the model after attach"):
        trainer.step()
    trainer.step()
    assert column(trainer.read(), "grad_norm")[1] == pytest.approx(total_norm(trainer.model))


def test_losses_count_when_other_layers_are_unfrozen_than_were_at_first(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.watch.close()
    trainer.model[0].requires_grad_(False)
    trainer.watch = ampwatch.attach(trainer.scaler, trainer.model, log_dir=tmp_path, run="s")
    losses = []
    for number in range(12):
        if number == 1:
            for parameter in trainer.model.parameters():
                parameter.requires_grad_(not parameter.requires_grad)
        losses.append(trainer.step())
    assert column(trainer.read(), "loss") == losses


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Calls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[getattr(func, "__name__", "")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Names, Calls])
def test_a_users_mode_does_not_see_our_operations(tmp_path, kind):
    def training(*, watched):
        trainer = Trainer(tmp_path)
        if not watched:
            trainer.watch.close()
        with kind() as mode:
            for _ in range(3):
                trainer.step()
        trainer.watch.close()
        return mode.seen

    assert training(watched=True) == training(watched=False) != Counter()


def test_a_wrapper_that_takes_no_hooks_is_watched_by_its_scaler_and_refused_without(tmp_path):
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):  # as several published ones, without torch's own
            self.inner, self.param_groups = inner, inner.param_groups

        def step(self):
            self.inner.step()

    trainer = Trainer(tmp_path)
    trainer.optimizer = Wrapper(trainer.optimizer)
    for _ in range(3):
        for parameter in trainer.model.parameters():
            parameter.grad = None
        trainer.backward()
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    assert None not in column(trainer.read(), "update_norm")
    with pytest.raises(AttachError, match="the one inside"):
        ampwatch.attach(None, trainer.model, optimizer=trainer.optimizer)


def test_without_an_enabled_scaler_a_step_ends_with_the_optimizer(tmp_path):
    trainer = Trainer(tmp_path, enabled=False)
    losses = [trainer.step() for _ in range(4)]
    run = trainer.read()
    assert column(run, "loss") == losses
    assert column(run, "scale") == [None] * 4
    assert column(run, "skipped") == [False] * 4
    assert column(run, "update_seen") == [None] * 4


def total_norm(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()


@pytest.mark.parametrize("clip_from", [0, 12])
def test_without_a_scaler_norms_stand_before_and_after_clipping(tmp_path, clip_from):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ampwatch.attach(None, model, optimizer=optimizer, log_dir=tmp_path, run="r")
    before, after = [], []
    for number in range(20):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        watch.log(loss=loss)
        limit = 0.01 if number >= clip_from else math.inf
        if number >= clip_from:
            before.append(nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        else:
            before.append(total_norm(model))
        after.append(total_norm(model))
        optimizer.step()
    watch.close()
    run = ampwatch.open_run(watch.run_folder)
    pairs = zip(column(run, "grad_norm"), before, strict=True)
    known = [(got, want) for got, want in pairs if got is not None]
    assert len(known) >= 19  # one is unknown where clipping begins unannounced
    assert all(got == want for got, want in known)
    assert column(run, "grad_norm_applied") == after
    assert None not in column(run, "loss")


def test_a_step_that_never_ends_is_said_and_costs_no_more_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MOST_FORWARDS", 8)
    trainer = Trainer(tmp_path, enabled=False)
    for _ in range(7):
        trainer.loss().backward()
    with pytest.warns(AmpwatchWarning, match="no optimizer step was seen"):
        trainer.loss().backward()
    kept = len(trainer.watch.loop.current.begin().pack.values)
    for _ in range(20):
        trainer.loss().backward()
    assert len(trainer.watch.loop.current.begin().pack.values) == kept
    assert not trainer.model[0]._forward_hooks
    trainer.step()
    trainer.step()
    assert column(trainer.read(), "step") == [0, 1]


def test_a_compiled_optimizer_is_left_as_it_is(tmp_path):
    """No graph more, and nothing of ours in it: its steps are not seen."""

    def graphs(*, watched):
        torch._dynamo.reset()
        trainer = Trainer(tmp_path, enabled=False)
        if not watched:
            trainer.watch.close()
        count = CompileCounter()
        step = torch.compile(trainer.optimizer.step, backend=count)
        for _ in range(3):
            trainer.loss().backward()
            step()
        trainer.watch.close()
        return count.frame_count, count.op_count

    assert graphs(watched=True) == graphs(watched=False) != (0, 0)


def test_an_optimizer_that_steps_another_makes_one_step(tmp_path):
    class Around(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})
            self.inner = torch.optim.SGD(self.param_groups, lr=0.1)

        def step(self):
            self.inner.step()
            if self.inner.param_groups[0]["lr"] == 0.0:
                raise ArithmeticError

    model = nn.Linear(4, 2)
    optimizer = Around(model.parameters())
    watch = ampwatch.attach(None, model, optimizer=optimizer, log_dir=tmp_path, run="r")

    def step(stepping):
        model(torch.ones(3, 4)).square().mean().backward()
        stepping.step()
        stepping.zero_grad()

    step(optimizer)
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ArithmeticError):
        step(optimizer)
    optimizer.param_groups[0]["lr"] = 0.1
    step(optimizer.inner)  # nobody steps around it now
    watch.close()
    run = ampwatch.open_run(watch.run_folder)
    assert column(run, "step") == [0, 1, 1]  # what failed never ended its step
    assert column(run, "optimizer") == [0, 0, 1]


def test_steps_go_on_from_the_start_step(tmp_path):
    trainer = Trainer(tmp_path, start_step=500)
    trainer.step()
    trainer.step()
    assert column(trainer.read(), "step") == [500, 501]


def test_layers_are_written_on_sampled_steps_and_around_an_overflow(tmp_path):
    trainer = Trainer(tmp_path, layer_every=40)
    for number in range(200):
        trainer.step(math.inf if number == 150 else 1.0)
    run = trainer.read()
    steps = set(run.layers["step"].to_pylist())
    sampled = {*range(10), *range(0, 200, 40)}
    ring = set(range(150 - 63, 151))
    armed = set(range(151, 171))
    assert steps == sampled | ring | armed


def test_a_forward_pass_that_fails_where_nobody_looks_is_waited_for_longer_each_time(tmp_path):
    """Every 30th step: the twenty steps after one, as after any skip, never meet the next."""
    trainer = Trainer(tmp_path, layer_every=1000)
    for number in range(200):
        trainer.step(math.nan if number % 30 == 29 else 1.0)
    told = [e for e in trainer.read().events.to_pylist() if e["kind"] == "overflow"]
    seen = {e["step"] for e in told if json.loads(e["detail"]).get("direction") == "loss"}
    assert seen == {89, 119, 149, 179}


def test_gradient_norms_by_layer_are_those_of_its_parameters(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.optimizer.zero_grad()
    trainer.backward()
    trainer.scaler.unscale_(trainer.optimizer)
    expected = {
        name: math.sqrt(sum(p.grad.square().sum().item() for p in layer.parameters()))
        for name, layer in trainer.model.named_children()
        if name != "1"
    }
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    rows = trainer.read().layers.to_pylist()
    norms = {row["layer"]: row["grad_norm"] for row in rows if row["grad_norm"] is not None}
    assert norms == pytest.approx(expected, rel=1e-6)
    assert all(row["grad_finite"] for row in rows if row["grad_norm"] is not None)


def test_rates_and_their_bases_follow_each_group(tmp_path):
    trainer = Trainer(tmp_path)
    first, _, last = trainer.model
    trainer.optimizer = torch.optim.SGD(
        [{"params": first.parameters()}, {"params": last.parameters(), "lr": 0.02}], lr=0.1
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(trainer.optimizer, [0.4, 0.08], total_steps=20)
    expected = []
    for _ in range(6):
        expected.append([group["lr"] for group in trainer.optimizer.param_groups])
        trainer.step()
        schedule.step()
    run = trainer.read()
    assert column(run, "lrs") == expected
    assert column(run, "lr_bases") == [[0.4, 0.08]] * 6


def test_gradient_maxima_by_layer_stand_on_sampled_steps(tmp_path):
    trainer = Trainer(tmp_path, layer_every=50)
    trainer.optimizer.zero_grad()
    trainer.backward()
    trainer.scaler.unscale_(trainer.optimizer)
    expected = {
        name: max(p.grad.abs().max().item() for p in layer.parameters())
        for name, layer in trainer.model.named_children()
        if name != "1"
    }
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    rows = trainer.read().layers.to_pylist()
    amax = {row["layer"]: row["grad_amax"] for row in rows if row["grad_amax"] is not None}
    assert amax == pytest.approx(expected, rel=1e-6)


def test_gradients_made_by_hand_leave_the_loss_unknown(tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(30):
        loss = trainer.scaler.scale(trainer.loss())
        gradients = torch.autograd.grad(loss, list(trainer.model.parameters()))
        for parameter, gradient in zip(trainer.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    assert column(run, "loss") == [None] * 30
    assert None not in column(run, "grad_norm_applied")


def test_layers_know_the_group_of_their_parameters(tmp_path):
    trainer = Trainer(tmp_path)
    first, _, last = trainer.model
    trainer.optimizer = torch.optim.SGD(
        [{"params": last.parameters()}, {"params": first.parameters()}], lr=0.1
    )
    trainer.step()
    rows = trainer.read().layers.to_pylist()
    assert {row["layer"]: row["param_group"] for row in rows} == {
        "(root)": None,
        "0": 1,
        "1": None,
        "2": 0,
    }


def test_a_scaler_made_anew_in_the_loop_is_watched_in_place_of_the_old(tmp_path):
    trainer = Trainer(tmp_path)
    attached = trainer.scaler
    for epoch in range(3):
        if epoch:
            trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**epoch)
        for _ in range(4):
            trainer.step()
    run = trainer.read()
    assert run.steps["update_seen"].to_pylist() == [True] * 12
    assert column(run, "scale") == [1024.0] * 4 + [2.0] * 4 + [4.0] * 4
    assert [event["init_scale"] for event in events(run, "scaler-replaced")] == [2.0, 4.0]
    assert events(run, "misuse") == []
    assert type(attached) is type(trainer.scaler) is torch.amp.GradScaler


def test_how_often_a_new_scaler_skipped_before_it_was_seen_stands_in_its_event_and_row(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.step()
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, backoff_factor=0.25)
    skipped, before = 0, None
    while before != trainer.scaler.get_scale():
        before = trainer.scaler.get_scale()
        trainer.step(1e6)
        skipped += trainer.scaler.get_scale() < before
    run = trainer.read()
    (event,) = events(run, "scaler-replaced")
    assert (event["init_scale"], event["backoff_factor"]) == (2.0**120, 0.25)
    assert skipped > 1
    assert column(run, "scale")[-1] == 2.0**120 * 0.25**skipped


def test_scalers_that_the_loop_makes_and_drops_are_not_kept(tmp_path):
    trainer = Trainer(tmp_path)
    made = []
    for _ in range(10):
        trainer.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        made.append(weakref.ref(trainer.scaler))
        trainer.step()
    gc.collect()
    assert sum(one() is not None for one in made) == 1
    assert len(events(trainer.read(), "scaler-replaced")) == 10


def test_a_rate_that_leaps_is_an_event_of_its_group_and_a_schedules_ticks_are_not(tmp_path):
    trainer = Trainer(tmp_path)
    first, _, last = trainer.model
    groups = [{"params": first.parameters()}, {"params": last.parameters(), "lr": 0.02}]
    trainer.optimizer = torch.optim.SGD(groups, lr=0.1)
    for number in range(12):
        for group in trainer.optimizer.param_groups:
            group["lr"] *= 1.01 if number < 11 else 0.1
        if number == 7:
            trainer.optimizer.param_groups[1]["lr"] = 0.06
        trainer.step()
    run = trainer.read()
    (leap,) = events(run, "lr-changed")
    assert (leap["optimizer"], leap["group"], leap["to"]) == (0, 1, 0.06)
    assert leap["from"] == pytest.approx(0.02 * 1.01**7)
    (step,) = (e["step"] for e in run.events.to_pylist() if e["kind"] == "lr-changed")
    assert step == 7


def batches_of(trainer, sizes):
    """A step with each of these batches, or with several micro-batches."""
    for size in sizes:
        trainer.optimizer.zero_grad()
        for micro in size if isinstance(size, tuple) else (size,):
            loss = trainer.model(torch.ones(micro, 4)).square().mean()
            trainer.scaler.scale(loss).backward()
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    kinds = run.events.to_pylist()
    steps = [event["step"] for event in kinds if event["kind"] == "batch-size-changed"]
    told = events(run, "batch-size-changed")
    return [(step, one["from"], one["to"]) for step, one in zip(steps, told, strict=True)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([8] * 15 + [(8, 8)] * 15, [(15, 8, 16)]),
        ([8] * 15 + [32] * 9, []),  # not long enough to be sure
        (([8] * 12 + [3]) * 3, []),  # an epoch's last batch
        ([3] + [8] * 30, []),
        ([5 + n % 7 for n in range(40)], []),  # never any usual size
        ([8] * 15 + [16] * 15 + [8] * 15, [(15, 8, 16), (30, 16, 8)]),
    ],
)
def test_a_batch_size_that_has_changed_for_good_is_an_event_of_its_first_step(
    tmp_path, sizes, expected
):
    assert batches_of(Trainer(tmp_path), sizes) == expected


def test_a_scaler_that_nobody_uses_is_none_until_somebody_does(tmp_path):
    trainer = Trainer(tmp_path)
    norms = []

    def plain_step():
        trainer.optimizer.zero_grad()
        trainer.loss().backward()
        norms.append(nn.utils.clip_grad_norm_(trainer.model.parameters(), 0.1).item())
        trainer.optimizer.step()

    with pytest.warns(AmpwatchWarning, match="without one, until it is used"):
        plain_step()
    plain_step()
    trainer.step()
    run = trainer.read()
    assert column(run, "scale") == [None, None, 1024.0]
    assert column(run, "stepped") == [True] * 3
    assert column(run, "grad_norm")[:2] == [None, norms[1]]  # no one looked before the first
    assert not events(run, "misuse")
