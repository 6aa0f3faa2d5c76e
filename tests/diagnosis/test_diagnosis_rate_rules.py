"""AMP301, AMP302 and AMP305, and how they stand beside other findings: through `diagnose`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_built import HandBuiltRun, Info, event_table, follow, step_table
from rate_shapes import action, course, diverging, falling
from torch.optim.lr_scheduler import LambdaLR

import ampwatch
from ampwatch.diagnosis import Action, diagnose
from ampwatch.diagnosis.causes import link_causes
from ampwatch.diagnosis.findings import Finding, Severity
from ampwatch.diagnosis.learning_rate import rows_of
from ampwatch.diagnosis.learning_rate.rate_history import COLUMNS
from ampwatch.report.letter import letter_of

ADAM = (
    0,
    "optimizer",
    {"optimizer": 0, "class": "Adam", "elements": 1000, "groups": [{"lr": 0.1, "betas": [0.9, 1]}]},
)


def run_of(rows, events=(ADAM,), **columns):
    """A run whose steps hold these rows."""
    skipped = rows.of("skipped") > 0
    scale, after = follow(skipped, 65536.0, 2000)
    loss = np.where(rows.of("loss_bad") > 0, np.nan, rows.of("loss"))
    named = {
        "grad_norm_applied": "applied_norm",
        "max_update_ratio": "max_ratio",
        "update_alignment": "alignment",
    }
    same = ("lr", "lr_base", "grad_norm", "update_norm", "param_norm", "input_amax")
    return HandBuiltRun(
        step_table(
            skipped=skipped.tolist(), scale=scale, scale_after=after, loss=loss.tolist(),
            update_seen=[True] * len(rows),
            **{name: rows.of(name).tolist() for name in same},
            **{name: rows.of(source).tolist() for name, source in named.items()},
            **columns,
        ),
        events=event_table(list(events)),
    )  # fmt: skip


def rows_with(rows, **columns):
    return rows_of(**{**{name: rows.of(name) for name in COLUMNS}, **columns})


def finding(diagnosis, code):
    (one,) = [f for f in diagnosis.findings if f.code == code]
    return one


def codes(diagnosis):
    return {f.code: f.severity.value for f in diagnosis.findings}


def seen(code, step, severity=Severity.ERROR, until=200):
    return Finding(code, code, severity, step, until, (0,), None, "", "", "")


def test_a_fall_whose_first_skip_came_before_the_rate_was_told_is_still_its_course():
    """Too high a rate is told from three skips in a row; the first of a fall may come before."""
    linked = link_causes([seen("AMP103", 3), seen("AMP301", 13), seen("AMP203", 3)])
    assert {f.code: f.because_of for f in linked} == {
        "AMP301": None, "AMP103": "AMP301", "AMP203": None
    }  # fmt: skip
    assert link_causes([seen("AMP103", 3), seen("AMP301", 40)])[0].because_of is None


def test_a_fall_that_the_forward_pass_kept_up_for_nearly_all_of_it_is_the_forward_passes_doing():
    for first, cause in ((154, "AMP203"), (250, None)):
        linked = link_causes([seen("AMP103", 138, until=300), seen("AMP203", first, until=300)])
        because = {one.code: one.because_of for one in linked}
        assert because == {"AMP103": cause, "AMP203": None}


def test_what_led_to_an_error_leads_over_a_warning_that_began_before():
    gradients, jump = (seen(*one, Severity.WARNING) for one in (("AMP202", 78), ("AMP306", 100)))
    linked = link_causes([gradients, jump, seen("AMP301", 106)])
    assert [one.code for one in linked] == ["AMP306", "AMP202", "AMP301"]


def test_a_collapse_after_growing_updates_is_the_rate_and_the_fall_is_its_course():
    diagnosis = diagnose(run_of(diverging(collapse=True)))
    assert diagnosis.headline.code == "AMP301"
    assert diagnosis.verdict.value == "failing"
    assert finding(diagnosis, "AMP103").because_of == "AMP301"
    assert diagnosis.learning_rate.action.value == "lower"


def test_no_rate_is_kept_beside_a_collapse_that_it_may_have_brought_about():
    good, grown, lost = 2840, np.geomspace(1, 300, 60), 100
    drift = np.concatenate([np.ones(good), grown, np.full(lost, grown[-1])])
    skipped = np.concatenate([np.zeros(good + len(grown)), np.ones(lost)])
    rows = course(
        falling(len(skipped)), noise=0.02, grad=drift, ratio=2e-3 * drift, skipped=skipped
    )
    diagnosis = diagnose(run_of(rows))
    assert codes(diagnosis)["AMP103"] == "error"
    advice = diagnosis.learning_rate
    assert advice.action.value == "unknown"
    assert "The learning rate may still be the cause." in advice.because
    assert advice.recommended is None
    assert 2700 < advice.restart_from_step < 2900


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("least", [0.0, 1e-6])
def test_a_batch_of_which_nothing_is_left_of_the_loss_hides_no_divergence(seed, least):
    """As a bilinear net at sixteen times its limit: too noisy to be told by its recent past."""
    level = np.concatenate(
        [np.geomspace(1.9, 0.4, 10), np.geomspace(0.4, 3.3, 50), np.full(70, 3.3)]
    )
    loss = level * np.exp(np.random.default_rng(seed).standard_normal(130))
    loss[0], loss[[9, 30, 100, 120]] = 1.9, least
    rows = course(loss, seed=seed, ratio=np.geomspace(0.35, 0.03, 130))
    diagnosis = diagnose(run_of(rows_with(rows, param_norm=np.linspace(5, 80, 130))))
    assert diagnosis.headline.code == "AMP301"
    assert diagnosis.learning_rate.action.value == "lower"


def test_a_run_that_still_learns_a_little_is_not_told_that_its_rate_is_too_high():
    ratio, grown = np.where(np.arange(160) < 5, 0.5, 0.01), np.geomspace(10, 50, 160)
    rows = course(falling(160, 2.3, 1.5, speed=2), noise=0.03, ratio=ratio)
    diagnosis = diagnose(run_of(rows_with(rows, param_norm=grown, update_norm=grown * ratio)))
    assert codes(diagnosis) == {}
    assert diagnosis.verdict.value == "healthy"
    assert diagnosis.learning_rate.action.value == "keep"


def test_a_rate_that_jumped_is_the_jumps_doing_and_is_lowered_all_the_same():
    rate = np.where(np.arange(120) < 58, 0.01, 0.1)
    diagnosis = diagnose(run_of(diverging(lr=rate, base=0.1, collapse=True)))
    assert finding(diagnosis, "AMP301").because_of == "AMP306"
    assert diagnosis.learning_rate.action.value == "lower"


@pytest.mark.parametrize("good", [80, 2000], ids=["early", "late"])
def test_after_a_leap_of_the_rate_the_advice_is_the_rate_that_had_worked(good):
    rate = np.where(np.arange(good + 60) < good - 2, 0.01, 1.0)
    advice = diagnose(run_of(diverging(good, lr=rate, base=rate, collapse=True))).learning_rate
    assert advice.action.value == "lower"
    assert advice.recommended == pytest.approx(0.01)
    assert (advice.current, advice.low, advice.high) == (1.0, pytest.approx(0.01), None)
    assert advice.leapt_at_step == good - 2
    assert "go back to 0.01. That is proven, no estimate" in advice.because


@pytest.mark.parametrize("base", ["its base", "the rate"])
def test_a_leap_of_the_rate_is_undone_and_nothing_is_multiplied(base):
    """A checkpoint from before the leap holds the right rate: lines that divide it would harm."""
    rate = np.where(np.arange(140) < 78, 0.01, 1.0)
    rows = diverging(80, lr=rate, base=0.01 if base == "its base" else rate, collapse=True)
    changed = (78, "lr-changed", {"from": 0.01, "to": 1.0})
    diagnosis = diagnose(run_of(rows, events=(ADAM, changed)))
    for code in ("AMP306", "AMP301"):
        words = finding(diagnosis, code).action
        assert (
            "Go back to 0.01, the learning rate before step 78: the run had trained at it." in words
        )
        assert "Undo what made the learning rate 1 there" in words
        assert "set_learning_rate" not in words


def test_another_change_before_the_trouble_is_not_taken_for_a_leap_of_the_rate():
    replaced = (58, "optimizer-replaced", {})
    diagnosis = diagnose(run_of(diverging(collapse=True), events=(ADAM, replaced)))
    assert finding(diagnosis, "AMP306").action.startswith("Undo that change")
    assert diagnosis.learning_rate.leapt_at_step is None


def test_a_thousandfold_leap_of_a_rate_without_a_scheduler_is_no_warm_up():
    """Without a scheduler the base rate is the rate: it leaps with it."""
    rate = np.where(np.arange(120) < 58, 1e-4, 0.1)
    leapt = diagnose(run_of(diverging(lr=rate, base=rate, collapse=True)))
    assert finding(leapt, "AMP301").because_of == "AMP306"
    warmed = diagnose(run_of(diverging(lr=rate, base=0.1, collapse=True)))
    assert finding(warmed, "AMP301").because_of is None


def test_weights_that_grew_while_the_loss_fell_to_the_end_are_an_operations_overflow():
    """A target outside half precision: the last layer climbs towards it, and learns as it does."""
    good, bad = 60, 30
    loss = np.concatenate([np.linspace(140.0, 40.0, good), np.full(bad, np.inf)])
    skipped = np.concatenate([np.zeros(good), np.ones(bad)])
    grown = np.concatenate([np.linspace(5.0, 12e3, good), np.full(bad, 12e3)])
    activation = np.concatenate([np.linspace(3.0, 65e3, good), np.full(bad, np.nan)])

    def advised(loss):
        return action(
            course(
                loss,
                skipped=skipped,
                param_norm=grown,
                update_norm=200.0,
                ratio=0.02,
                act_amax=activation,
            )
        )

    assert advised(loss) == "not-the-cause"
    # The same numbers under a loss that had turned are a rate's work.
    assert advised(np.where(np.arange(good + bad) > 30, loss + 150, loss)) == "lower"


def test_the_action_is_the_peak_in_two_digits():
    diagnosis = diagnose(run_of(diverging()))
    advice, action = diagnosis.learning_rate, finding(diagnosis, "AMP301").action
    assert f"Set the peak learning rate to {advice.recommended:.2g} (now 0.1)." in action
    assert "\n" not in action
    assert "set_learning_rate" not in action  # no checkpoint is recorded


def test_where_a_checkpoint_is_to_be_loaded_the_call_that_the_action_names_does_what_it_says():
    saved = (30, "state-saved", {"of": "scaler"})
    diagnosis = diagnose(run_of(diverging(), (ADAM, saved)))
    action = finding(diagnosis, "AMP301").action
    call = action.rpartition("After loading a checkpoint, call `")[2].removesuffix("`.")
    optimizer = torch.optim.SGD([{"params": [torch.ones(1)]}, {"params": [torch.ones(1)]}], lr=0.1)
    optimizer.param_groups[1]["lr"] = 1.0
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    exec(call, {"ampwatch": ampwatch, "optimizer": optimizer, "scheduler": scheduler})
    peak = diagnosis.learning_rate.recommended
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([0.1 * peak, peak], rel=0.05)


def test_a_saved_checkpoint_is_named_where_there_is_one():
    saved = (30, "state-saved", {"of": "scaler"})
    diagnosis = diagnose(run_of(diverging(), (ADAM, saved)))
    assert diagnosis.learning_rate.restart_checkpoint_step == 30
    letter = letter_of("x", run_of(diverging(), (ADAM, saved)), diagnosis)
    assert str(letter.to_do[0]).startswith("Restart from the checkpoint of step 30 with a peak")


def test_each_number_of_the_evidence_stands_beside_what_it_is_held_against():
    evidence = finding(diagnose(run_of(diverging())), "AMP301").evidence
    assert evidence
    assert all(one.value > one.against for one in evidence)


def test_trouble_while_the_rate_still_rises_is_a_steep_warmup():
    count = np.arange(120)
    rows = diverging(ratio=0.002, lr=0.1 * (count + 1) / 1000, base=0.1, collapse=True)
    found = codes(diagnose(run_of(rows)))
    assert found["AMP302"] == "error"
    assert "AMP301" not in found


def test_a_healthy_run_has_no_finding_on_its_rate_and_keeps_it():
    diagnosis = diagnose(run_of(course(falling(500))))
    assert diagnosis.findings == ()
    assert diagnosis.learning_rate.action.value == "keep"
    assert diagnosis.learning_rate.recommended == diagnosis.learning_rate.current == 1e-3


def thrown_up(end):
    """A first step so large that the loss leaps, and comes down to this share of the first one."""
    loss = np.concatenate([[0.29], end * 0.29 + np.geomspace(1e4, 1e-3, 299)])
    ratio = np.concatenate([np.full(20, 0.5), np.geomspace(0.5, 0.01, 280)])
    weights = np.concatenate([[10.0], np.full(299, 120.0)])
    random = np.random.default_rng(0)
    rows = course(loss * np.exp(0.02 * random.standard_normal(300)), ratio=ratio, lr=0.1)
    return run_of(rows_with(rows, param_norm=weights, update_norm=ratio * weights))


def test_a_rate_that_threw_the_loss_up_is_too_high_though_the_loss_stands_far_below_its_peak():
    diagnosis = diagnose(thrown_up(0.92))
    assert codes(diagnosis)["AMP301"] == "error"
    assert diagnosis.learning_rate.action.value == "lower"


def test_a_rate_that_threw_the_loss_up_is_kept_where_the_loss_then_fell_far_below_its_first():
    diagnosis = diagnose(thrown_up(0.1))
    assert "AMP301" not in codes(diagnosis)
    assert diagnosis.learning_rate.action.value == "keep"


def test_a_rate_that_was_judged_too_high_is_lowered_though_the_loss_does_not_move():
    loss = 2.1 * np.exp(0.005 * np.random.default_rng(0).standard_normal(400))
    weights = np.concatenate([[10.0], np.full(399, 200.0)])
    rows = rows_with(course(loss, ratio=0.5), param_norm=weights, update_norm=0.1 * weights)
    diagnosis = diagnose(run_of(rows))
    assert codes(diagnosis) == {"AMP301": "error", "AMP309": "warning"}
    assert diagnosis.learning_rate.action.value == "lower"


def test_a_rate_that_could_rise_is_told_only_of_a_healthy_run():
    diagnosis = diagnose(run_of(course(falling(500, 2.3, 2.25), alignment=0.99, update_norm=0.01)))
    assert codes(diagnosis) == {"AMP305": "info", "AMP309": "warning"}
    assert diagnosis.learning_rate.action.value == "raise"
    assert "AMP305" not in codes(diagnose(run_of(diverging(alignment=0.99))))


def test_an_optimizer_that_does_not_name_its_momentum_is_not_told_to_raise():
    by_hand = (0, "optimizer", {"optimizer": 0, "class": "Muon", "groups": [{"lr": 0.1}]})
    rows = course(falling(500, 2.3, 2.25), alignment=0.99, update_norm=0.01)
    diagnosis = diagnose(run_of(rows, (by_hand,)))
    assert codes(diagnosis) == {"AMP309": "warning"}
    assert diagnosis.learning_rate.action.value == "unknown"


def test_scaled_gradients_in_the_update_are_a_misuse_and_not_the_rate():
    misuse = (1, "misuse", {"code": "AMP404", "step": 1})
    diagnosis = diagnose(run_of(diverging(good=20, ratio=5.0, collapse=True), (ADAM, misuse)))
    assert diagnosis.headline.code == "AMP404"
    assert finding(diagnosis, "AMP301").because_of == "AMP404"
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def test_a_rate_is_not_judged_by_gradients_that_nobody_cleared():
    misuse = (1, "misuse", {"code": "AMP412"})
    diagnosis = diagnose(run_of(diverging(good=20, ratio=5.0, collapse=True), (ADAM, misuse)))
    assert diagnosis.headline.code == "AMP412"
    assert "AMP301" not in codes(diagnosis)
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def test_a_standing_finding_beside_a_calm_course_is_not_the_rates_doing():
    overflow = {"layer": "head", "direction": "backward"}
    at = range(340, 500, 30)
    events = [ADAM, *((s, "overflow", overflow) for s in at)]
    rows = course(falling(500), skipped=np.isin(np.arange(500), list(at)))
    diagnosis = diagnose(run_of(rows, events))
    assert diagnosis.verdict.value == "warning"
    assert diagnosis.learning_rate.action.value == "not-the-cause"


@pytest.mark.parametrize(("ratio", "expected"), [(0.005, "not-the-cause"), (0.5, "unknown")])
def test_trouble_with_the_loss_in_its_band_is_cleared_unless_an_update_was_large(ratio, expected):
    first = np.where(np.arange(400) == 0, ratio, 0.005)
    storm = np.arange(400) % 4 == 3
    diagnosis = diagnose(run_of(course(falling(400), skipped=storm, ratio=first)))
    assert codes(diagnosis)["AMP103"] == "error"
    assert diagnosis.learning_rate.action.value == expected


@pytest.mark.parametrize(("turn", "grows_in"), [(200, 120), (300, 120)])
def test_a_learning_rate_at_which_the_loss_already_rose_has_not_worked(turn, grows_in):
    """A warm-up breaks down slowly: from the turn on the loss rises, and is lost 1,100 steps on."""
    chance, step = np.random.default_rng(0), np.arange(1500)
    lr = 0.3 * np.minimum(1.0, (step + 1) / 1000)
    rise = 0.02 * np.expm1(np.maximum(step - turn, 0) / grows_in)
    loss = (1.2 + 1.8 * np.exp(-step / 80) + rise) * np.exp(0.04 * chance.standard_normal(1500))
    lost = int(np.argmax(loss > 200))
    loss[lost:] = np.nan
    columns = {"loss": loss, "lr": lr, "lr_base": np.full(1500, 0.3)}
    table = step_table(**{name: values[: lost + 60].tolist() for name, values in columns.items()})
    advice = diagnose(HandBuiltRun(table)).learning_rate
    assert advice.action is Action.LOWER
    assert advice.recommended < 1.25 * lr[turn]


@pytest.mark.parametrize(("zeros", "source", "told"), [
    (49, "ampwatch", False), (50, "ampwatch", True), (120, "csv", False),
])  # fmt: skip
def test_a_watched_training_that_goes_on_at_a_learning_rate_of_zero_is_told_soon(
    zeros, source, told
):
    count, random = 450, np.random.default_rng(0)
    lr = [*(1e-3 * (1 + np.cos(np.pi * np.arange(count) / count)) / 2), *[0.0] * zeros]
    loss = 0.3 + np.exp(-np.arange(len(lr)) / 80) + 0.01 * random.standard_normal(len(lr))
    rows = step_table(loss=loss.tolist(), lr=lr, grad_norm=[1.0] * len(lr))
    run = HandBuiltRun(rows, info=Info(source=source, scaler={}))
    assert ("AMP308" in {one.code for one in diagnose(run).findings}) == told


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_schedule_that_still_lowers_the_learning_rate_is_not_called_over(goes_on):
    """The decay of an epoch, in each step, to the end; or until it is held at a thousandth."""
    lr = 2e-3 * 0.96 ** np.arange(400.0)
    lr = lr if goes_on else np.maximum(lr, 2e-6)
    loss = 0.3 + 0.05 * np.random.default_rng(0).random(400)
    rows = step_table(loss=loss.tolist(), lr=lr.tolist(), grad_norm=[1.0] * 400)
    (one,) = [f for f in diagnose(HandBuiltRun(rows)).findings if f.code == "AMP308"]
    assert ("lowers it further" in one.cause) is goes_on
    assert ("is over" in one.cause) is not goes_on
