"""Findings about numbers, the loop and the record, each beside its look-alike."""

from __future__ import annotations

import dataclasses
import json
import math

import pyarrow as pa
import pytest
import torch
from hand_built import HandBuiltRun, event_table, layer_table, scaled_run, step_table

import ampwatch
from ampwatch.diagnosis import RULES, diagnose
from ampwatch.diagnosis.findings import State
from ampwatch.diagnosis.rule import title_of
from ampwatch.report.letter import letter_of

NAN = math.nan


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def finding(run, code):
    """The one finding of this code."""
    (one,) = [f for f in diagnose(run).findings if f.code == code]
    return one


def overflow(step, layer, direction, **rest):
    return (step, "overflow", {"layer": layer, "direction": direction, **rest})


def test_a_forward_overflow_from_the_first_step_names_the_layer_and_clears_the_rate():
    run = scaled_run(
        [True] * 30,
        loss=[NAN] * 30,
        events=event_table([overflow(s, "blocks.1.act", "forward") for s in range(30)]),
    )
    diagnosis = diagnose(run)
    assert diagnosis.headline.code == "AMP203"
    assert diagnosis.headline.layer == "blocks.1.act"
    assert finding(run, "AMP103").because_of == "AMP203"
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def test_a_forward_overflow_after_learning_leaves_the_rate_open():
    run = scaled_run(
        [False] * 100 + [True] * 30,
        events=event_table([overflow(s, "up", "forward") for s in range(100, 130)]),
    )
    assert diagnose(run).headline.code == "AMP203"
    assert diagnose(run).learning_rate.action.value == "unknown"


def test_what_a_models_own_code_does_between_two_layers_is_said_so():
    told = {"exact": True, "from": "v", "to": "o"}
    run = scaled_run(
        [True] * 30,
        loss=[NAN] * 30,
        events=event_table([overflow(s, "(root)", "forward", **told) for s in range(30)]),
    )
    one = finding(run, "AMP203")
    assert "code of the model between v and o" in one.summary
    assert "mask constant" in one.action
    assert "get_submodule" not in one.action


@pytest.mark.parametrize(("value", "said"), [("nan", "is nan."), ("inf", "overflows half prec")])
def test_a_nan_is_not_called_too_large(value, said):
    events = event_table([overflow(s, "up", "forward", value=value) for s in range(30)])
    one = finding(scaled_run([True] * 30, events=events), "AMP203")
    assert said in one.summary
    assert ("a mask that hides" in one.action) == (value == "nan")


def test_a_gradient_that_leaves_the_loss_itself_not_finite_is_looked_for_there():
    told = {"exact": False, "from": "head", "to": "(loss)"}
    events = [overflow(s, "head", "backward", **told) for s in range(40, 60)]
    run = scaled_run([s >= 40 for s in range(60)], events=event_table(events))
    assert "Check the loss first" in finding(run, "AMP202").action


@pytest.mark.parametrize("sampled", [(), (50, 100)])
def test_a_loss_that_is_nan_to_the_end_is_not_called_finite_for_want_of_samples(sampled):
    layers = [{"step": s, "layer": "head", "act_finite": True} for s in (0, 10, *sampled)]
    loss = [1.0] * 40 + [NAN] * 110
    one = finding(scaled_run([False] * 150, loss=loss, layers=layer_table(layers)), "AMP204")
    assert (one.severity.value, one.first_step, one.last_step) == ("error", 40, 149)
    assert ("may have been the first" in one.cause) == (not sampled)


def test_a_forward_overflow_that_healed_is_only_told():
    run = scaled_run(
        [False] * 100 + [True] + [False] * 100,
        events=event_table([overflow(100, "up", "forward")]),
    )
    assert found(run)["AMP203"] == "info"
    assert diagnose(run).verdict.value == "healthy"


def test_three_backward_overflows_with_one_culprit_name_it_and_two_do_not():
    at = [50, 80, 110, 140]  # the first is the search's
    skipped = [s in at for s in range(260)]
    events = [overflow(s, "head", "backward") for s in at]
    assert finding(scaled_run(skipped, events=event_table(events)), "AMP202").layer == "head"
    assert "AMP202" not in found(scaled_run(skipped, events=event_table(events[:3])))


def test_backward_overflows_that_growth_explains_name_nobody():
    tooth = [False] * 50 + [True]
    at = [s for s in range(51 * 8) if s % 51 == 50]
    events = event_table([overflow(s, "head", "backward") for s in at])
    assert found(scaled_run(tooth * 8, growth_interval=50, events=events)) == {"AMP102": "info"}


def test_a_bound_is_called_a_bound():
    events = event_table([overflow(s, "up", "forward", exact=False) for s in range(20)])
    run = scaled_run([True] * 20, events=events)
    assert "as far as the log shows" in finding(run, "AMP203").summary
    assert "bound" in finding(run, "AMP901").cause


def test_a_loss_that_is_not_finite_above_finite_layers_is_the_losss_own():
    layers = layer_table([{"step": s, "layer": "up", "act_finite": True} for s in range(60)])
    run = scaled_run([False] * 60, loss=[1.0] * 50 + [NAN] * 10, layers=layers)
    assert found(run)["AMP204"] == "error"


def test_a_loss_that_ends_not_finite_fails_though_no_rule_has_seen_why():
    layers = layer_table([{"step": s, "layer": "up", "act_finite": s < 50} for s in range(60)])
    run = scaled_run([False] * 60, loss=[1.0] * 50 + [NAN] * 10, layers=layers)
    assert found(run)["AMP204"] == "error"
    assert diagnose(run).outcome.state is State.NOT_FINITE


def test_a_loss_that_nobody_recorded_is_absent_not_wrong():
    assert found(scaled_run([False] * 60, loss=[None] * 60)) == {}


def test_a_loss_that_is_finite_again_is_only_told():
    run = scaled_run([False] * 200, loss=[1.0] * 50 + [math.inf] + [1.0] * 149)
    assert found(run)["AMP204"] == "info"


def test_weights_that_are_not_finite_explain_the_collapse_after_them():
    rows = [{"step": s, "layer": "up", "weight_finite": s < 100} for s in range(0, 130, 10)]
    run = scaled_run([False] * 100 + [True] * 30, layers=layer_table(rows))
    assert diagnose(run).headline.code == "AMP207"
    assert diagnose(run).headline.layer == "up"
    assert finding(run, "AMP103").because_of == "AMP207"


def test_weights_are_not_finite_from_the_first_step_whoever_saw_them_first():
    for norm_bad, traced in ((2, 5), (5, 2)):
        steps = step_table(param_norm=[1.0] * norm_bad + [math.inf] * 4)
        events = event_table([(traced, "overflow", {"direction": "weights", "layer": "up"})])
        assert finding(HandBuiltRun(steps, events=events), "AMP207").first_step == 2


def test_a_non_finite_input_takes_the_blame_from_layer_and_loss():
    count = 30
    scaled = scaled_run([True] * count, loss=[NAN] * count)
    steps = scaled.steps.set_column(
        scaled.steps.schema.get_field_index("input_finite"), "input_finite", [[False] * count]
    )
    events = event_table([overflow(s, "up", "forward") for s in range(count)])
    run = HandBuiltRun(steps, events=events, info=scaled.info)
    codes = found(run)
    assert codes["AMP209"] == "error"
    assert "AMP203" not in codes
    assert "AMP204" not in codes
    assert finding(run, "AMP103").because_of == "AMP209"


def with_inputs(run, finite):
    """The same run, whose inputs were finite in these steps."""
    at = run.steps.schema.get_field_index("input_finite")
    return HandBuiltRun(run.steps.set_column(at, "input_finite", [finite]), info=run.info)


def test_bad_batches_that_come_again_lead_over_the_skips_that_they_cost():
    """Each passes by itself; that the skips add up is the batches' doing, also between two."""
    bad = {553, 673, 793, 913}
    skipped = [step in bad for step in range(1001)]
    run = with_inputs(scaled_run(skipped), [not skip for skip in skipped])
    told = diagnose(run)
    assert told.headline.code == "AMP209"
    assert told.headline.severity.value == "warning"
    assert finding(run, "AMP105").because_of == "AMP209"
    assert finding(with_inputs(scaled_run(skipped), [True] * 1001), "AMP105").because_of is None


def test_a_data_set_of_which_no_batch_is_finite_is_a_fault_of_its_preprocessing():
    run = with_inputs(scaled_run([True] * 250, loss=[NAN] * 250), [False] * 250)
    told = diagnose(run).headline
    assert told.code == "AMP209"
    assert told.summary == "Every batch is bad: the model's input is not finite in 250 steps."
    assert told.action.startswith("Take one batch, any one, and look at it after each stage")


def test_batches_that_are_all_bad_from_a_step_on_are_told_with_it():
    skips = [False] * 100 + [True] * 30
    told = finding(with_inputs(scaled_run(skips), [not skip for skip in skips]), "AMP209")
    assert told.summary.startswith("Every batch since step 100 is bad: the model's input")


@pytest.mark.parametrize(
    "bad", [{9, 19, 29}, {10, 11, 12, 13, 14, 15}, {96, 97, 98, 99}],
    ids=["every tenth", "some in the middle", "the last four"],
)  # fmt: skip
def test_single_bad_batches_are_not_said_to_be_all(bad):
    run = with_inputs(
        scaled_run([s in bad for s in range(100)]), [s not in bad for s in range(100)]
    )
    told = finding(run, "AMP209")
    assert "very batch" not in told.summary
    assert f"Check the bad batches, the first one at step {min(bad)}:" in told.action


def test_a_single_bad_batch_is_the_one_to_check():
    run = with_inputs(scaled_run([s == 40 for s in range(100)]), [s != 40 for s in range(100)])
    assert "Check the batch of step 40:" in finding(run, "AMP209").action


def losses_of_two(count, until):
    """A shared scaler, one of whose losses is never finite: its optimizer is always skipped.

    From `until` on the scale is so small that the other's weights are nan, too.
    """
    scale = [2.0 ** (16 - s) for s in range(count)]
    steps = step_table(
        loss=[-math.inf] * until + [NAN] * (count - until), scale=scale,
        scale_after=[value / 2 for value in scale], skipped=[True] * count,
        input_finite=[s < until for s in range(count)],
    )  # fmt: skip
    layers = layer_table([
        {"step": s, "layer": "a.0", "act_finite": s < until} for s in range(0, count, 5)
    ])  # fmt: skip
    return HandBuiltRun(steps, layers=layers, info=scaled_run([True]).info)


def test_a_loss_that_is_never_finite_leads_though_an_input_is_not_finite_later():
    diagnosis = diagnose(losses_of_two(166, 145))
    assert diagnosis.headline.code == "AMP204"
    assert diagnosis.headline.summary == (
        "Every step is skipped since step 0, and no loss scale can help: the loss is -inf from "
        "the first step on."
    )
    (scale,) = [f for f in diagnosis.findings if f.code == "AMP103"]
    assert scale.because_of == "AMP204"
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def test_a_loss_that_is_not_finite_now_and_then_leaves_a_scale_that_helps():
    loss = [NAN if s in {5, 60, 140} else 1.0 for s in range(150)]
    run = scaled_run([math.isnan(value) for value in loss], loss=loss)
    assert "no loss scale" not in finding(run, "AMP204").summary


def test_an_input_that_the_weights_took_in_ends_the_run_though_it_was_one_batch():
    """Without a scaler nothing skips its step, and all that follows is not finite."""
    loss = [2.0 - 0.01 * s for s in range(60)] + [NAN] * 40
    run = HandBuiltRun(
        step_table(
            loss=loss, lr=[0.1] * 100, grad_norm=[1.0] * 60 + [NAN] * 40,
            param_norm=[10.0] * 61 + [NAN] * 39, input_finite=[s != 60 for s in range(100)],
        )
    )  # fmt: skip
    diagnosis = diagnose(run)
    assert diagnosis.headline.code == "AMP209"
    assert diagnosis.headline.severity.value == "error"
    assert "The weights are not finite any more." in diagnosis.headline.action
    letter = letter_of("x", run, diagnosis)
    assert str(letter.to_do[-1]) == "Then start from scratch."
    assert finding(run, "AMP207").because_of == "AMP209"
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def test_a_layer_that_loses_most_of_its_gradients_is_named():
    rows = [
        {"step": s, "layer": layer, "underflow_share": share}
        for s in range(0, 60, 10)
        for layer, share in (("down", 0.9), ("head", 0.1))
    ]
    run = scaled_run([False] * 60, layers=layer_table(rows))
    assert finding(run, "AMP201").layer == "down"
    assert "1 of 2 layers" in finding(run, "AMP201").summary


def losing_run(scale):
    """A run at one scale whose layer `head` loses most of its gradients in two samples of three."""
    shares = [0.9, 0.9, 0.05] * 4
    rows = [
        {"step": 10 * at, "layer": "head", "underflow_share": share}
        for at, share in enumerate(shares)
    ]
    steps = step_table(loss=[1.0] * 120, scale=[scale] * 120, scale_after=[scale] * 120)
    return HandBuiltRun(steps, layers=layer_table(rows))


def test_the_share_that_a_layer_loses_is_above_the_limit_that_it_is_held_against():
    (evidence,) = finding(losing_run(2.0**10), "AMP201").evidence
    assert evidence.value == pytest.approx(0.9)
    assert evidence.value > evidence.against


@pytest.mark.parametrize("octaves", [10, 16, 20])
def test_a_run_with_a_scaler_is_not_told_to_use_one(octaves):
    action = finding(losing_run(2.0**octaves), "AMP201").action
    assert "The loss scale is" in action
    assert "torch.amp.GradScaler" not in action


def test_zeros_after_a_collapse_are_no_underflow():
    rows = [{"step": s, "layer": "up", "underflow_share": 0.9} for s in range(100, 130)]
    assert "AMP201" not in found(scaled_run([False] * 100 + [True] * 30, layers=layer_table(rows)))


def test_half_precision_without_a_scaler_is_said_and_bf16_is_not():
    fp16 = step_table(loss=[1.0] * 30, autocast_dtype=["float16"] * 30)
    bf16 = step_table(loss=[1.0] * 30, autocast_dtype=["bfloat16"] * 30)
    assert found(HandBuiltRun(fp16)) == {"AMP408": "warning"}
    assert found(HandBuiltRun(bf16)) == {}


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        (
            "RuntimeError",
            "mat1 and mat2 must have the same dtype, but got Half and Float",
            "AMP415",
        ),
        ("RuntimeError", "expected scalar type Half but found Float", "AMP415"),
        (
            "RuntimeError",
            "dtypes match, got Float for the destination and Half for the source.",
            "AMP415",
        ),
        (
            "RuntimeError",
            "index_add_(): self (Float) and source (Half) must have the same scalar type",
            "AMP415",
        ),
        ("RuntimeError", "scatter(): Expected self.dtype to be equal to src.dtype", "AMP415"),
        (
            "RuntimeError",
            "result type Float can't be cast to the desired output type Half",
            "AMP415",
        ),
        (
            "RuntimeError",
            "torch.nn.functional.binary_cross_entropy is unsafe to autocast.",
            "AMP415",
        ),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "AMP506"),
    ],
)
def test_the_error_that_ended_training_is_told_with_its_layer(kind, message, code):
    events = event_table(
        [(29, "exception", {"exception": kind, "message": message, "layer": "head"})]
    )
    run = scaled_run([False] * 30, events=events, clean_end=False)
    assert finding(run, code).layer == "head"
    assert finding(run, "AMP902").because_of == code
    assert diagnose(run).verdict.value == "failing"


@pytest.mark.parametrize(
    "message",
    [
        "half of the workers left",
        "float division by zero",
        "Expected float or double, got an int: wrong type",
        "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6), half as many as usual",
    ],
)
def test_an_error_about_something_else_names_no_formats(message):
    events = event_table([(29, "exception", {"exception": "RuntimeError", "message": message})])
    assert "AMP415" not in found(scaled_run([False] * 30, events=events, clean_end=False))


def test_an_error_that_the_loop_survived_did_not_end_it():
    detail = {"type": "RuntimeError", "message": "expected scalar type Half", "fatal": False}
    assert found(scaled_run([False] * 30, events=event_table([(3, "exception", detail)]))) == {}


def test_a_record_without_an_end_mark_says_so_and_stays_healthy():
    run = scaled_run([False] * 60, clean_end=False)
    assert found(run) == {"AMP902": "info"}
    assert diagnose(run).verdict.value == "healthy"
    assert "no end mark" in (diagnose(run).calm or "")


def test_a_run_that_an_exception_ended_is_told_so_with_its_layer_and_line():
    detail = {"fatal": True, "exception": "KeyError", "message": "'x'", "layer": "head"}
    events = event_table([(29, "exception", detail | {"user_frame": "/home/me/train.py:7, in f"})])
    told = diagnose(scaled_run([False] * 30, events=events))
    assert told.verdict.value == "failing"
    assert told.outcome.state is State.EXCEPTION
    assert (told.headline.code, told.headline.layer) == ("AMP902", "head")
    assert "KeyError in layer head at train.py:7, in f" in told.headline.summary


def test_what_was_cut_off_and_what_was_lost_is_said():
    run = scaled_run(
        [False] * 30, notes=("3 kB cut off.",), events=event_table([(9, "gap", {"reason": "full"})])
    )
    assert "3 kB cut off." in finding(run, "AMP901").cause
    assert "full" in finding(run, "AMP903").cause


def test_the_json_holds_the_contracts_keys_and_nothing_that_json_lacks():
    run = scaled_run([True] * 30, loss=[NAN] * 30)
    body = diagnose(run).to_json()
    text = json.dumps(body, allow_nan=False)
    assert json.loads(text) == body
    assert list(body) == [
        "schema", "run", "verdict", "findings", "learning_rate", "outcome", "causes",
    ]  # fmt: skip
    assert set(body["run"]) == {
        "id", "source", "ranks", "steps", "started", "ended", "clean_end",
        "first_scale", "final_scale", "overflows", "skipped", "state", "exception",
    }  # fmt: skip
    assert set(body["findings"][0]) == {
        "code", "name", "severity", "first_step", "last_step", "ranks", "layer",
        "summary", "cause", "action", "because_of", "evidence", "steps", "muted",
        "former_names",
    }  # fmt: skip
    assert set(body["findings"][0]["evidence"][0]) == {
        "signal", "step", "value", "against", "against_is", "text",
    }  # fmt: skip
    assert set(body["learning_rate"]) == {
        "action", "current", "recommended", "low", "high", "factor", "group", "confidence",
        "restart_from_step", "restart_checkpoint_step", "warmup_steps", "clip", "because",
        "leapt_at_step", "probability", "signals",
    }  # fmt: skip


def test_every_rule_has_a_code_a_name_and_a_full_page():
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    for rule in RULES:
        page = rule.page
        assert all((page.meaning, page.looks, page.not_to_confuse, page.do, page.example))
        assert rule.name == rule.name.lower().replace(" ", "-")


def test_a_forward_overflow_that_came_after_the_fall_began_did_not_cause_it():
    run = scaled_run(
        [False] * 100 + [True] * 30,
        events=event_table([overflow(s, "head", "forward") for s in range(110, 130)]),
    )
    assert diagnose(run).headline.code == "AMP103"
    assert finding(run, "AMP203").because_of is None


@pytest.mark.parametrize(
    ("kind", "learns", "severity"),
    [("BatchNorm2d", True, "warning"), ("BatchNorm2d", False, "info"), ("LayerNorm", True, "info")],
)
def test_running_statistics_keep_a_nan_that_a_skipped_step_was_to_undo(kind, learns, severity):
    rows = [{"step": s, "layer": "norm", "kind": kind, "trainable": learns} for s in range(9)]
    run = scaled_run(
        [s == 50 for s in range(200)],
        layers=layer_table(rows),
        events=event_table([overflow(50, None, "input")]),
    )
    assert finding(run, "AMP209").severity.value == severity
    assert ("evaluation returns nan" in finding(run, "AMP209").cause) == (severity == "warning")


@pytest.mark.parametrize(("every", "verdict"), [(4, "failing"), (50, "warning")])
def test_running_statistics_that_bad_batches_spoil_again_and_again_fail_whatever_the_loss(
    every, verdict
):
    bad = [step % every == 2 for step in range(200)]
    rows = [
        {"step": s, "layer": "norm", "kind": "BatchNorm2d", "trainable": True} for s in range(9)
    ]
    run = scaled_run(
        bad, loss=[None if is_bad else 2.0 - n / 150 for n, is_bad in enumerate(bad)],
        layers=layer_table(rows),
        events=event_table([overflow(step, None, "input") for step in range(200) if bad[step]]),
    )  # fmt: skip
    told = diagnose(run)
    assert told.headline.code == "AMP209"
    assert told.verdict.value == verdict


def test_without_a_scaler_a_nan_loss_comes_before_the_weights_that_it_spoils(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = ampwatch.attach(None, model, optimizer=optimizer, log_dir=tmp_path, run="r")
    for number in range(120):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean() * (math.nan if number == 75 else 1.0)
        loss.backward()
        watch.log(loss=loss)
        optimizer.step()
    watch.close()
    diagnosis = ampwatch.diagnose(ampwatch.open_run(watch.run_folder))
    assert (diagnosis.headline.code, diagnosis.headline.first_step) == ("AMP204", 75)
    assert "AMP207" in {finding.code for finding in diagnosis.findings}


@pytest.mark.parametrize(("skips", "is_of_operation"), [(20, False), (60, True)])
def test_where_no_loss_scale_helps_an_operation_is_looked_for(skips, is_of_operation):
    """From 2^16 the scale falls to 2^-4 or 2^-44: no gradient is too large for that."""
    skipped = [s >= 40 for s in range(40 + skips)]
    events = [overflow(s, "head", "backward") for s in range(40, 40 + skips)]
    one = finding(scaled_run(skipped, events=event_table(events)), "AMP202")
    assert ("no loss scale helps" in one.cause) == is_of_operation
    assert ("Add an eps" in one.action) == is_of_operation


def test_a_step_that_a_later_attempt_took_again_counts_once():
    run = scaled_run([False] * 90)
    steps = run.steps.to_pydict()["step"]
    again = [step if step < 60 else step - 20 for step in steps]
    at = run.steps.schema.get_field_index("step")
    told = dataclasses.replace(run, steps=run.steps.set_column(at, "step", pa.array(again)))
    assert (diagnose(run).run.steps, diagnose(told).run.steps) == (90, 70)


def test_the_skipped_steps_of_a_run_without_trouble_are_accounted_for():
    search = scaled_run([True] * 6 + [False] * 60)
    assert (
        "6 steps were skipped: the first loss scale is too high on purpose."
        in diagnose(search).calm
    )
    both = scaled_run([True] * 6 + [False] * 50 + [True] + [False] * 49, growth_interval=50)
    why = "on purpose, and the scaler tries a higher loss scale now and then."
    assert why in diagnose(both).calm
    more = scaled_run([True] * 6 + [False] * 100 + [True] + [False] * 99)
    assert "on purpose, and after the others training went on." in diagnose(more).calm


def test_the_skips_of_search_and_growth_add_up_to_those_of_the_run():
    """An overflow after growth may take two halvings: it is one overflow, and two steps."""
    skipped = [True] * 6 + 2 * ([False] * 50 + [True] * 2) + [False] * 49
    told = diagnose(scaled_run(skipped, growth_interval=50))
    parts = {one.code: int(one.summary.split()[0]) for one in told.findings}
    assert (parts["AMP101"], parts["AMP102"]) == (6, 4)
    assert sum(parts.values()) == told.run.skipped
    assert "skipped" not in diagnose(scaled_run([False] * 60)).calm
    healed = scaled_run(
        [False] * 100 + [True] + [False] * 100,
        events=event_table([overflow(100, "up", "forward")]),
    )
    assert "1 step was skipped: training went on." in diagnose(healed).calm


def test_the_title_of_several_bad_batches_is_of_several():
    leaps = [40.0 if s in (100, 130, 170) else 1.0 + 0.01 * (s % 7) for s in range(260)]
    several = finding(scaled_run([False] * 260, loss=leaps), "AMP206")
    assert title_of(several) == "Some batches stand out from those before"
    assert several.action.startswith("Look in the batches like that of step 100 for outliers")
    single = dataclasses.replace(several, steps=several.steps[:1])
    assert title_of(single) == "A batch stands out from those before"


def test_what_is_nan_now_and_then_is_told_with_its_steps_and_whether_the_latest_is_one():
    for steps, latest in ((240, "but not at the latest step, 239"), (236, "the latest step among")):
        loss = [NAN if s >= 100 and s % 15 == 10 else 1.0 for s in range(steps)]
        one = finding(scaled_run([False] * steps, loss=loss), "AMP204")
        assert one.summary.startswith("The loss was nan in ")
        assert f"steps from 100 to {235}, {latest}" in one.summary
        assert title_of(one) == "The loss is inf or NaN, in some steps"


def test_a_loss_that_is_lost_to_the_end_is_not_called_nan_in_some_steps():
    loss = [1.0] * 40 + [NAN] + [1.0] * 9 + [NAN] * 100
    one = finding(scaled_run([False] * 150, loss=loss), "AMP204")
    assert title_of(one) == "The loss is inf or NaN"
    single = finding(scaled_run([False] * 100, loss=[*[1.0] * 99, NAN]), "AMP204")
    assert single.summary == "The loss is nan at step 99."


def test_inputs_and_gradients_that_are_nan_now_and_then_are_told_with_their_steps():
    run = with_inputs(scaled_run([False] * 60), [s % 20 != 19 for s in range(60)])
    told = finding(run, "AMP209")
    assert "not finite in 3 steps from 19 to 59, the latest step among them." in told.summary
    assert title_of(told).endswith(", in some steps")


def test_while_a_bad_batch_comes_back_the_headline_stays_between_two_of_them():
    """Each 25th batch holds a NaN, and the loss scale falls with each."""
    bad = [175, 200, 225, 250, 275, 300, 325, 350, 375, 400]
    for end in range(202, 424, 3):
        skips = [step in bad for step in range(end)]
        told = diagnose(with_inputs(scaled_run(skips), [not skip for skip in skips]))
        assert told.headline.code == "AMP209", end
        assert told.verdict.value in {"warning", "failing"}, end
    finite = [step not in bad[:2] for step in range(300)]  # it has been away for four times as long
    assert finding(with_inputs(scaled_run([False] * 300), finite), "AMP209").severity.weight == 0
