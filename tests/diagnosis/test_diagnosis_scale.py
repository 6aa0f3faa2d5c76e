"""The scale's own findings, on records whose truth is written down."""

from __future__ import annotations

import pytest
from hand_built import HandBuiltRun, Info, event_table, layer_table, scaled_run, step_table

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.rule import title_of


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def skips(pattern: str) -> list[bool]:
    """`..x.` : accepted, accepted, skipped, accepted."""
    return [mark == "x" for mark in pattern]


def test_a_run_without_a_skip_is_healthy_and_says_nothing():
    diagnosis = diagnose(scaled_run(skips("." * 500)))
    assert diagnosis.verdict.value == "healthy"
    assert diagnosis.findings == ()
    assert diagnosis.learning_rate.action.value == "unknown"  # a flat loss, and no updates


@pytest.mark.parametrize("count", [1, 5, 30])
def test_skips_before_the_first_accepted_step_are_a_search_however_many(count):
    run = scaled_run(skips("x" * count + "." * 100), start=2.0**32)
    assert found(run) == {"AMP101": "info"}
    assert diagnose(run).verdict.value == "healthy"


def test_skips_with_which_the_cut_end_of_a_log_begins_are_no_search():
    run = scaled_run(skips("xx" + "." * 100), info=Info(source="deepspeed"))
    assert "AMP101" in found(run)
    steps = [10_000 + step for step in range(102)]
    run.steps = run.steps.set_column(0, "step", [steps])
    assert "AMP101" not in found(run)


def test_a_search_that_nothing_ended_yet_is_incomplete_not_healthy():
    run = scaled_run(skips("xxxx"), layers=layer_table(finite_forwards(4)))
    assert found(run) == {"AMP101": "info"}
    assert diagnose(run).verdict.value == "incomplete"


def test_a_long_search_with_a_finite_forward_is_a_warning_from_twenty_skips():
    run = scaled_run(skips("x" * 20), start=2.0**32, layers=layer_table(finite_forwards(20)))
    assert found(run)["AMP101"] == "warning"


def test_a_search_far_below_one_is_a_failure_though_the_forward_is_finite():
    run = scaled_run(skips("x" * 50), layers=layer_table(finite_forwards(50)))
    assert found(run)["AMP103"] == "error"
    assert "AMP101" not in found(run)


def test_where_nobody_saw_the_forward_sixteen_skips_below_one_are_a_failure():
    assert found(scaled_run(skips("x" * 16))).get("AMP103") is None
    assert found(scaled_run(skips("x" * 17)))["AMP103"] == "error"


def test_five_non_finite_forwards_running_are_no_search():
    bad = [{"step": s, "layer": "up", "act_finite": False} for s in range(5)]
    assert found(scaled_run(skips("xxxxx"), layers=layer_table(bad)))["AMP103"] == "error"
    four = scaled_run(skips("xxxx"), layers=layer_table(bad[:4]))
    assert "AMP103" not in found(four)


def test_an_overflow_after_each_doubling_is_a_sawtooth_and_healthy():
    tooth = "." * 50 + "x"
    run = scaled_run(skips(tooth * 20), growth_interval=50)
    assert found(run) == {"AMP102": "info"}
    assert diagnose(run).verdict.value == "healthy"


def test_a_sawtooth_that_costs_a_step_in_three_is_a_warning():
    run = scaled_run(skips("..x" * 60), growth_interval=2)
    assert found(run) == {"AMP102": "warning"}
    assert diagnose(run).learning_rate.action.value == "not-the-cause"


def test_a_fall_of_many_octaves_that_stays_down_is_a_collapse():
    diagnosis = diagnose(scaled_run(skips("." * 100 + "x" * 30)))
    finding = diagnosis.headline
    assert (finding.code, finding.severity.value) == ("AMP103", "error")
    assert "the gradients overflowed again at every lower scale" in finding.cause
    assert (finding.first_step, finding.last_step) == (100, 129)
    assert "from 65,536, its established level, to 6.1e-5" in finding.summary
    assert diagnosis.verdict.value == "failing"
    assert diagnosis.learning_rate.action.value == "unknown"


def test_a_fall_by_steps_whose_loss_is_not_finite_is_not_put_down_to_the_gradients():
    run = scaled_run(skips("." * 100 + "x" * 30), loss=[1.0] * 100 + [float("nan")] * 30)
    (fall,) = [one for one in diagnose(run).findings if one.code == "AMP103"]
    assert "in most of them the loss itself was inf or NaN" in fall.cause
    assert "gradients" not in fall.cause


def test_a_fall_with_a_few_accepted_steps_in_it_is_one_fall():
    assert found(scaled_run(skips("." * 100 + "xx..x.xx.xxx..xx." * 2)))["AMP103"] == "error"


def test_a_fall_of_seven_octaves_is_no_collapse():
    assert "AMP103" not in found(scaled_run(skips("." * 100 + "x" * 7 + "." * 40)))


def test_a_fall_that_grew_back_is_only_told():
    run = scaled_run(skips("." * 100 + "x" * 9 + "." * 400), growth_interval=20)
    assert found(run) == {"AMP103": "info", "AMP303": "info", "AMP901": "info"}
    assert diagnose(run).verdict.value == "healthy"


def test_a_fall_after_a_start_up_search_is_measured_from_what_the_search_found():
    # 20 octaves of search, then one skip: nothing fell.
    run = scaled_run(skips("x" * 20 + ".." + "xxxx" + "." * 100), start=2.0**32)
    assert "AMP103" not in found(run)


def test_more_skips_than_growth_explains_are_a_storm():
    run = scaled_run(skips(("." * 250 + "x") * 16))
    assert found(run)["AMP105"] == "warning"


def test_skips_after_steps_accepted_at_the_grown_scale_are_not_growths_own():
    # Grows sixteenfold after ten good steps; then four overflows with accepted steps between.
    scaler = {"init_scale": 256.0, "growth_factor": 16.0, "growth_interval": 10}
    scale, after, skipped = [], [], []
    for _ in range(8):
        tooth = [256.0] * 10 + [4096.0] * 3 + [2048.0] * 3 + [1024.0] * 3 + [512.0] * 3
        scale += tooth
        after += [*tooth[1:], 256.0]
        skipped += [False] * 12 + [True] + [False, False, True] * 3
    run = HandBuiltRun(
        step_table(scale=scale, scale_after=after, skipped=skipped), info=Info(scaler=scaler)
    )
    assert found(run)["AMP105"] == "warning"
    at_once = [*[False] * 10, *[True] * 4, *[False] * 8] * 8
    scale = ([256.0] * 10 + [4096.0, 2048.0, 1024.0, 512.0] + [256.0] * 8) * 8
    run = HandBuiltRun(
        step_table(scale=scale, scale_after=[*scale[1:], 256.0], skipped=at_once),
        info=Info(scaler=scaler),
    )
    assert found(run) == {"AMP102": "info"}


def test_a_storm_that_begins_late_in_a_long_run_is_seen():
    run = scaled_run(skips("." * 9000 + ("." * 300 + "x") * 8))
    assert found(run)["AMP105"] == "warning"


def test_two_lonely_skips_at_the_initial_scale_are_no_storm():
    assert found(scaled_run(skips("." * 27 + "x" + "." * 300 + "x" + "." * 300))) == {}


def test_a_storm_in_which_most_recent_steps_are_skipped_is_an_error():
    # A log that tells of skips and not of scales: no fall can be seen.
    pattern = skips("." * 40 + "xx." * 60)
    run = HandBuiltRun(step_table(skipped=pattern))
    assert found(run)["AMP105"] == "error"


@pytest.mark.parametrize("scale", [0.0, 2.0**-127])
def test_a_single_row_at_the_floor_is_enough(scale):
    run = HandBuiltRun(step_table(scale=[scale], scale_after=[scale], skipped=[True]))
    assert found(run)["AMP104"] == "error"


@pytest.mark.parametrize("lowest", [2.0**-135, 0.0])
def test_a_scale_is_called_at_its_minimum_only_where_it_can_fall_no_further(lowest):
    falls = [*(2.0**-n for n in range(120, 135)), lowest]
    run = HandBuiltRun(step_table(scale=falls[:-1], scale_after=falls[1:], skipped=[True] * 15))
    [told] = [one for one in diagnose(run).findings if one.code == "AMP104"]
    assert ("minimum" in told.summary) == (lowest == 0)
    assert "floor" not in f"{told.summary} {title_of(told)} {told.name}"


def test_the_json_of_a_renamed_finding_has_its_former_names():
    steps = step_table(scale=[2.0, 0.0], scale_after=[0.0, 0.0], skipped=[True, True])
    printed = {each["code"]: each for each in diagnose(HandBuiltRun(steps)).to_json()["findings"]}
    assert printed["AMP104"]["name"] == "scale-too-low"
    assert printed["AMP104"]["former_names"] == ["scale-at-floor"]


def test_a_skip_at_the_frameworks_own_minimum_is_at_the_floor():
    steps = step_table(scale=[2.0, 1.0], scale_after=[1.0, 1.0], skipped=[True, True])
    run = HandBuiltRun(steps, info=Info(scaler={"min_scale": 1.0}))
    assert found(run)["AMP104"] == "error"


def test_a_scale_below_one_that_works_is_not_at_the_floor():
    assert found(scaled_run(skips("." * 300), start=2.0**-20)) == {}


def test_a_jump_back_to_the_initial_scale_is_a_reset_and_explains_its_skips():
    before = 50 * [512.0]
    after = [65536.0 / 2**i for i in range(8)] + [512.0] * 50
    scale = before + after
    skipped = [False] * 50 + [True] * 7 + [False] * 51
    steps = step_table(scale=scale, scale_after=[*scale[1:50], 512.0, *after[1:], 512.0],
                       skipped=skipped)  # fmt: skip
    run = HandBuiltRun(steps, info=Info(scaler={"init_scale": 65536.0}))
    assert found(run) == {"AMP108": "warning"}
    assert diagnose(run).learning_rate.action.value == "not-the-cause"


def test_an_overflow_shortly_before_a_reset_does_not_take_its_search_for_its_own():
    search = [2.0 ** (32 - n) for n in range(16)]
    scale = [*search, *[2.0**16] * 61, *[2.0**15] * 30, *search, 2.0**16, *[2.0**15] * 60]
    skipped = skips("x" * 16 + "." * 60 + "x" + "." * 30 + "x" * 17 + "." * 60)
    named = {"direction": "backward", "layer": "head", "exact": True}
    overflows = event_table([(s, "overflow", named) for s, skip in enumerate(skipped) if skip])
    after = [value / 2 if skip else value for value, skip in zip(scale, skipped, strict=True)]
    steps = step_table(scale=scale, scale_after=after, skipped=skipped)
    info = Info(scaler={"init_scale": 2.0**32, "growth_interval": 2000})
    run = HandBuiltRun(steps, info=info, events=overflows)
    assert found(run) == {"AMP101": "info", "AMP108": "warning"}


def test_a_scale_set_on_purpose_is_no_reset():
    scale = [512.0] * 50 + [65536.0] * 50
    steps = step_table(
        scale=scale, scale_after=[512.0] * 50 + [65536.0] * 50, skipped=[False] * 100
    )
    run = HandBuiltRun(
        steps,
        info=Info(scaler={"init_scale": 65536.0}),
        events=event_table([(49, "scale-set", {})]),
    )
    assert found(run) == {}


@pytest.mark.parametrize(("octaves", "is_reset"), [(15, True), (3, False)])
def test_a_scale_set_far_back_to_where_it_began_is_a_reset_if_the_next_step_overflows(
    octaves, is_reset
):
    search = [2.0 ** (9 + octaves - n) for n in range(octaves)]
    scale = [512.0] * 50 + search + [512.0] * 60
    steps = step_table(
        scale=scale,
        scale_after=[*scale[1:], 512.0],
        skipped=[False] * 50 + [True] * octaves + [False] * 60,
    )
    info = Info(scaler={"init_scale": search[0], "growth_interval": 2000})
    run = HandBuiltRun(steps, info=info, events=event_table([(49, "scale-set", {})]))
    assert found(run).get("AMP108") == ("warning" if is_reset else None)
    if is_reset:
        (reset,) = diagnose(run).findings
        assert "update(new_scale) set it back" in reset.cause
        assert "512" in reset.cause


def test_a_step_of_several_optimizers_is_one_step_and_one_skip():
    steps = step_table(
        step=[0, 0, 1, 1],
        optimizer=[0, 1, 0, 1],
        scale=[4.0, 4.0, 4.0, 4.0],
        scale_after=[4.0, 4.0, 2.0, 2.0],
        skipped=[False, False, False, True],
    )
    facts = diagnose(HandBuiltRun(steps)).run
    assert (facts.steps, facts.skipped, facts.final_scale) == (2, 1, 2.0)


def test_a_skip_on_another_rank_counts():
    steps = step_table(
        step=[0, 1, 0, 1],
        rank=[0, 0, 1, 1],
        scale=[4.0] * 4,
        scale_after=[4.0] * 4,
        skipped=[False, False, False, True],
    )
    facts = diagnose(HandBuiltRun(steps)).run
    assert (facts.ranks, facts.skipped) == ((0, 1), 1)


def test_an_empty_record_is_incomplete_and_says_why():
    diagnosis = diagnose(HandBuiltRun(step_table(scale=[])))
    assert diagnosis.verdict.value == "incomplete"
    assert "no steps" in diagnosis.findings[0].cause


def finite_forwards(count):
    return [{"step": s, "layer": "up", "act_finite": True} for s in range(count)]
