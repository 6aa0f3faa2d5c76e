"""A rank's own gradients, seen before they are accumulated: what is known, what stays unknown."""

from __future__ import annotations

import copy
import gc
import io
import json
import math
import weakref

import pytest
import torch
from layers_harness import Strict
from torch import nn
from torch.utils.checkpoint import checkpoint

import ampwatch
from ampwatch.probe.layer_observer import LayerObserver
from ampwatch.probe.models import survey
from ampwatch.probe.tensor_values import Pack


def model_of(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *middle, nn.Linear(4, 2))


def observed(model):
    """An observer that knows which layer is the first, armed for the next step."""
    observer = LayerObserver(survey(model), Strict(), several_ranks=True)
    observer.arm()
    model(torch.ones(2, 4)).sum().backward()
    pack = Pack()
    observer.collect().put(pack)
    observer.local.collect(pack)
    observer.collect_first(pack)
    return observer


def local(observer):
    """Finiteness by parameter's position, and at the first layer."""
    pack = Pack()
    captured = observer.local.collect(pack)
    return None if captured is None else (captured.finite(pack), captured.first_finite(pack))


def test_every_parameters_own_gradient_is_judged_while_armed():
    model = model_of(nn.ReLU())
    observer = observed(model)
    model(torch.ones(2, 4)).sum().backward()
    assert local(observer) == (dict.fromkeys(range(4), True), True)


def test_a_gradient_that_a_later_pass_makes_finite_again_was_not():
    model = model_of(nn.ReLU())
    observer = observed(model)
    model(torch.full((2, 4), math.inf)).sum().backward()
    model(torch.ones(2, 4)).sum().backward()
    assert False in local(observer)[0].values()


def test_the_sum_with_another_ranks_gradients_is_not_what_is_seen():
    model = model_of()
    observer = observed(model)
    loss = model(torch.ones(2, 4)).sum()

    def join(parameter):
        parameter.grad.fill_(math.nan)

    for parameter in model.parameters():  # as a reducer does: after the accumulation
        parameter.register_post_accumulate_grad_hook(join)
    loss.backward()
    assert all(parameter.grad.isnan().all() for parameter in model.parameters())
    assert local(observer) == (dict.fromkeys(range(4), True), True)


def test_on_steps_that_are_not_armed_only_the_first_layer_tells():
    model = model_of(nn.ReLU(inplace=True))
    observer = observed(model)
    observer.disarm()
    model(torch.ones(2, 4)).sum().backward()
    assert local(observer) == ({}, True)
    (model(torch.ones(2, 4)).sum() * math.nan).backward()
    assert local(observer) == ({}, False)


def test_a_checkpointed_first_layer_tells_of_its_second_run():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.last(checkpoint(self.first, x, use_reentrant=False))

    observer = observed(model := Checkpointed())
    (model(torch.ones(2, 4)).sum() * math.inf).backward()
    _, first = local(observer)
    assert first is False


def test_frozen_parameters_and_sparse_gradients_stay_unknown():
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].requires_grad_(False)
    observer = LayerObserver(survey(model), Strict(), several_ranks=True)
    observer.arm()
    model(torch.tensor([1, 2])).sum().backward()
    assert local(observer) == ({3: True, 4: True}, None)


def test_parameters_inside_a_compiled_graph_stay_unknown_and_are_not_hooked():
    inner = model_of()
    model = torch.compile(inner, backend="aot_eager")
    observer = LayerObserver(survey(model), Strict(), several_ranks=True)
    observer.arm()
    model(torch.ones(2, 4)).sum().backward()
    assert local(observer) is None
    assert not any(parameter._backward_hooks for parameter in inner.parameters())


def test_a_single_rank_is_not_hooked():
    model = model_of()
    observer = LayerObserver(survey(model), Strict())
    observer.arm()
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    assert observer.local is None


def test_copies_and_files_of_an_armed_model_carry_nothing_of_ours():
    model = model_of()
    observer = observed(model)
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"ampwatch" not in file.getvalue()
    for other in (twin, torch.load(io.BytesIO(file.getvalue()), weights_only=False)):
        other(torch.ones(2, 4)).sum().backward()
        assert not any(parameter._backward_hooks for parameter in other.parameters())
    assert local(observer) is None


def test_a_tensor_that_the_user_keeps_does_not_keep_the_observer():
    kept = []
    model = model_of()
    observer = observed(model)
    model[0].register_forward_hook(lambda _m, _a, output: kept.append(output))
    model(torch.ones(2, 4)).sum().backward()
    local(observer)
    observer.release()
    gone = weakref.ref(observer)
    del observer
    gc.collect()
    assert kept
    assert gone() is None


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_launched_rank_writes_what_its_own_gradients_were(tmp_path, monkeypatch, accumulate):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    model = model_of(nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with ampwatch.attach(scaler, model, log_dir=tmp_path, endpoint="off") as watch:
        for step in range(4):
            for part in range(accumulate):
                spoilt = math.inf if step == 2 and part == 0 else 1.0
                scaler.scale(model(torch.ones(2, 4)).sum() * spoilt).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    rows = ampwatch.open_run(watch.run_folder).layers.to_pylist()
    known = {(r["step"], r["layer"]): r["grad_finite_local"] for r in rows if r["grad_norm"]}
    assert known == {(s, layer): s != 2 for s in range(4) for layer in ("0", "2")}


def test_gradients_left_over_from_an_overflow_do_not_pass_for_the_work_of_other_ranks(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    model = model_of(nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with ampwatch.attach(scaler, model, log_dir=tmp_path, endpoint="off") as watch:
        for step in range(6):  # and never a zero_grad
            scaler.scale(model(torch.ones(2, 4)).sum() * (math.inf if step == 2 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
    events = ampwatch.open_run(watch.run_folder).events.to_pylist()
    own = {e["step"]: json.loads(e["detail"]).get("own_finite") for e in events
           if e["kind"] == "overflow"}  # fmt: skip
    assert own == {2: False, 3: None, 4: None, 5: None}
