"""What the course of loss and gradients tells, beside courses that only look so."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hand_built import event_table, scaled_run

from ampwatch.diagnosis import Action, Verdict, diagnose


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def finding(run, code):
    (one,) = [f for f in diagnose(run).findings if f.code == code]
    return one


def run_with(skipped, events=(), **columns):
    run = scaled_run(
        skipped, events=event_table(events), loss=list(columns.pop("loss", [])) or None
    )
    for name, values in columns.items():
        at = run.steps.schema.get_field_index(name)
        field = run.steps.schema.field(at)
        run.steps = run.steps.set_column(at, field, pa.array(values, field.type))
    return run


def ordinary(count, **columns):
    return {"input_amax": [3.0] * count, "update_norm": [0.01] * count, "lr": [0.1] * count,
            "loss": np.linspace(1.2, 1.0, count), **columns}  # fmt: skip


def with_one(value, at, count, usual):
    values = [usual] * count
    values[at] = value
    return values


def test_a_batch_with_an_outlying_input_is_named_with_its_step():
    skipped = with_one(True, 60, 200, False)
    run = run_with(skipped, **ordinary(200, input_amax=with_one(300.0, 60, 200, 3.0)))
    one = finding(run, "AMP206")
    assert (one.severity.value, one.first_step) == ("warning", 60)
    assert "100 times" in one.cause


def changed_at(step, *, back_at=None, count=200):
    """Inputs that become a hundred times as large, with a loss that never comes back, or does."""
    at, back_at = np.arange(count), back_at or count
    large = (at >= step) & (at < back_at)
    loss = np.where(at < step, np.linspace(1.2, 0.2, count), np.where(large, 40.0, 0.2))
    skipped = (at >= step) & (at < step + 6)
    norms = np.where(skipped, np.inf, np.where(large, 60.0, 1.0))
    return run_with(
        skipped.tolist(),
        **ordinary(count, input_amax=np.where(large, 300.0, 3.0).tolist(), loss=loss.tolist(),
                   grad_norm=norms.tolist()),
    )  # fmt: skip


def test_inputs_that_become_larger_for_good_are_the_cause_and_no_learning_rate_is():
    diagnosis = diagnose(changed_at(120))
    head = diagnosis.headline
    assert (head.code, head.first_step) == ("AMP306", 120)
    assert "100 times as large since step 120" in head.summary
    assert diagnosis.verdict is Verdict.FAILING
    assert diagnosis.learning_rate.action is Action.NOT_THE_CAUSE
    assert all(f.because_of == "AMP306" for f in diagnosis.findings if f.code == "AMP103")


def test_inputs_that_changed_long_before_the_trouble_are_not_its_cause():
    count = 600
    at = np.arange(count)
    loss = np.where(at == 120, 9.0, np.linspace(1.2, 0.2, count))
    loss[500:] = np.nan
    columns = ordinary(count, input_amax=np.where(at < 120, 3.0, 300.0).tolist(), loss=loss)
    assert "AMP306" not in found(run_with((at >= 500).tolist(), **columns))


def test_inputs_that_are_larger_for_a_while_or_do_no_harm_are_no_change():
    assert "AMP306" not in found(changed_at(120, back_at=125))
    harmless = ordinary(200, input_amax=[3.0] * 120 + [300.0] * 80)
    assert "AMP306" not in found(run_with(with_one(True, 120, 200, False), **harmless))


def test_a_lonely_leap_of_the_loss_that_healed_is_only_told():
    run = run_with(
        [False] * 200,
        **ordinary(200, loss=[*np.linspace(1.2, 1.14, 60), 9.0, *np.linspace(1.14, 1, 139)]),
    )
    assert found(run) == {"AMP206": "info"}


@pytest.mark.parametrize(
    "columns",
    [
        {},  # a skip, and nothing odd about its batch
        {"input_amax": [3.0] * 60 + [300.0] * 140},  # the data changed for good
        {"input_amax": with_one(300.0, 60, 200, 3.0),
         "update_norm": [0.01] * 59 + [1.0] + [0.01] * 140},  # no ordinary update before
        {"input_amax": with_one(300.0, 60, 200, 3.0), "update_norm": [None] * 200},
    ],
)  # fmt: skip
def test_a_skip_that_no_batch_explains_is_no_bad_batch(columns):
    run = run_with(with_one(True, 60, 200, False), **ordinary(200, **columns))
    assert "AMP206" not in found(run)


def test_batches_that_come_in_swarms_are_no_batches_apart():
    bad = [s in {60, 63, 66, 69, 72, 75} for s in range(150)]
    run = run_with(bad, **ordinary(150, input_amax=[300.0 if b else 3.0 for b in bad]))
    codes = found(run)
    assert (codes["AMP206"], codes["AMP105"]) == ("info", "warning")
    assert "close together" in finding(run, "AMP206").summary


def spiking(skips, after, **columns):
    """Sixty good steps, that many skips, and what follows."""
    count = 60 + skips + after
    return run_with([60 <= s < 60 + skips for s in range(count)], **ordinary(count, **columns))


def test_a_burst_of_skips_that_healed_is_told_once_steps_are_established_again():
    assert "AMP303" not in found(spiking(4, 19))
    one = finding(spiking(4, 20), "AMP303")
    assert (one.severity.value, one.first_step, one.last_step) == ("info", 60, 63)
    assert "a factor of 16" in one.cause


def test_a_burst_that_healed_is_no_storm_and_the_run_is_healthy():
    diagnosis = diagnose(spiking(6, 40))
    assert {f.code for f in diagnosis.findings} <= {"AMP303", "AMP901"}
    assert diagnosis.verdict.value == "healthy"
    assert diagnosis.calm.startswith("No problems found in 106 steps.")
    assert diagnosis.calm.endswith("Noticed besides: recoverable spike (AMP303).")


def test_a_spike_of_the_loss_that_came_back_is_over_and_not_called_no_problem():
    loss = np.concatenate([np.linspace(2, 1, 200), np.full(60, 40.0), np.linspace(1, 0.5, 400)])
    loss *= np.exp(0.01 * np.random.default_rng(0).standard_normal(len(loss)))
    diagnosis = diagnose(run_with([False] * len(loss), **ordinary(len(loss), loss=loss)))
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.calm.startswith("No problem is left after 660 steps.")
    assert diagnosis.calm.endswith("It is over: recoverable spike (AMP303).")


def test_the_batch_is_the_cause_and_the_spike_its_course():
    amax = [3.0] * 60 + [300.0] + [3.0] * 60
    one = finding(spiking(3, 58, input_amax=amax), "AMP303")
    assert one.because_of == "AMP206"


@pytest.mark.parametrize(
    ("skips", "after", "loss"),
    [
        (2, 60, None),  # one overflow may need two halvings
        (12, 60, None),  # a fall from which the scale has not come back
        (4, 100, [1.0] * 64 + [9.0] * 100),  # the loss has not come back
    ],
)
def test_what_did_not_spike_or_did_not_heal_is_no_recoverable_spike(skips, after, loss):
    columns = {"loss": loss} if loss else {}
    assert "AMP303" not in found(spiking(skips, after, **columns))


def drifting(count=400, factor=16.0, loss=None):
    norm = np.geomspace(1.0, factor, count)
    return run_with([False] * count, grad_norm=norm, loss=loss or np.linspace(1.0, 1.3, count))


def test_a_gradient_norm_that_only_rises_is_an_early_sign():
    one = finding(drifting(), "AMP304")
    assert one.severity.value == "warning"
    assert one.first_step == 110  # until then no higher than the median of the first part


def test_a_norm_that_rises_less_or_jumps_or_goes_with_learning_is_no_drift():
    assert "AMP304" not in found(drifting(factor=3.0))
    assert "AMP304" not in found(drifting(loss=np.linspace(2.0, 0.1, 400).tolist()))
    jump = run_with([False] * 400, grad_norm=[1.0] * 200 + [8.0] * 200)
    assert "AMP304" not in found(jump)


def collapsing(events=(), lr=None):
    """Ordinary until step 200, then nothing but skips."""
    count = 240
    columns = ordinary(count, lr=lr or [0.1] * count, grad_norm=[1.0] * count,
                       param_norm=[10.0] * count)  # fmt: skip
    return run_with([False] * 200 + [True] * 40, events, **columns)


def test_trouble_right_after_a_change_is_put_down_to_it():
    loaded = collapsing([(190, "state-loaded", {"of": "scaler"})])
    assert "a state was loaded" in finding(loaded, "AMP306").summary
    doubled = collapsing(lr=[0.1] * 195 + [0.5] * 45)
    assert "from 0.1 to 0.5" in finding(doubled, "AMP306").summary
    leap = {"optimizer": 0, "group": 1, "from": 0.02, "to": 0.06}
    in_group = collapsing([(195, "lr-changed", leap)])  # the steps' rate is the first group's
    assert (
        "the learning rate of group 1 went from 0.02 to 0.06" in finding(in_group, "AMP306").summary
    )
    grown = collapsing([(195, "batch-size-changed", {"from": 32, "to": 256})])
    assert "the batch size went from 32 to 256" in finding(grown, "AMP306").summary


@pytest.mark.parametrize(
    "run",
    [
        collapsing(),
        collapsing([(100, "state-loaded", {"of": "scaler"})]),
        collapsing([(0, "state-loaded", {"of": "scaler"})]),
        collapsing([(190, "state-saved", {"of": "scaler"})]),
        collapsing(lr=[0.5] * 195 + [0.1] * 45),
    ],
)
def test_trouble_long_after_or_after_a_harmless_change_is_not(run):
    assert "AMP306" not in found(run)


def test_a_change_without_trouble_is_no_finding():
    assert found(run_with([False] * 200, [(100, "state-loaded", {})], **ordinary(200))) == {}


def test_a_loss_that_runs_away_without_a_skip_is_diverging():
    loss = [*np.linspace(2.0, 1.5, 60), *np.geomspace(1.5, 60.0, 140)]
    ratio = [0.01] * 50 + [0.6] * 150
    columns = {"max_update_ratio": ratio, "update_norm": [10 * r for r in ratio]}
    run = run_with([False] * 200, **ordinary(200, loss=loss, **columns, grad_norm=[1.0] * 200,
                                             param_norm=[10.0] * 200))  # fmt: skip
    codes = found(run)
    assert codes["AMP307"] == "error"
    assert finding(run, "AMP307").because_of == "AMP301"


def test_a_loss_that_rises_with_ordinary_updates_is_no_divergence():
    loss = [*np.linspace(2.0, 1.5, 60), *np.linspace(1.5, 3.0, 140)]
    run = run_with([False] * 200, **ordinary(200, loss=loss, grad_norm=[1.0] * 200,
                                             param_norm=[10.0] * 200))  # fmt: skip
    assert "AMP307" not in found(run)


def test_a_rate_that_doubles_in_a_warm_up_is_no_change():
    leaps = [(s, "lr-changed", {"group": 0, "from": 0.01, "to": 0.02}) for s in (5, 15)]
    skipped = [False] * 10 + [True] * 30
    columns = ordinary(40, lr=[0.1] * 40, grad_norm=[1.0] * 40, param_norm=[10.0] * 40)
    assert "AMP306" not in found(run_with(skipped, leaps, **columns))
    later = [(9, "optimizer-replaced", {})]
    assert "AMP306" in found(run_with(skipped, later, **columns))


def stairs(height, per=40, epochs=5, until=240):
    """A warm-up by epochs as timm's: from almost nothing, then in equal steps."""
    return [1e-6 if s < per else height * min(epochs, s // per) / epochs for s in range(until)]


@pytest.mark.parametrize("trouble", [85, 90, 200])
def test_the_next_stair_of_a_warm_up_by_epochs_is_no_change(trouble):
    lr = stairs(1e-3, until=trouble + 40)
    count = len(lr)
    leaps = [
        (s, "lr-changed", {"group": 0, "from": lr[s - 1], "to": lr[s]})
        for s in range(21, count)
        if lr[s] >= 2 * lr[s - 1]
    ]
    columns = ordinary(count, lr=lr, grad_norm=[1.0] * count, param_norm=[10.0] * count)
    skipped = [s >= trouble for s in range(count)]
    for events in ((), leaps):
        assert "AMP306" not in found(run_with(skipped, events, **columns))


@pytest.mark.parametrize(("start", "is_change"), [(1e-6, False), (2e-4, True)])
def test_the_first_stair_of_a_warm_up_by_epochs_is_no_change_and_a_leap_from_a_rate_is(
    start, is_change
):
    """Nobody has trained at a thousandth of the base rate; a fifth of it is a rate."""
    lr = [start if s < 40 else 8e-4 for s in range(90)]
    columns = ordinary(90, lr=lr, grad_norm=[1.0] * 90, param_norm=[10.0] * 90)
    run = run_with([s >= 45 for s in range(90)], **{**columns, "lr_base": [1e-3] * 90})
    assert ("AMP306" in found(run)) == is_change


def test_a_rate_that_leaps_long_after_its_warm_up_is_a_change():
    lr = [0.1 * min(1.0, (s + 1) / 50) if s < 195 else 0.5 for s in range(240)]
    assert "from 0.1 to 0.5" in finding(collapsing(lr=lr), "AMP306").summary
