"""AMP704, AMP705 and what AMP405 and AMP502 know of fp8, by hand and on real trainings."""

from __future__ import annotations

import pytest
import torch
from hand_built import HandBuiltRun, event_table, layer_table, scaled_run, step_table
from narrow_models import Language, float8, mxfp8, needs_torchao

import ampwatch
from ampwatch.diagnosis import diagnose

FP8 = "float8_e4m3fn/tensorwise/dynamic"
STEPS = range(0, 30, 3)


def layered(*layers, config=None, conversions=(), scaler=False):
    """A run whose layers are (name, format or None, more columns), in forward order."""
    rows = [
        {"step": step, "layer": name, "order": order, "kind": "Linear", "flops": 1e6,
         "output_dtype": "bfloat16", "weight_shape": [64, 64], "input_format": cast,
         "weight_format": cast, "grad_format": cast, **(more[0] if more else {})}
        for step in STEPS
        for order, (name, cast, *more) in enumerate(layers)
    ]  # fmt: skip
    detail = {"config": dict(config or {}), "conversions": list(conversions)}
    tables = {"layers": layer_table(rows), "events": event_table([(0, "started", detail)])}
    if scaler:
        return scaled_run([False] * 30, **tables)
    return HandBuiltRun(step_table(loss=[1.0] * 30), **tables)


def found(run):
    return {f.code: f for f in diagnose(run).findings}


EMBED = ("embed", None, {"kind": "Embedding", "flops": 0.0})
BLOCKS = tuple((f"blocks.{n}.{part}", FP8) for n in range(3) for part in ("up", "down"))


def test_a_quantised_head_is_named_with_what_leaves_it_out():
    kind = {"kind": "Float8Linear"}
    run = layered(EMBED, *((n, c, kind) for n, c in BLOCKS), ("lm_head", FP8, kind))
    one = found(run)["AMP704"]
    assert (one.layer, one.severity.value) == ("lm_head", "warning")
    assert one.action.startswith("Leave lm_head in bf16")
    assert "convert_to_float8_training" in one.action
    assert "\n" not in one.action


def test_a_head_in_bf16_above_blocks_in_fp8_is_the_usual_recipe():
    assert found(layered(EMBED, *BLOCKS, ("head", None))) == {}


def test_the_last_block_of_an_encoder_without_a_head_is_no_head():
    assert found(layered(EMBED, *BLOCKS)) == {}


def test_the_layers_of_a_plain_network_are_first_and_last():
    run = layered(("0", FP8), ("2", FP8), ("4", FP8))
    one = found(run)["AMP704"]
    assert one.layer == "4"
    assert "0 is the first layer" in one.cause
    assert "2 is" not in one.cause


def test_a_first_layer_in_bf16_is_no_finding():
    assert found(layered(("patches", None), *BLOCKS, ("norm", None))) == {}


def test_a_router_is_told_by_its_name_and_its_few_outputs():
    router = ("blocks.1.moe.gate", FP8, {"weight_shape": [8, 64]})
    wide = ("blocks.1.mlp.gate", FP8, {"weight_shape": [128, 64]})
    assert found(layered(EMBED, router, *BLOCKS, ("head", None)))["AMP704"].layer == router[0]
    assert found(layered(EMBED, wide, *BLOCKS, ("head", None))) == {}


def test_a_gate_as_wide_as_its_input_is_a_router_if_it_stands_beside_experts():
    gate = ("blocks.1.moe.gate", FP8, {"weight_shape": [64, 64]})
    experts = tuple((f"blocks.1.moe.experts.{n}.up", FP8) for n in range(2))
    others = (*BLOCKS, ("head", None))
    assert found(layered(EMBED, gate, *experts, *others))["AMP704"].layer == gate[0]
    assert found(layered(EMBED, gate, *others)) == {}


def test_the_sides_of_a_librarys_own_layer_are_known_though_its_work_is_not():
    router = ("blocks.1.moe.gate", FP8, {"weight_shape": [8, 64], "flops": 0.0})
    run = layered(EMBED, router, *BLOCKS, ("head", None))
    assert found(run)["AMP704"].layer == router[0]


def test_the_end_of_the_last_block_is_no_head_though_no_other_block_has_such_a_layer():
    """Attention and a feed-forward part in turn, and the embedding's weight for a head."""
    blocks = (("layers.0.qkv", FP8), ("layers.0.out", FP8), ("layers.1.up", FP8),
              ("layers.1.down", FP8))  # fmt: skip
    assert found(layered(EMBED, *blocks)) == {}


def test_a_head_in_the_last_of_numbered_parts_gives_what_no_other_layer_takes():
    head = ("parts.1.project", FP8, {"weight_shape": [10, 64]})
    run = layered(EMBED, ("parts.0.up", FP8), ("parts.0.down", FP8), head)
    assert found(run)["AMP704"].layer == head[0]


def test_a_head_in_the_attention_of_a_block_is_no_head_of_the_model():
    inner = tuple((f"blocks.{n}.attend.heads.0", FP8) for n in range(2))
    assert found(layered(EMBED, *inner, *BLOCKS, ("head", None))) == {}


def test_a_head_among_several_is_told_by_its_name():
    run = layered(EMBED, *BLOCKS, ("heads.words", FP8), ("heads.next", None))
    assert found(run)["AMP704"].layer == "heads.words"


@pytest.mark.parametrize(
    "config",
    [{"fp8": "True"}, {"fp8": "hybrid"}, {"use-fp8": "1"}, {"mixed_precision": "fp8"},
     {"enable_float8_linear": True}],
)  # fmt: skip
def test_settings_that_ask_for_fp8_and_get_none_are_told(config):
    run = layered(EMBED, *((n, None) for n, _ in BLOCKS), config=config)
    assert found(run)["AMP705"].severity.value == "warning"
    assert "AMP705" not in found(layered(EMBED, *BLOCKS, config=config))


@pytest.mark.parametrize(
    "config",
    [{"fp8": "False"}, {"fp8": None}, {"fp8_wgrad": True}, {"fp8_margin": 0}, {"fp8": "none"},
     {"mixed_precision": "bf16"}, {"run": "fp8-baseline"}, {}],
)  # fmt: skip
def test_settings_that_do_not_ask_are_not_taken_for_a_wish(config):
    assert found(layered(EMBED, *((n, None) for n, _ in BLOCKS), config=config)) == {}


def test_a_conversion_that_reached_nothing_is_told():
    run = layered(EMBED, ("up", None), conversions=["torchao's convert_to_float8_training"])
    assert "convert_to_float8_training was called" in found(run)["AMP705"].summary


def test_layers_in_fp8_count_as_half_precision_whatever_their_outputs_are():
    wide = {"output_dtype": "float32"}
    embed = (*EMBED[:2], {**EMBED[2], **wide})
    named = [(name, cast, wide) for name, cast in BLOCKS]
    assert found(layered(embed, *named, ("head", None, wide), scaler=True)) == {}
    bare = [(name, None, wide) for name, _ in BLOCKS]
    assert "AMP405" in found(layered(embed, *bare, ("head", None, wide), scaler=True))
    large = {"output_dtype": "float32", "flops": 9e6}
    assert "AMP502" in found(layered(embed, *named, ("head", None, large), scaler=True))


# --- real trainings -------------------------------------------------------------------------------


def trained(folder, model, steps=6, config=None):
    """A few steps of a small language model in bf16, and what is found."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off", config=config
    ):
        for step in range(steps):
            tokens = torch.randint(64, (4, 9), generator=torch.Generator().manual_seed(step))
            logits = model(tokens[:, :-1]).float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return ampwatch.open_run(folder / "run")


def in_blocks(_module, name):
    return "blocks" in name


@pytest.mark.parametrize("convert", [float8, mxfp8])
def test_a_real_head_that_the_filter_let_through_is_named(tmp_path, convert):
    needs_torchao()
    run = trained(tmp_path / "all", convert(Language().bfloat16()))
    rows = {row["layer"]: row for row in run.layers.to_pylist()}
    assert rows["head"]["input_format"] == rows["blocks.1.up"]["input_format"] is not None
    assert rows["embed"]["input_format"] is None
    assert found(run)["AMP704"].layer == "head"
    assert found(trained(tmp_path / "some", convert(Language().bfloat16(), chosen=in_blocks))) == {}


def test_weights_are_the_same_to_the_bit_with_and_without_the_watch(tmp_path, monkeypatch):
    needs_torchao()

    def weights(folder):
        torch.manual_seed(7)
        model = float8(Language().bfloat16())
        trained(folder, model) if folder else _unwatched(model, monkeypatch, tmp_path)
        return [parameter.detach().clone() for parameter in model.parameters()]

    watched, alone = weights(tmp_path / "watched"), weights(None)
    assert all(torch.equal(one, other) for one, other in zip(watched, alone, strict=True))


def _unwatched(model, monkeypatch, folder):
    with monkeypatch.context() as patch:
        patch.setenv("AMPWATCH", "0")
        with pytest.raises(ampwatch.AmpwatchError):
            trained(folder / "none", model)


def test_a_report_shows_what_each_layer_multiplies_in(tmp_path):
    needs_torchao()
    from ampwatch.report.html_file import layers_table

    run = trained(tmp_path, float8(Language().bfloat16(), chosen=in_blocks))
    page = layers_table(run, None)
    assert "multiplies in" in page
    assert page.count("fp8 e4m3 tensorwise, gradient e5m2<") == 4
