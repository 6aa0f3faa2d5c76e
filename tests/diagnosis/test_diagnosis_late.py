"""Faults that begin late or come on slowly, on records whose truth is written down."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import HandBuiltRun, Info, event_table, scaled_run, step_table

from ampwatch.diagnosis import Engine, diagnose
from ampwatch.diagnosis.scale_segments import EstablishedLevels


def finding(run, code):
    """A run's finding of this code, None if it has none."""
    return next((f for f in diagnose(run).findings if f.code == code), None)


def alarms(run):
    """{code: severity} of the warnings and errors of a run."""
    found = diagnose(run).findings
    return {f.code: f.severity.value for f in found if f.severity.value != "info"}


def skips(pattern: str) -> list[bool]:
    """`..x.` : accepted, accepted, skipped, accepted."""
    return [mark == "x" for mark in pattern]


def bearing(octaves, *, interval, start=65536.0, **rest):
    """A run whose steps overflow above these scales, in octaves."""
    scale, streak, skipped = start, 0, []
    for limit in octaves:
        skip = scale > 2.0**limit
        skipped.append(skip)
        streak = 0 if skip else streak + 1
        scale = scale / 2 if skip else scale * 2 if streak == interval else scale
        streak = 0 if streak == interval else streak
    return scaled_run(skipped, start=start, growth_interval=interval, **rest)


def sinking(steps=2000, down=10.0, then=0):
    return np.concatenate([
        np.full(1000, 16.5), 16.5 - down * np.linspace(0, 1, steps), np.full(then, 16.5 - down),
    ])  # fmt: skip


@pytest.mark.parametrize("interval", [100, 400])
def test_a_scale_that_sinks_for_thousands_of_steps_is_a_collapse_though_no_skips_are_close(
    interval,
):
    one = finding(bearing(sinking(), interval=interval), "AMP103")
    assert one.severity.value == "error"
    assert 990 <= one.first_step <= 1300
    assert "still falling" in one.summary


def test_a_scale_that_sank_and_holds_there_is_a_warning():
    one = finding(bearing(sinking(then=2000), interval=400), "AMP103")
    assert one.severity.value == "warning"
    assert "has stayed there" in one.summary


def test_a_scale_that_sank_less_or_came_back_or_was_set_by_hand_is_no_collapse():
    assert "AMP103" not in alarms(bearing(sinking(down=6.0), interval=400))
    back = np.concatenate([sinking(), np.full(3000, 16.5)])
    assert "AMP103" not in alarms(bearing(back, interval=200))
    scale = [2.0**16] * 500 + [2.0**6] * 500
    steps = step_table(scale=scale, scale_after=[*scale[1:], 2.0**6], skipped=[False] * 1000,
                       loss=[1.0] * 1000)  # fmt: skip
    assert alarms(HandBuiltRun(steps, events=event_table([(499, "scale-set", {})]))) == {}


def test_a_lone_skip_before_a_collapse_is_not_its_beginning():
    one = finding(scaled_run(skips("." * 100 + "x" + "." * 50 + "x" * 30)), "AMP103")
    assert (one.first_step, one.severity.value) == (151, "error")
    assert "30 steps were skipped" in one.cause


def test_a_fall_that_limps_begins_with_its_first_skip():
    run = scaled_run(skips("." * 100 + "xxx" + ("." * 25 + "xxx") * 5))
    assert finding(run, "AMP103").first_step == 100


@pytest.mark.parametrize(("clean", "told"), [(True, "warning"), (False, None)])
def test_a_finished_record_that_ends_in_the_middle_of_a_fall_says_so(clean, told):
    run = scaled_run(skips("." * 200 + "x" * 5), clean_end=clean)
    assert alarms(run).get("AMP103") == told


def test_a_last_tooth_of_a_saw_is_no_fall():
    run = scaled_run(skips(("." * 50 + "x") * 5), growth_interval=50)
    assert alarms(run) == {}


def test_a_storm_that_begins_late_is_told_whatever_was_free_before_it():
    quiet = "." * 30 + "x" + "." * 25 + "x" + ("." * 100 + "x") * 200
    run = scaled_run(skips(quiet + ("." * 60 + "x") * 13), growth_interval=100)
    assert "AMP105" not in alarms(scaled_run(skips(quiet), growth_interval=100))
    one = finding(run, "AMP105")
    assert one.severity.value == "warning"
    assert "in the last" in one.summary
    assert one.first_step > 20_000


def test_a_search_that_goes_on_ever_more_seldom_is_no_storm_and_even_gaps_are_one():
    def run(*skipped):
        return scaled_run([step in skipped for step in range(500)])

    assert alarms(run(0, 1, 2, 3, 8, 19, 41, 95, 210, 450)) == {}
    assert alarms(run(0, 1, 2, 3, 80, 160, 240, 320, 400)) == {"AMP105": "warning"}


def test_a_search_after_a_reset_may_go_on_as_the_first_did():
    first = scaled_run([True] * 4 + [False] * 496)
    then = scaled_run([step in {0, 1, 2, 8, 20, 45, 100, 220} for step in range(300)])
    both = {
        name: first.steps[name].to_pylist() + then.steps[name].to_pylist()
        for name in ("scale", "scale_after", "skipped", "loss")
    }
    assert alarms(HandBuiltRun(step_table(**both), info=first.info)) == {"AMP108": "warning"}


@pytest.mark.parametrize("block_rows", [1, 7, 64])
def test_a_search_that_goes_on_is_the_same_however_the_rows_came(block_rows):
    skipped = [step in {0, 1, 5, 6, 30, 31, 32, 100, 101, 260} for step in range(400)]
    run = scaled_run(skipped)
    assert Engine(block_rows=block_rows).feed(run).diagnosis() == diagnose(run)


@pytest.mark.parametrize("tells_before", [True, False])
def test_a_log_of_every_fiftieth_step_shows_growth_by_where_a_skip_leaves_the_scale(tells_before):
    """Its interval, 200 steps, is nowhere told; each skip finds the scale where it had grown to."""
    step, before, after, skipped = [], [], [], []
    for at in range(0, 8000, 50):
        step.append(at)
        before.append(None)
        after.append(None if at else 2.0**15)
        skipped.append(False)
        if at and at % 200 == 0:
            step.append(at + 1)
            before.append(2.0**16 if tells_before else None)
            after.append(2.0**15)
            skipped.append(True)
    steps = step_table(step=step, scale=before, scale_after=after, skipped=skipped,
                       loss=np.linspace(2, 1, len(step)).tolist())  # fmt: skip
    run = HandBuiltRun(steps, info=Info(source="text", scaler={}))
    assert alarms(run) == {}
    assert finding(run, "AMP102").severity.value == "info"


def test_skips_that_a_growing_accumulation_explains_are_no_storm():
    count = [1] * 50 + [4] * 50 + [16] * 100
    skipped = skips("." * 50 + "xx" + "." * 48 + "xx" + "." * 98)
    scale = 65536.0 * 2.0 ** -np.cumsum([0, *skipped[:-1]])
    after = 65536.0 * 2.0 ** -np.cumsum(skipped)
    rows = {"scale": scale.tolist(), "scale_after": after.tolist(), "skipped": skipped}
    loss = [2.0 * n for n in count]
    grown = HandBuiltRun(step_table(**rows, loss=loss, micro_batches=count))
    plain = HandBuiltRun(step_table(**rows, loss=[2.0] * 200, micro_batches=[1] * 200))
    assert "AMP105" not in alarms(grown)
    assert alarms(plain)["AMP105"] == "warning"


def test_a_scale_that_leaves_all_that_ever_overflowed_is_a_runaway_before_it_is_endless():
    ceiling = np.concatenate([np.full(600, 16.5), np.full(1250, 120.0)])
    one = finding(bearing(ceiling, interval=50), "AMP106")
    assert one.severity.value == "warning"
    assert finding(bearing(ceiling[600:], interval=50), "AMP106") is None


def leaping(*, loss=1.5, norm=3.0, update=4.0, rows=2000, at=1500, heals=200.0, **rest):
    """A run that goes on otherwise after step `at`, and heals."""
    random = np.random.default_rng(0)
    after = np.exp(-np.clip(np.arange(rows) - at, 0, None) / heals)
    change = np.where(np.arange(rows) >= at, after, 0.0)
    noise = np.exp(0.05 * random.standard_normal((3, rows)))
    columns = {
        "loss": 2.0 * noise[0] * (1 + (loss - 1) * change),
        "grad_norm": noise[1] * (1 + (norm - 1) * change),
        "update_norm": 1e-2 * noise[2] * (1 + (update - 1) * change),
        "param_norm": np.full(rows, 10.0),
    }
    columns |= rest.pop("columns", {})
    scale = [65536.0] * rows
    steps = step_table(scale=scale, scale_after=scale, skipped=[False] * rows,
                       **{name: list(values) for name, values in columns.items()})  # fmt: skip
    return HandBuiltRun(steps, **rest)


@pytest.mark.parametrize("kind", ["state-loaded", "started"])
def test_a_restart_without_the_optimizers_state_is_told_though_the_run_got_over_it(kind):
    one = finding(leaping(events=event_table([(1500, kind, {})])), "AMP306")
    assert (one.severity.value, one.first_step) == ("warning", 1500)
    assert "the updates" in one.cause


@pytest.mark.parametrize("back", [300, 1400])
def test_a_seam_of_steps_is_a_restart_and_is_held_against_the_steps_it_goes_on_from(back):
    step = np.arange(2000)
    step[1500:] -= back
    one = finding(leaping(columns={"step": step}), "AMP306")
    assert one.first_step == 1500 - back
    assert "before step" in one.summary


def raised(*, loss=2.0, norm=3.0, rate=10.0, **rest):
    """A run whose rate is raised at step 1500, after which loss and norm climb for long."""
    climb = np.clip((np.arange(6000) - 1700) / 1000, 0, 1)
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal((2, 6000)))
    columns = {
        "loss": 2.0 * noise[0] * loss**climb,
        "grad_norm": noise[1] * norm**climb,
        "lr": np.where(np.arange(6000) < 1500, 1e-4, 1e-4 * rate),
    }
    return leaping(rows=6000, at=9000, columns=columns, **rest)


def test_a_restart_at_a_higher_rate_is_told_where_the_loss_climbs_later_and_stays():
    restart = event_table([(1500, "started", {})])
    one = finding(raised(events=restart), "AMP306")
    assert (one.severity.value, one.first_step) == ("warning", 1500)
    assert "The learning rate rose from 0.0001 to 0.001" in one.cause
    for harmless in ({"norm": 1.0}, {"loss": 1.1}, {"rate": 1.0}):
        assert "AMP306" not in alarms(raised(events=restart, **harmless))


def test_a_leap_without_a_restart_or_with_norms_in_their_bands_is_none():
    restart = event_table([(1500, "state-loaded", {})])
    assert "AMP306" not in alarms(leaping())
    assert "AMP306" not in alarms(leaping(norm=1.0, update=1.2, events=restart))
    assert "AMP306" not in alarms(leaping(loss=1.05, events=restart))
    assert "AMP306" not in alarms(leaping(at=2500, events=restart))


def test_a_restart_is_judged_alike_however_the_rows_came():
    run = leaping(events=event_table([(1500, "state-loaded", {})]))
    whole = diagnose(run)
    for rows in (13, 64, 700):
        assert Engine(block_rows=rows).feed(run).diagnosis() == whole


def test_a_norm_that_drifts_over_the_last_fifth_only_is_told():
    flat, drift = np.zeros(8000), np.linspace(0, 3, 2000)
    norm = 2.0 ** np.concatenate([flat, drift])
    one = finding(leaping(rows=10_000, at=20_000, columns={"grad_norm": norm}), "AMP304")
    assert one.severity.value == "warning"
    assert 7000 <= one.first_step <= 8100


def test_a_norm_that_swings_and_comes_back_to_where_it_was_is_no_drift():
    swing = 2.0 ** (1.5 * np.sin(np.arange(10_000) / 10_000 * 8 * np.pi - np.pi / 2))
    run = leaping(rows=10_000, at=20_000, columns={"grad_norm": swing})
    assert finding(run, "AMP304") is None


def test_a_log_whose_rate_never_rose_says_so():
    def log(rate):
        steps = step_table(loss=np.linspace(2, 1.9, len(rate)).tolist(), lr=rate)
        return HandBuiltRun(steps, info=Info(source="csv", scaler={}))

    assert alarms(log([0.0] * 10)) == {"AMP308": "warning"}
    assert alarms(log([0.0] * 30)) == {"AMP308": "error"}
    assert "AMP308" not in alarms(log([0.0] * 29 + [1e-4]))
    native = HandBuiltRun(step_table(loss=[2.0] * 30, lr=[0.0] * 30))
    assert "AMP308" not in alarms(native)


def test_a_level_that_stands_over_several_cells_is_in_each_and_odd_positions_are_in_the_first():
    levels = EstablishedLevels()
    levels.establish(10, 40, 1040, 2.0**7, skips=3)
    assert levels.levels[0, :4].tolist() == [7, 7, 7, float("-inf")]
    assert levels.levels[1, :3].tolist() == [1015, 1031, 1040]
    levels.count_loose(-(2**62), 4, 1)
    levels.count_loose(20, 2, 2)
    assert levels.loose[:, :2].tolist() == [[4, 2], [1, 2]]


def test_a_restart_after_which_the_loss_stands_far_off_is_told_though_norms_rose_little():
    restart = event_table([(1500, "state-loaded", {})])
    assert "AMP306" in alarms(leaping(loss=1.6, norm=1.6, update=1.0, events=restart))
    assert "AMP306" not in alarms(leaping(loss=1.6, norm=1.1, update=1.0, events=restart))


def test_a_restart_of_the_schedule_that_comes_again_is_no_jump_once_the_loss_is_at_its_best():
    at, random = np.arange(3200), np.random.default_rng(0)
    lr = 0.05 * (1 + np.cos(np.pi * (at % 1000) / 1000)) + 1e-6
    loss = 0.6 + 1.5 * np.exp(-at / 600) + 5 * lr * np.exp(-at / 6000)
    columns = {"loss": loss + 0.04 * random.standard_normal(3200), "lr": lr}
    columns["grad_norm"] = np.exp(0.2 * random.standard_normal(3200))
    rows = {name: values.tolist() for name, values in columns.items()}
    assert "AMP306" not in alarms(HandBuiltRun(step_table(**rows)))
