"""What layers say of room, scales and precision, each beside a healthy one."""

from __future__ import annotations

import pytest
from hand_built import HandBuiltRun, event_table, layer_table, scaled_run, step_table

from ampwatch.diagnosis import diagnose

STEPS = range(30, 430, 50)


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def finding(run, code):
    (one,) = [f for f in diagnose(run).findings if f.code == code]
    return one


def sampled(**columns):
    """A run of 430 accepted steps, a layer `up` sampled eight times; columns by sample."""
    rows = [
        {"step": s, "layer": "up", **{n: v[i] for n, v in columns.items()}}
        for i, s in enumerate(STEPS)
    ]
    return scaled_run([False] * 430, layers=layer_table(rows))


def test_a_layer_that_stays_close_to_the_formats_end_is_named():
    assert finding(sampled(log2_headroom=[1.5] * 8), "AMP205").layer == "up"
    assert found(sampled(log2_headroom=[2.5] * 8)) == {}


def test_a_layer_that_was_close_and_is_so_no_more_is_no_finding():
    assert found(sampled(log2_headroom=[1.0] * 6 + [5.0] * 2)) == {}


def test_a_layer_that_grows_towards_the_end_is_named_before_it_is_there():
    run = sampled(log2_headroom=[8.0, 7.5, 7.0, 6.2, 5.5, 4.9, 4.3, 3.8])
    assert "in about" in finding(run, "AMP205").summary


@pytest.mark.parametrize(
    "headroom",
    [
        [30.0, 27.0, 24.5, 22.5, 20.5, 19.0, 18.0, 17.0],
        [8.0, 7.9, 7.8, 7.7, 7.6, 7.5, 7.4, 7.3],
        [8.0, 5.0, 8.0, 5.0, 8.0, 5.0, 8.0, 4.0],
    ],
)
def test_a_slow_or_a_restless_layer_or_one_that_begins_at_zero_is_not_due(headroom):
    assert found(sampled(log2_headroom=headroom)) == {}


def losing(skipped):
    """A layer that loses nine tenths of its gradients in its first ten accepted steps."""
    rows = [{"step": s, "layer": "up", "underflow_share": 0.9} for s in range(10)]
    return scaled_run(skipped, layers=layer_table(rows))


def test_what_a_run_loses_while_it_falls_apart_is_no_underflow_of_its_own():
    assert "AMP201" in found(losing([False] * 40))
    assert "AMP201" not in found(losing([False] * 12 + [True] * 28))


def test_underflow_begins_where_a_layer_first_loses_and_not_at_its_first_sample():
    one = finding(sampled(underflow_share=[0.1] * 3 + [0.9] * 5), "AMP201")
    assert one.first_step == STEPS[3]


def test_layers_of_which_no_gradient_was_seen_are_not_among_those_that_lose_theirs():
    """Of a gradient that is 0 everywhere nothing tells whether anything of it was lost."""
    up = [{"step": s, "layer": "up", "underflow_share": 0.9} for s in STEPS]
    still = [{"step": s, "layer": "still", "grad_norm": 0.0} for s in STEPS]
    alone, beside = (
        finding(scaled_run([False] * 430, layers=layer_table(rows)), "AMP201").summary
        for rows in (up, [*up, *still])
    )
    assert alone.startswith("1 of 1 layer lose most")
    assert beside.startswith("1 of 1 layer with gradients other than 0 lose most")


def test_what_a_fall_of_the_scale_loses_is_its_consequence():
    """The lower level is established after the fall: there samples are judged again."""
    skipped = [n > 12 and n % 4 == 0 for n in range(80)] + [False] * 350
    share = [0.1] + [0.9] * 7
    run = scaled_run(
        skipped,
        layers=layer_table(
            [{"step": s, "layer": "up", "underflow_share": share[i]} for i, s in
             enumerate([5, 90, 110, 130, 150, 170, 190, 210])]
        ),
    )  # fmt: skip
    one = finding(run, "AMP201")
    assert (one.because_of, "Fix the cause of the scale drop" in one.action) == ("AMP103", True)


def two_layers(low, high, share=0.9):
    rows = [
        row
        for s in STEPS
        for row in ({"step": s, "layer": "embed", "scale_low": low, "scale_high": 2.0**40,
                     "underflow_share": share},
                    {"step": s, "layer": "head", "scale_low": 1.0, "scale_high": high})
    ]  # fmt: skip
    return scaled_run([False] * 430, layers=layer_table(rows))


def test_two_layers_whose_windows_do_not_meet_are_both_named():
    one = finding(two_layers(2.0**20, 2.0**14), "AMP208")
    assert "embed needs 1,048,576" in one.cause
    assert "head tolerates 16,384" in one.cause


def test_windows_that_meet_or_a_tail_that_is_lost_are_no_conflict():
    assert "AMP208" not in found(two_layers(2.0**14, 2.0**20))
    assert found(two_layers(2.0**20, 2.0**14, share=0.2)) == {}


def test_a_layer_that_loses_its_gradients_at_the_ceiling_is_told_so():
    rows = [{"step": s, "layer": "small", "underflow_share": 0.9} for s in STEPS]
    table = layer_table(rows)
    capped = scaled_run([True] * 12 + [False] * 418, layers=table)
    assert "still loses" in finding(capped, "AMP208").summary
    assert finding(capped, "AMP201").because_of == "AMP208"
    assert "AMP208" not in found(scaled_run([False] * 430, layers=table))


def precise(dtypes, *, scale=True, **more):
    """Layers with as many flops as given, by (dtype, flops)."""
    rows = [
        {"step": s, "layer": f"l{i}", "output_dtype": dtype, "flops": flops, **more}
        for s in STEPS
        for i, (dtype, flops) in enumerate(dtypes)
    ]
    table = layer_table(rows)
    return scaled_run([False] * 430, layers=table) if scale else HandBuiltRun(
        step_table(loss=[1.0] * 430), layers=table
    )  # fmt: skip


def test_a_scaler_without_any_half_precision_is_said():
    assert found(precise([("float32", 1e6), ("float32", 2e6)])) == {"AMP405": "warning"}
    assert found(precise([("float32", 1e6)], scale=False)) == {}
    assert found(precise([("float16", 1e6), ("float32", 1e5)])) == {}


def test_layers_without_a_product_say_nothing_of_autocast():
    assert found(precise([("float32", None)])) == {}


def test_a_minority_in_half_precision_names_the_largest_wide_layer():
    run = precise([("float16", 1e6), ("float32", 5e6), ("float32", 2e6)])
    assert finding(run, "AMP502").layer == "l1"
    assert finding(run, "AMP502").severity.value == "info"


def test_torchs_refusal_to_unscale_names_the_parameters():
    detail = {"type": "ValueError", "message": "Attempting to unscale FP16 gradients.",
              "fatal": False}  # fmt: skip
    run = scaled_run([False] * 30, events=event_table([(3, "exception", detail)]))
    assert found(run)["AMP406"] == "error"


def test_an_eps_that_float16_weights_cannot_hold_is_named():
    groups = [{"lr": 0.1, "eps": 1e-8}]
    events = event_table([(0, "optimizer", {"optimizer": 0, "groups": groups})])
    kept = precise([("float16", 1e6)], param_dtype="float16", trainable=True)
    kept.events = events
    assert found(kept)["AMP414"] == "error"
    wide = precise([("float16", 1e6)], param_dtype="float32", trainable=True)
    wide.events = events
    frozen = precise([("float16", 1e6)], param_dtype="float16", trainable=False)
    frozen.events = events
    assert "AMP414" not in {**found(wide), **found(frozen)}


@pytest.mark.parametrize(("dtype", "is_told"), [("float32", False), ("float16/float32", True)])
def test_an_eps_that_divides_float32_copies_of_float16_weights_is_no_trouble(dtype, is_told):
    groups = [{"lr": 0.1, "eps": 1e-8, "dtype": dtype}]
    run = precise([("float16", 1e6)], param_dtype="float16", trainable=True)
    run.events = event_table([(0, "optimizer", {"optimizer": 0, "groups": groups})])
    assert ("AMP414" in found(run)) == is_told


def test_bf16_needs_no_scaler_and_fp16_does():
    def run(dtype):
        base = scaled_run([False] * 30)
        at = base.steps.schema.get_field_index("autocast_dtype")
        base.steps = base.steps.set_column(at, "autocast_dtype", [[dtype] * 30])
        return base

    assert found(run("bfloat16")) == {"AMP407": "info"}
    assert found(run("float16")) == {}
