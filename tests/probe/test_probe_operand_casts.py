"""What a watched training records of its operands, against casts of what its hooks really saw."""

from __future__ import annotations

import collections
import re
import sys

import pytest
import torch
from narrow_models import Language, float8, mxfp8, needs_torchao
from test_probe_casts import E4M3, E5M2, EXACT
from test_probe_casts import float8 as cast_to_float8
from test_probe_casts import mx as cast_to_mx
from test_probe_casts import nvfp4 as cast_to_nvfp4
from torch import nn

import ampwatch
from ampwatch.rows import WHAT_IF_FORMATS

LAYER = "blocks.1.up"


class Seen:
    """The operands of one layer, cloned at each step."""

    def __init__(self, module: nn.Module) -> None:
        self.inputs, self.weights, self.grads = [], [], []
        module.register_forward_hook(self.forward)

    def forward(self, module, args, output):
        self.inputs.append(args[0].detach().clone())
        weight = module.weight
        self.weights.append(getattr(weight, "_data", weight).detach().clone())
        output.register_hook(lambda grad: self.grads.append(grad.detach().clone()))


def batch(step: int):
    return torch.randint(64, (4, 9), generator=torch.Generator().manual_seed(step))


def train(folder, model, *, steps=3, autocast=None, scale=1.0, every=1):
    """A few steps; what the layer saw, and the rows of it."""
    seen = Seen(model.get_submodule(LAYER))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ampwatch.attach(
        None,
        model,
        optimizer=optimizer,
        run="run",
        log_dir=folder,
        endpoint="off",
        layer_every=every,
    ):
        for step in range(steps):
            tokens = batch(step)
            with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
                logits = model(tokens[:, :-1]).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            (scale * loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = ampwatch.open_run(folder / "run").layers.to_pylist()
    return seen, [row for row in rows if row["layer"] == LAYER], rows


def what_if(tensor):
    return {
        "float8_e4m3fn/tensorwise": cast_to_float8(tensor, E4M3, "tensorwise", rounded=False)[1],
        "float8_e5m2/tensorwise": cast_to_float8(tensor, E5M2, "tensorwise", rounded=False)[1],
        "mxfp8_e4m3/block32": cast_to_mx(tensor.contiguous(), E4M3, "rceil")[1],
        "nvfp4/block16": cast_to_nvfp4(tensor.contiguous().flatten(0, -2))[1],
    }


def check_what_if(row, role, tensor):
    told = dict(zip(WHAT_IF_FORMATS, row[f"{role}_what_if"], strict=True))
    assert told == pytest.approx(what_if(tensor), abs=EXACT)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_shares_in_use_are_those_of_the_casts_that_were_made(tmp_path, recipe):
    needs_torchao()
    model = float8(Language().bfloat16(), recipe)
    with torch.no_grad():  # channels that flush others: a healthy start flushes nothing
        model.get_submodule("blocks.1.norm").weight[3] = 3e5
    seen, rows, _ = train(tmp_path, model)
    granularity = recipe.split("_")[0]
    gradient = E5M2 if recipe == "tensorwise" else E4M3
    rounded = recipe != "tensorwise"
    for at, row in enumerate(rows):
        for role, tensor, name in (
            ("input", seen.inputs[at], E4M3),
            ("weight", seen.weights[at], E4M3),
            ("grad", seen.grads[at], gradient),
        ):
            told = row[f"{role}_saturated_share"], row[f"{role}_flushed_share"]
            wanted = cast_to_float8(tensor, name, granularity, rounded=rounded)
            assert told == pytest.approx(wanted, abs=EXACT), (role, at)
            check_what_if(row, role, tensor)
    assert rows[0]["input_flushed_share"] > 0.3


def test_shares_of_mx_are_told_though_the_layer_is_a_plain_one(tmp_path):
    needs_torchao()
    model = mxfp8(Language().bfloat16(), chosen=lambda _module, name: "blocks" in name)
    seen, rows, every = train(tmp_path, model)
    for role, tensors in (("input", seen.inputs), ("weight", seen.weights), ("grad", seen.grads)):
        wanted = cast_to_mx(tensors[0].contiguous(), E4M3, "rceil")
        told = rows[0][f"{role}_saturated_share"], rows[0][f"{role}_flushed_share"]
        assert told == pytest.approx(wanted, abs=EXACT)
    head = next(row for row in every if row["layer"] == "head")
    assert head["input_flushed_share"] is None  # not cast
    assert len(head["input_what_if"]) == len(WHAT_IF_FORMATS)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_a_run_in_half_precision_is_told_what_casts_would_do(tmp_path, autocast):
    needs_torchao()
    model = Language() if autocast else Language().bfloat16()
    seen, rows, _ = train(tmp_path, model, autocast=autocast, scale=256.0)
    for role, tensors in (("input", seen.inputs), ("weight", seen.weights), ("grad", seen.grads)):
        assert rows[1][f"{role}_flushed_share"] is None
        check_what_if(rows[1], role, tensors[1].float())


def test_what_casts_would_do_is_told_of_every_nth_step_and_what_they_do_of_every_sample(tmp_path):
    needs_torchao()
    _, rows, _ = train(tmp_path / "bf16", Language().bfloat16(), every=2)
    assert [row["input_what_if"] is None for row in rows] == [False, True, False]
    model = float8(Language().bfloat16())
    _, rows, _ = train(tmp_path / "fp8", model, every=2)
    assert [row["input_what_if"] is None for row in rows] == [False, True, False]
    assert None not in [row["input_flushed_share"] for row in rows]


def test_nothing_of_ours_runs_for_a_cast_in_a_step_that_is_not_sampled(tmp_path):
    needs_torchao()
    model = float8(Language().bfloat16())
    calls = collections.Counter()
    number = 0

    def called(frame, event, _arg):
        if event == "call" and OURS.search(frame.f_code.co_filename):
            calls[number] += 1

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampled = 10  # the first steps are
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=tmp_path, endpoint="off"
    ):
        sys.setprofile(called)  # of this thread, which trains
        try:
            for number in range(sampled + 10):
                model(batch(number)).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            sys.setprofile(None)
    assert sorted(calls) == [*range(sampled)]
    assert min(calls.values()) > 100


OURS = re.compile(r"ampwatch/probe/formats/casts\.py$")


def test_a_run_in_float32_is_not_looked_into(tmp_path):
    _, rows, _ = train(tmp_path, Language())
    assert {row["input_what_if"] for row in rows} == {None}
