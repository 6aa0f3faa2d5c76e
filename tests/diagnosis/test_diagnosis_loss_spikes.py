"""Rises of the loss without a scaler: spikes that heal, leaps, what stays up, and mere noise."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import HandBuiltRun, Info, event_table, scaled_run, step_table

import ampwatch
from ampwatch.diagnosis import Engine, diagnose
from ampwatch.importers import import_log


def healthy(count, seed=0, level=1.9, noise=0.05):
    random = np.random.default_rng(seed)
    fall = 1.5 * np.exp(-np.arange(count) / (count / 8))
    return {
        "loss": level + fall + noise * random.standard_normal(count),
        "grad_norm": 0.8 * np.exp(0.2 * random.standard_normal(count)),
        "update_norm": 0.05 * np.exp(0.05 * random.standard_normal(count)),
        "param_norm": np.full(count, 30.0),
        "lr": np.full(count, 3e-4),
    }


def spike(columns, at, height=2.0, steps=20, gradient=6.0):
    """The loss leaps at a step and comes back; gradients leap with it."""
    shape = np.exp(-np.arange(5 * steps) / (steps / 3))
    end = min(len(columns["loss"]), at + len(shape))
    columns["loss"][at:end] += height * shape[: end - at]
    columns["grad_norm"][at : at + 5] *= gradient


def attached(columns, **rest):
    count = len(columns["loss"])
    given = {"skipped": [False] * count, "optimizer": [0] * count, **rest}
    rows = {name: np.asarray(values).tolist() for name, values in {**columns, **given}.items()}
    return HandBuiltRun(step_table(**rows), info=Info(scaler={}))


def tabled(columns, folder, names=("loss", "lr", "grad_norm"), every=1):
    path = folder / "log.csv"
    lines = [",".join(("step", *names))]
    lines += [
        ",".join([str(at), *(repr(float(columns[name][at])) for name in names)])
        for at in range(0, len(columns["loss"]), every)
    ]
    path.write_text("\n".join(lines) + "\n")
    return ampwatch.open_run(import_log(path, folder / "runs"))


def told(run):
    return {f.code: f.severity.value for f in diagnose(run).findings if f.code != "AMP901"}


def is_calm(run):
    """Whether nothing is told but, as a warning, that a loss of noise alone does not fall."""
    seen = told(run)
    return seen.pop("AMP309", "warning") == "warning" and set(seen.values()) <= {"info"}


def finding(run, code):
    (one,) = [f for f in diagnose(run).findings if f.code == code]
    return one


def spiked(*steps, count=2000, **how):
    columns = healthy(count)
    for at in steps:
        spike(columns, at, **how)
    return columns


def test_three_late_spikes_that_heal_are_a_warning_and_counted(tmp_path):
    columns = spiked(1550, 1700, 1850)
    for run in (attached(columns), tabled(columns, tmp_path)):
        assert told(run) == {"AMP303": "warning"}
        one = finding(run, "AMP303")
        assert (one.first_step, one.summary) == (
            1550, "The loss spiked 3 times and came back by itself.",
        )  # fmt: skip
        lost = {e.signal: e.value for e in one.evidence}["lost_steps"]
        assert 3 * 12 <= lost <= 3 * 30
        assert diagnose(run).learning_rate.action.value == "keep"


def test_spikes_are_counted_where_only_the_loss_is_recorded(tmp_path):
    run = tabled(spiked(500, 1000, 1700), tmp_path, names=("loss", "lr"))
    assert told(run) == {"AMP303": "warning"}  # 3 % of the steps were lost to them


def test_lines_that_stand_for_ten_steps_each_show_spikes_too(tmp_path):
    columns = healthy(6000)
    for at in (4700, 5100, 5600):
        spike(columns, at, steps=100)
    run = tabled(columns, tmp_path, names=("loss", "lr"), every=10)
    assert told(run) == {"AMP303": "warning"}
    lost = {e.signal: e.value for e in finding(run, "AMP303").evidence}["lost_steps"]
    assert 150 <= lost <= 500


def test_one_high_line_of_a_sparse_log_is_no_habit(tmp_path):
    columns = healthy(5000)
    columns["loss"][2600] += 3.0
    run = tabled(columns, tmp_path, names=("loss", "lr"), every=50)
    assert told(run) == {"AMP303": "info"}


def test_one_spike_that_heals_is_only_told():
    assert told(attached(spiked(1000))) == {"AMP303": "info"}


def long_rise(columns, at, height, steps, gradient=3.0):
    """The loss stands so high for so many steps; gradients stand above theirs as long."""
    columns["loss"][at : at + steps] += height
    columns["grad_norm"][at : at + steps] *= gradient


def test_one_long_spike_with_its_gradients_is_a_warning(tmp_path):
    columns = healthy(6000)
    long_rise(columns, 3000, height=1.0, steps=150)
    for run in (attached(columns), tabled(columns, tmp_path)):
        assert told(run) == {"AMP303": "warning"}  # 2.5 % of the steps


def learning(count=8000, seed=0):
    """A run whose loss falls to its end, with the logarithm of the step."""
    columns = healthy(count, seed)
    columns["loss"] += 1.2 - 0.35 * np.log1p(np.arange(count) / 100)
    return columns


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("heights", "steps", "expected"),
    [
        ((2.0, 1.6, 1.8), 60, "info"),  # 2 % of the steps, and the loss learnt on after each
        ((1.2, 1.8, 2.6), 60, "warning"),  # they grow
        ((2.0, 1.6, 1.8), 180, "warning"),  # each takes more than a twentieth of what was before
    ],
)
def test_spikes_after_which_the_loss_learns_on_cost_nothing_if_they_are_short_and_do_not_grow(
    heights, steps, expected, seed
):
    columns = learning(seed=seed)
    for at, height in zip((2000, 3400, 4800), heights, strict=True):
        long_rise(columns, at, height, steps)
    run = attached(columns)
    assert told(run) == {"AMP303": expected}
    assert (diagnose(run).verdict.value == "healthy") == (expected == "info")


def test_spikes_of_a_loss_that_does_not_go_below_where_it_was_are_a_warning_however_short():
    columns = learning()
    columns["loss"][4000:] += 0.35 * np.log(np.arange(4000, 8000) / 4000)  # learns no further
    for at in (4500, 5100, 5700):
        long_rise(columns, at, height=1.5, steps=60)
    assert told(attached(columns)) == {"AMP303": "warning"}


def test_a_low_rise_is_a_spike_where_gradients_left_their_band_for_as_long():
    for gradient, expected in ((3.0, {"AMP303": "warning"}), (1.0, {"AMP303": "info"})):
        columns = healthy(4000)
        long_rise(columns, 2000, height=0.3, steps=60, gradient=gradient)
        assert told(attached(columns)) == expected


def test_one_rise_that_takes_a_tenth_of_the_steps_is_the_datas():
    columns = healthy(600)
    long_rise(columns, 300, height=1.0, steps=70)
    assert told(attached(columns)) == {"AMP303": "info"}


def test_leaps_of_one_step_hide_no_long_spike():
    columns = healthy(6000)
    columns["loss"][np.arange(300, 6000, 1100)] += 0.6
    long_rise(columns, 3000, height=1.0, steps=150)
    assert told(attached(columns))["AMP303"] == "warning"


def test_one_long_rise_is_only_told_where_gradients_are_known_to_have_stayed(tmp_path):
    columns = healthy(6000)
    long_rise(columns, 3000, height=1.0, steps=150, gradient=1.0)
    assert told(attached(columns)) == {"AMP303": "info"}
    assert told(tabled(columns, tmp_path, names=("loss", "lr"))) == {"AMP303": "warning"}


def test_spikes_of_which_some_stay_below_the_line_are_all_counted():
    columns = healthy(6000)
    heights = (0.6, 0.34, 0.6, 0.34, 0.34, 0.6)  # in deviations 12 and 7
    for at, height in zip(range(1000, 5500, 800), heights, strict=True):
        long_rise(columns, at, height, steps=25)
    assert told(attached(columns)) == {"AMP303": "warning"}
    counted = {e.signal: e.value for e in finding(attached(columns), "AMP303").evidence}["spikes"]
    assert 5 <= counted <= 6  # one of them is back for two steps by chance


def test_what_is_left_of_a_spike_as_it_heals_hides_no_spike():
    columns = healthy(6000)
    for at in range(1000, 5500, 800):
        long_rise(columns, at, height=1.0, steps=25)
        long_rise(columns, at + 28, height=0.32, steps=4)
    assert told(attached(columns)) == {"AMP303": "warning"}


def test_long_low_rises_of_which_gradients_know_nothing_are_only_told():
    columns = healthy(6000)
    for at in range(1000, 5500, 800):
        long_rise(columns, at, height=0.3, steps=25, gradient=1.0)
    assert told(attached(columns)) == {"AMP303": "info"}


def test_low_spikes_that_come_back_at_each_epoch_are_a_warning_by_all_their_entries(tmp_path):
    columns = healthy(4000)
    for at in range(300, 4000, 500):
        long_rise(columns, at, height=0.32, steps=10, gradient=1.0)  # 6 deviations
    run = tabled(columns, tmp_path, names=("loss", "lr"))
    assert told(run) == {"AMP303": "warning"}
    counted = {e.signal: e.value for e in finding(run, "AMP303").evidence}["spikes"]
    assert 6 <= counted <= 8


def test_gradients_that_double_for_twenty_steps_went_with_a_spike_however_noisy_they_are():
    columns = healthy(4000)
    columns["grad_norm"] **= 3.0  # its noise: a factor of 1.8, so that twice as much is within it
    for at in (1000, 2500):
        long_rise(columns, at, height=0.6, steps=20, gradient=2.2)
    assert told(attached(columns)) == {"AMP303": "warning"}


def remembering(count, memory, seed):
    """Noise of deviation 1 that forgets slowly."""
    random, made = np.random.default_rng(seed), np.zeros(count)
    fresh = np.sqrt(1 - memory**2) * random.standard_normal(count)
    for at in range(1, count):
        made[at] = memory * made[at - 1] + fresh[at]
    return made


def test_a_loss_whose_noise_remembers_wanders_and_has_no_spikes():
    for seed in range(4):
        columns = healthy(5000, seed)
        columns["loss"] = 2 + 0.1 * remembering(5000, 0.99, seed)
        columns["grad_norm"] = 0.8 * np.exp(0.5 * remembering(5000, 0.9, seed + 9))
        assert is_calm(attached(columns))


def test_a_loss_that_has_doubled_for_good_is_told_where_noise_hides_what_gradients_did():
    columns = healthy(2000, noise=0.02)
    columns["loss"][900:] *= 1 + 1.4 * (1 - np.exp(-np.arange(1100) / 150))
    columns["grad_norm"] = 0.8 * np.exp(0.8 * remembering(2000, 0.98, 3))
    assert told(attached(columns)) == {"AMP307": "warning"}


def test_a_loss_that_climbs_through_every_epoch_ends_high_without_any_trouble():
    columns = healthy(2000, noise=0.02)
    place = np.arange(2000) * 4 / 2000 % 1
    columns["loss"] += 1.2 * place
    columns["grad_norm"] *= 2 ** (1.2 * place)
    assert set(told(attached(columns)).values()) <= {"info"}


def test_early_spikes_that_cost_little_are_only_told():
    columns = healthy(20_000)
    for at in (4000, 8000, 12_000):
        spike(columns, at)
    assert told(attached(columns)) == {"AMP303": "info"}


def test_spikes_that_the_scaler_met_with_skips_are_only_told():
    columns = spiked(1550, 1700, 1850)
    skipped = np.isin(np.arange(2000), [1550, 1551, 1700, 1701, 1850, 1851])
    scale = np.full(2000, 1024.0)
    assert "warning" not in told(attached(columns, skipped=skipped, scale=scale)).values()


def test_one_skip_in_a_long_spike_makes_it_no_lesser_one():
    columns = healthy(6000)
    for at in (2000, 3000, 4000):
        long_rise(columns, at, height=1.0, steps=40)
    skipped = np.isin(np.arange(6000), [2003, 3020, 4001])
    scale = np.full(6000, 1024.0)
    assert told(attached(columns, skipped=skipped, scale=scale))["AMP303"] == "warning"


def test_a_spike_that_does_not_come_back_is_a_divergence():
    columns = healthy(2000)
    columns["loss"][1500:] += 2 * (1 - np.exp(-np.arange(500) / 100))
    columns["grad_norm"][1500:] *= 4
    assert told(attached(columns))["AMP307"] == "error"
    assert finding(attached(columns), "AMP307").first_step >= 1500


def test_a_loss_that_stays_above_where_it_began_is_an_error_without_gradients_too(tmp_path):
    columns = healthy(2000)
    columns["loss"][1500:] += 2.0
    run = tabled(columns, tmp_path, names=("loss", "lr"))
    assert told(run) == {"AMP307": "error"}
    assert "a change of the data is behind it" in finding(run, "AMP307").cause


def test_a_loss_that_stays_up_while_gradients_stay_as_they_were_is_another_level():
    columns = healthy(2000)
    columns["loss"][1500:] += 2.0
    assert told(attached(columns)) == {"AMP307": "warning"}
    assert "the gradients stayed as they were" in finding(attached(columns), "AMP307").summary


def junk(count=1000, updates=3.0):
    columns = healthy(count, level=3.2)
    at = [300, 480, 655, 720, 901]
    columns["loss"][at] = 5.0
    columns["update_norm"][at] *= updates
    return columns


def test_single_steps_that_leap_and_are_back_at_the_next_are_batches(tmp_path):
    for run in (attached(junk()), tabled(junk(), tmp_path, names=("loss", "lr", "update_norm"))):
        assert told(run) == {"AMP206": "warning"}
        assert "5 batches" in finding(run, "AMP206").summary
        assert "step 300" in finding(run, "AMP206").cause


def test_batches_that_are_hard_and_move_nothing_are_only_told():
    assert told(attached(junk(updates=1.0))) == {"AMP206": "info"}


@pytest.mark.parametrize("rows", [5, 16, 100])
def test_what_is_told_does_not_hang_on_how_the_rows_came(rows):
    columns = spiked(200, 430, 640, count=700)
    columns["loss"][[100, 330, 550]] += 1.5
    run = attached(columns)
    assert Engine(block_rows=rows).feed(run).diagnosis().findings == diagnose(run).findings


# -- healthy twins ---------------------------------------------------------------------------------


def _heavy(random, count):
    return 2 + 0.1 * np.abs(random.standard_t(2, count))


def _outliers(random, count):
    return 2 + 0.05 * np.abs(random.standard_cauchy(count))


def _factors(random, count):
    return 0.5 * np.exp(0.3 * random.standard_t(4, count))


def _policy(random, count):
    return 0.02 * random.standard_t(3, count)


def _wandering(random, count):
    return 2 * np.exp(np.convolve(0.03 * random.standard_normal(count + 99), np.ones(100), "valid"))


def _two_tasks(random, count):
    return np.where(random.random(count) < 0.2, 2.0, 1.0) * (
        2 + 0.1 * random.standard_normal(count)
    )


def _in_turn(random, count):
    rising = 1.5 + 2 * np.arange(count) / count + 0.3 * random.standard_normal(count)
    return np.where(np.arange(count) % 2, rising, 0.6 + 0.1 * random.standard_normal(count))


def _signed(random, count):
    return 1 - 9 * np.arange(count) / count + 0.3 * random.standard_normal(count)


def _curriculum(random, count):
    loss = 2 + 0.1 * random.standard_normal(count)
    for start in (count // 5, count // 2):
        loss[start:] += 1.5 * np.exp(-np.arange(count - start) / (count / 10))
    return loss


LAWS = (
    _heavy, _outliers, _factors, _policy, _wandering, _two_tasks, _in_turn, _signed, _curriculum,
)  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_noise_of_any_law_is_no_trouble(law):
    for seed in range(3):
        columns = healthy(4000, seed)
        columns["loss"] = law(np.random.default_rng(seed), 4000)
        alone = {name: columns[name] for name in ("loss", "lr")}
        for given in (columns, alone):
            assert is_calm(attached(given))


def test_a_hundred_thousand_steps_of_heavy_tails_are_no_trouble():
    columns = healthy(100_000)
    columns["loss"] = _heavy(np.random.default_rng(3), 100_000)
    assert is_calm(attached(columns))


def test_two_optimizers_that_step_in_turn_are_two_series():
    columns = healthy(4000)
    columns["loss"] = _in_turn(np.random.default_rng(0), 4000)
    assert told(attached(columns, optimizer=np.arange(4000) % 2)) == {}


def test_a_rise_right_after_the_rate_was_raised_is_no_spike():
    columns = healthy(4000)
    phase = np.arange(4000) % 400 / 400
    shape = 0.05 + 0.95 * (1 + np.cos(np.pi * phase)) / 2
    columns["lr"] *= shape
    columns["update_norm"] *= shape
    columns["loss"] *= 1 + 0.5 * shape
    assert "AMP303" not in told(attached(columns))


def test_a_loss_that_is_summed_over_more_micro_batches_is_no_divergence():
    columns = healthy(2000)
    counts = np.where(np.arange(2000) < 1500, 2, 4)
    columns["loss"] *= counts
    columns["grad_norm"] *= counts
    assert "AMP307" not in told(attached(columns, micro_batches=counts))


def test_a_rise_that_stays_is_put_to_the_state_that_was_loaded_before_it():
    columns = healthy(2000)
    columns["loss"][1500:] += 2.0
    columns["grad_norm"][1500:1540] *= 4
    run = attached(columns)
    run.events = event_table([(1495, "state-loaded", {"of": "optimizer"})])
    assert told(run)["AMP306"] == "warning"
    assert "At the restart at step 1495" in finding(run, "AMP306").summary


def test_a_gradient_norm_that_only_rises_is_told_without_a_scale():
    columns = healthy(4000)
    columns["grad_norm"] *= np.geomspace(1.0, 16.0, 4000)
    assert told(attached(columns))["AMP304"] == "warning"


def test_a_drift_is_told_in_a_log_of_which_each_line_stands_for_many_steps(tmp_path):
    columns = healthy(20_000)
    columns["grad_norm"] *= np.where(
        np.arange(20_000) < 14_000, 1.0, np.geomspace(0.05, 16.0, 20_000)
    ).clip(1.0)
    assert told(tabled(columns, tmp_path, every=50))["AMP304"] == "warning"


def test_a_loss_that_climbs_far_above_all_that_it_was_is_told_without_gradients_too(tmp_path):
    columns = healthy(5000)
    slowly = np.geomspace(1.0, 50.0, 1500)
    columns["loss"] *= np.concatenate([np.ones(1500), slowly, np.full(2000, 50.0)])
    run = tabled(columns, tmp_path, names=("loss", "lr"))
    assert told(run) == {"AMP307": "error"}
    assert "This log does not show why." in finding(run, "AMP307").cause


def test_batches_that_stand_out_are_listed_with_their_steps_and_their_distance():
    columns = healthy(4000, level=3.2)
    at = [400, 1300, 2200, 3100]
    columns["loss"][at] = 5.0
    columns["update_norm"][at] *= 3.0
    regular = finding(attached(columns), "AMP206")
    assert regular.steps == tuple(at)
    assert "Each is 900 steps after the one before" in regular.cause
    irregular = finding(attached(junk()), "AMP206")
    assert irregular.steps == (300, 480, 655, 720, 901)
    assert "after the one before" not in irregular.cause


@pytest.mark.parametrize(("share", "told"), [(0.3, False), (0.06, False), (0.02, True)])
def test_a_second_task_that_is_drawn_now_and_then_is_no_bad_batch(share, told):
    random, count = np.random.default_rng(3), 1200
    other = random.random(count) < share
    loss = np.where(other, 1.1 + 4.8 * np.exp(-np.arange(count) / 80), 0.4) + 0.03 * random.random(
        count
    )
    norm = np.where(other, 0.8, 0.07) * np.exp(0.5 * random.standard_normal(count))
    columns = {"loss": loss.tolist(), "grad_norm": norm.tolist(), "lr": [1e-3] * count}
    table = step_table(**columns, skipped=[False] * count)
    run = HandBuiltRun(table, info=Info(source="csv", scaler={}))
    assert ("AMP206" in {one.code for one in diagnose(run).findings}) == told


@pytest.mark.parametrize("steps", [600, 800, 1500])
def test_bad_batches_that_begin_late_are_told_however_many_they_are(steps):
    """The data of the first 520 steps had none: one in nine is not what they are made of."""
    chance, step = np.random.default_rng(0), np.arange(steps)
    clean = (2 * np.exp(-step / 300) + 0.3) * (1 + 0.05 * chance.standard_normal(steps))
    for begin, told in ((520, "warning"), (0, None)):
        bad = (step % 9 == 0) & (step >= begin)
        run = scaled_run([False] * steps, loss=np.where(bad, 30 * clean, clean).tolist())
        found = {one.code: one.severity.value for one in diagnose(run).findings}
        assert found.get("AMP206") == told


def test_hard_examples_of_data_that_are_nearly_learnt_are_no_bad_batches():
    """They stand out late, as all others are learnt, and never above the first losses."""
    chance, step = np.random.default_rng(0), np.arange(1500)
    easy = 2.3 * np.exp(-step / 120) + 0.01
    hard = np.where(chance.random(1500) < 0.11, np.minimum(0.9, 40 * easy), 0.0)
    loss = (easy + hard * (step > 200)) * (1 + 0.05 * chance.standard_normal(1500))
    run = scaled_run([False] * 1500, loss=loss.tolist())
    assert "AMP206" not in {one.code for one in diagnose(run).findings}


def test_the_noise_of_the_loss_does_not_adapt_to_bad_batches():
    """One in nine from step 520 on: they widened the very band that shows them."""
    for steps in (600, 700, 800):
        chance, step = np.random.default_rng(0), np.arange(steps)
        clean = (2 * np.exp(-step / 300) + 0.3) * np.exp(0.3 * chance.standard_normal(steps))
        bad = (step >= 520) & (chance.random(steps) < 0.11)
        norm = np.where(bad, 30.0, 1.0) * (1 + 0.1 * chance.standard_normal(steps))
        loss = np.where(bad, 30 * clean, clean)
        lr = np.full(steps, 1e-3)
        run = HandBuiltRun(step_table(loss=loss.tolist(), grad_norm=norm.tolist(), lr=lr.tolist()))
        assert {one.code: one.severity.value for one in diagnose(run).findings}[
            "AMP206"
        ] == "warning"


def test_one_spike_that_falls_back_from_its_peak_at_once_is_only_told_while_it_is_short():
    for steps, expected in ((24, "info"), (120, "warning")):
        columns = healthy(2000)
        shape = 2.0 * np.exp(-np.arange(700) / (steps / 2))
        columns["loss"][1200:1900] += shape
        columns["grad_norm"][1200:1900] *= 1 + 3 * shape
        assert told(attached(columns)).get("AMP303") == expected, steps


def test_spikes_at_one_distance_that_take_much_of_the_record_are_planned():
    columns, random = healthy(2000), healthy(2000, seed=1)
    for at, other in zip((400, 800, 1200, 1600), (370, 800, 1130, 1620), strict=True):
        for name, begin in ((columns, at), (random, other)):
            shape = 2.0 * np.exp(-np.arange(200) / 35)
            name["loss"][begin : begin + 200] += shape
            name["grad_norm"][begin : begin + 200] *= 1 + shape
    assert told(attached(columns)) == {"AMP303": "info"}
    assert told(attached(random)) == {"AMP303": "warning"}


def test_spikes_that_leave_next_to_all_that_was_learnt_cost_nothing():
    for level, expected in ((4.5, "info"), (0.05, "warning")):
        at = np.arange(3000)
        columns = healthy(3000)
        noise = np.exp(0.3 * np.random.default_rng(0).standard_normal(3000))
        columns["loss"] = 1e-3 * noise + level * np.exp(-at / 60)
        for begin in (2300, 2500, 2700, 2900):
            columns["loss"][begin : begin + 12] += 0.03
            columns["grad_norm"][begin : begin + 12] *= 5
        assert told(attached(columns)).get("AMP303") == expected
