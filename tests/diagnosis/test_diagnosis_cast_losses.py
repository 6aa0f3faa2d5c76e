"""AMP701 to AMP703 and AMP706: by hand, with look-alikes, and on real trainings in fp8."""

from __future__ import annotations

import math

import pytest
import torch
from hand_built import HandBuiltRun, event_table, layer_table, step_table
from narrow_models import Language, float8, mxfp8, needs_torchao
from torch import nn

import ampwatch
from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.engine import Engine

FP8, MX, FP4 = "float8_e4m3fn/tensorwise/dynamic", "mxfp8_e4m3/block32", "nvfp4/block16"


def sampled(form=FP8, **columns):
    """A layer `blocks.1.up` in a bf16 run, sampled every ten steps; columns by sample."""
    count = len(next(iter(columns.values())))
    healthy = {
        f"{role}_{what}_share": 0.0
        for role in ("input", "weight", "grad")
        for what in ("saturated", "flushed")
    }
    rows = [
        {"step": 10 * at, "layer": "blocks.1.up", "order": 1, "kind": "Linear", "flops": 1e6,
         "output_dtype": "bfloat16", "input_format": form, "weight_format": form,
         "grad_format": form, **healthy, **{name: values[at] for name, values in columns.items()}}
        for at in range(count)
    ]  # fmt: skip
    rows += [
        {"step": 0, "layer": "blocks.0.up", "order": 0, "kind": "Linear", "flops": 1e6,
         "output_dtype": "bfloat16"},
        {"step": 0, "layer": "head", "order": 2, "kind": "Linear", "flops": 1e6,
         "output_dtype": "bfloat16"},
    ]  # fmt: skip
    rows.sort(key=lambda row: row["step"])
    return HandBuiltRun(step_table(loss=[1.0] * (10 * count)), layers=layer_table(rows))


def found(run):
    return {f.code: f for f in diagnose(run).findings}


def codes(run):
    return {code: f.severity.value for code, f in found(run).items() if code.startswith("AMP7")}


def test_a_format_that_cuts_values_off_is_told_with_role_and_share():
    one = found(sampled(grad_saturated_share=[0.02] * 6))["AMP701"]
    assert (one.layer, one.severity.value) == ("blocks.1.up", "warning")
    assert "2 % of the output gradient" in one.summary
    assert FP8 in one.summary


def test_one_batch_that_is_cut_off_or_a_trouble_that_is_over_is_no_finding():
    assert codes(sampled(input_saturated_share=[0.0, 0.0, 0.3, 0.0, 0.0, 0.0])) == {}
    assert codes(sampled(input_saturated_share=[0.02] * 5 + [0.0])) == {}
    assert codes(sampled(input_saturated_share=[0.02] * 2)) == {}


def test_a_trouble_that_begins_late_in_a_long_record_is_seen():
    run = sampled(input_saturated_share=[0.0] * 60 + [0.02] * 8)
    assert found(run)["AMP701"].first_step == 600


def test_mx_scales_rounded_down_cut_a_little_off_in_health():
    assert codes(sampled(MX, input_saturated_share=[0.006] * 6)) == {}
    assert codes(sampled(MX, input_saturated_share=[0.05] * 6)) == {"AMP701": "warning"}


def test_values_that_become_zero_are_told_with_what_helps():
    one = found(sampled(input_flushed_share=[0.5] * 6))["AMP702"]
    assert "50 % of the input" in one.summary
    assert "Leave blocks.1.up in bf16" in one.action


def test_fp4_flushes_a_tenth_of_a_normal_tensor_in_health():
    assert codes(sampled(FP4, input_flushed_share=[0.1] * 6)) == {}
    assert codes(sampled(FP4, input_flushed_share=[0.3] * 6)) == {}
    assert codes(sampled(FP4, input_flushed_share=[0.6] * 6)) == {"AMP702": "warning"}


def test_the_worst_of_several_layers_is_named_and_the_others_with_it():
    run = sampled(input_flushed_share=[0.5] * 6, weight_flushed_share=[0.9] * 6)
    assert "of the weight of blocks.1.up" in found(run)["AMP702"].summary


def test_a_delayed_scale_that_the_newest_maximum_does_not_fit_is_stale():
    delayed = "float8_e4m3fn/tensorwise/delayed"
    assert codes(sampled(delayed, amax_staleness=[3.0] * 6)) == {"AMP703": "warning"}
    assert codes(sampled(delayed, amax_staleness=[1.2, 0.9, 1.5, 1.0, 0.8, 1.1])) == {}
    assert codes(sampled(delayed, amax_staleness=[0.9, 0.9, 9.0, 0.9, 0.9, 0.9])) == {}


def test_a_maximum_that_is_not_finite_freezes_the_scale():
    delayed = "float8_e4m3fn/tensorwise/delayed"
    cut = [0.0, 0.0, *[0.4] * 4]
    run = sampled(delayed, amax_staleness=[0.9, *[math.inf] * 5], grad_saturated_share=cut)
    assert codes(run) == {"AMP701": "warning", "AMP706": "error"}
    assert found(run)["AMP701"].because_of == "AMP706"
    assert codes(sampled(delayed, amax_staleness=[0.9, math.inf, 0.9, 0.9, 0.9, 0.9])) == {}


DELAYED = "float8_e4m3fn/tensorwise/delayed"


def resumed_at(step, scales):
    """A run that goes on from a checkpoint, with the input's and weight's scale of each sample."""
    run = sampled(DELAYED, amax_staleness=[1.0] * len(scales),
                  input_scale=[one for one, _ in scales],
                  weight_scale=[other for _, other in scales])  # fmt: skip
    started = (step, "started", {"start_step": step, "resume": step > 0})
    return HandBuiltRun(run.steps, layers=run.layers, events=event_table([started]))


def test_scales_that_begin_anew_at_a_resume_are_told_with_what_they_are_later():
    one = found(resumed_at(20, [(60.0, 900.0)] * 2 + [(1.0, 1.0)] + [(58.0, 910.0)] * 5))["AMP703"]
    assert (one.first_step, one.last_step, one.severity.value) == (20, 20, "warning")
    told = [(e.signal, e.value, e.against) for e in one.evidence]
    assert told == [("input_scale", 1.0, 58.0), ("weight_scale", 1.0, 910.0)]


def test_scales_of_one_at_the_start_of_a_training_or_later_or_for_good_are_no_finding():
    fresh = [(1.0, 1.0)] + [(58.0, 910.0)] * 7
    assert codes(resumed_at(0, fresh)) == {}
    kept = [(60.0, 900.0)] * 2 + [(58.0, 910.0)] * 6
    assert codes(resumed_at(20, kept)) == {}
    by_chance = [(60.0, 900.0)] * 2 + [(1.0, 910.0)] + [(58.0, 910.0)] * 5
    assert codes(resumed_at(20, by_chance)) == {}
    assert codes(resumed_at(20, [(1.0, 1.0)] * 8)) == {}  # a library that does not tell them


def of_two_ranks(first, second):
    """Input scales of two ranks at each sample."""
    rows = []
    for rank, scales in enumerate((first, second)):
        table = sampled(DELAYED, amax_staleness=[1.0] * len(scales), input_scale=scales).layers
        rows += [{**row, "rank": rank} for row in table.to_pylist()]
    rows.sort(key=lambda row: (row["step"], row["rank"]))
    count = 10 * len(first)
    each = [step for step in range(count) for _ in range(2)]
    steps = step_table(step=each, rank=[0, 1] * count, loss=[1.0 + 0.1 * n for n in each])
    return HandBuiltRun(steps, layers=layer_table(rows))


def test_ranks_with_different_scales_are_information_and_a_rounded_last_place_is_not():
    one = found(of_two_ranks([60.0] * 6, [12.0] * 6))["AMP703"]
    assert (one.severity.value, one.layer) == ("info", "blocks.1.up")
    assert "5 times apart" in one.cause
    assert codes(of_two_ranks([60.0] * 6, [60.01] * 6)) == {}
    assert codes(of_two_ranks([60.0] * 6, [60.0] * 5 + [12.0])) == {}


@pytest.mark.parametrize("rows", [1, 7])
def test_what_is_seen_of_scales_does_not_depend_on_how_rows_were_batched(rows):
    runs = [
        resumed_at(20, [(60.0, 900.0)] * 2 + [(1.0, 1.0)] + [(58.0, 910.0)] * 15),
        of_two_ranks([60.0] * 6, [12.0] * 6),
    ]
    for run in runs:
        assert "AMP703" in found(run)
        assert Engine(block_rows=rows).feed(run).diagnosis().findings == diagnose(run).findings


# --- real trainings -------------------------------------------------------------------------------


def trained(folder, model, steps=8):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off"
    ):
        for step in range(steps):
            tokens = torch.randint(64, (4, 9), generator=torch.Generator().manual_seed(step))
            logits = model(tokens[:, :-1]).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return ampwatch.open_run(folder / "run")


def in_blocks(_module, name):
    return "blocks" in name


def outlying(model):
    """One channel that outweighs all others by far enough to flush them."""
    with torch.no_grad():
        model.get_submodule("blocks.0.norm").weight[3] = 1e6
    return model


def test_an_outlying_channel_flushes_the_others_and_blocks_would_not(tmp_path):
    needs_torchao()
    run = trained(tmp_path, outlying(float8(Language().bfloat16(), chosen=in_blocks)))
    one = found(run)["AMP702"]
    assert one.layer == "blocks.0.up"
    assert "Leave blocks.0.up" in one.action


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "mx"])
def test_a_healthy_run_below_sixteen_bits_has_no_finding(tmp_path, recipe):
    needs_torchao()
    model = Language(width=64).bfloat16()
    if recipe == "mx":
        model = mxfp8(model, chosen=in_blocks)
    else:
        model = float8(model, recipe, chosen=in_blocks)
    assert found(trained(tmp_path, model)) == {}
