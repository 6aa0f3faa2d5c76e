"""A sweep: between which values it begins to fail, or why that cannot be told."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from cli.test_cli_together import train
from written_runs import write_run

from ampwatch import cli, open_run
from ampwatch.diagnosis import Action, Verdict
from ampwatch.report.compared_run import Outline, higher_is_better, outline_of
from ampwatch.report.comparison import END, Asked, compared
from ampwatch.report.divergence import Divergence
from ampwatch.report.sweep import RATE, Fate, settings_to_sweep, sweep_of, value_text

WELL, ILL, OTHER, SHORT = "well", "ill", "other", "short"
JUDGED = {
    WELL: (Verdict.HEALTHY, Action.KEEP),
    ILL: (Verdict.FAILING, Action.LOWER),
    OTHER: (Verdict.FAILING, Action.NOT_THE_CAUSE),
    SHORT: (Verdict.INCOMPLETE, Action.UNKNOWN),
}


@pytest.fixture(scope="module")
def any_run(tmp_path_factory) -> Outline:
    return outline_of(open_run(write_run(tmp_path_factory.mktemp("runs"))))


def run(of, number, fate, rate=None, **settings):
    """A run that was judged so, with this rate and these settings."""
    verdict, action = JUDGED[fate]
    diagnosis = of.diagnosis
    advice = replace(diagnosis.learning_rate, action=action, current=rate)
    return replace(
        of,
        name=f"run-{number}",
        diagnosis=replace(diagnosis, verdict=verdict, learning_rate=advice),
        settings={name.replace("__", "."): str(value) for name, value in settings.items()},
    )


def swept(of, *rates_and_fates, by=RATE):
    runs = [run(of, n, fate, rate) for n, (rate, fate) in enumerate(rates_and_fates)]
    (setting,) = [one for one in settings_to_sweep(runs) if one.name == by]
    return sweep_of(runs, setting, END, [(1.0, "1")] * len(runs))


def test_the_boundary_lies_between_the_highest_stable_and_the_lowest_failing_rate(any_run):
    found = swept(any_run, (6e-4, ILL), (1e-4, WELL), (3e-4, WELL), (3e-4, WELL), (1e-2, ILL))
    assert (found.stable, found.failing) == (3e-4, 6e-4)
    assert found.sentence.startswith("Stable up to 3e-4 (3 runs), failing from 6e-4 on (2 runs)")
    assert [point.value for point in found.points] == [1e-4, 3e-4, 3e-4, 6e-4, 1e-2]


def test_where_none_failed_there_is_no_upper_limit(any_run):
    found = swept(any_run, (0.1, WELL), (0.2, WELL))
    assert (found.stable, found.failing) == (0.2, None)
    assert "no upper limit. The highest learning rate that was tried is 0.2." in found.sentence


def test_where_all_failed_the_limit_lies_below(any_run):
    found = swept(any_run, (0.5, ILL), (0.2, ILL))
    assert (found.stable, found.failing) == (None, 0.2)
    assert "lies below 0.2, the lowest that was tried" in found.sentence


def test_runs_that_contradict_one_another_give_no_boundary_but_their_names(any_run):
    found = swept(any_run, (0.1, ILL), (0.2, WELL), (0.05, WELL))
    assert (found.stable, found.failing) == (None, None)
    assert "run-0 failed at 0.1 and run-1 is stable at 0.2" in found.sentence
    assert "Something other than the learning rate decides" in found.sentence


def test_at_one_rate_both_are_possible_just_at_the_limit(any_run):
    found = swept(any_run, (0.1, WELL), (0.2, WELL), (0.2, ILL))
    assert (found.stable, found.failing) == (None, None)
    assert "lies about there" in found.sentence


def test_what_something_else_broke_and_what_is_too_short_moves_no_boundary(any_run):
    found = swept(any_run, (0.1, WELL), (0.01, OTHER), (0.02, SHORT), (0.5, ILL))
    assert (found.stable, found.failing) == (0.1, 0.5)
    fates = "Left aside: 1 failed, but not by its rate, 1 too short to judge."
    assert fates in found.sentence


def test_another_setting_fails_with_whatever_broke_the_run(any_run):
    runs = [run(any_run, n, f, config__depth=d) for n, (d, f) in enumerate([(2, WELL), (4, OTHER)])]
    (setting,) = settings_to_sweep(runs)
    found = sweep_of(runs, setting, END, [(1.0, "1"), (2.0, "2")])
    assert (found.setting, found.stable, found.failing) == ("config.depth", 2.0, 4.0)


def test_a_setting_that_is_no_number_is_counted_by_its_values(any_run):
    kinds = [("Adam", WELL), ("Adam", ILL), ("SGD", WELL)]
    runs = [run(any_run, n, fate, optimizer__class=kind) for n, (kind, fate) in enumerate(kinds)]
    (setting,) = settings_to_sweep(runs)
    assert (
        sweep_of(runs, setting, END, [(1.0, "1")] * 3).sentence
        == "Adam: 1 of 2 failed; SGD: 0 of 1 failed."
    )


def test_the_same_rate_under_another_name_and_what_only_names_runs_is_not_swept(any_run):
    runs = [
        run(any_run, n, WELL, rate, config__lr=rate, config__seed=n, command=f"train {n}",
            config__name=f"{n}-x", config__batch=2 * n)
        for n, rate in enumerate((0.1, 0.2, 0.3))
    ]  # fmt: skip
    assert [one.name for one in settings_to_sweep(runs)] == [RATE, "config.batch"]
    found = sweep_of(runs, settings_to_sweep(runs)[0], END, [(1.0, "1")] * 3)
    assert found.besides == ("config.batch",)


def test_the_first_step_of_a_warm_up_is_the_learning_rate_and_another_groups_is_not(any_run):
    peaks, other = (0.003, 0.02, 0.9), (0.1, 0.1, 0.2)
    runs = [
        run(any_run, n, WELL, peak, optimizer__lr=f"{peak / 50:.4g}", optimizer__group__1__lr=own)
        for n, (peak, own) in enumerate(zip(peaks, other, strict=True))
    ]
    assert [one.name for one in settings_to_sweep(runs)] == [RATE, "optimizer.group.1.lr"]
    found = compared(runs, [Divergence(0)] * 2).settings
    assert found[RATE] == ("0.003", "0.02", "0.9")
    assert "optimizer.lr" not in found


def test_what_came_of_a_run_may_be_any_value_that_was_logged(any_run):
    runs = [run(any_run, n, WELL, rate) for n, rate in enumerate((0.1, 0.2))]
    nothing = [Divergence(0)]
    found = compared(runs, nothing, Asked(outcome="best loss")).sweep
    assert [point.outcome for point in found.points] == [any_run.values["loss"].lowest.value] * 2
    with pytest.raises(Exception, match="'val/acc, best' is no outcome of these runs"):
        compared(runs, nothing, Asked(outcome="val/acc, best"))


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("val/acc", True), ("val_loss", False), ("Top1 accuracy", True), ("train/ppl", False),
        ("tokens", None), ("score/lower", True), ("window", None), ("concern", None),
    ],
)  # fmt: skip
def test_whether_higher_is_better_is_known_by_whole_words_alone(name, better):
    assert higher_is_better(name) is better


def test_values_are_written_as_people_do():
    values = (3e-4, 1e-3, 0.25, 16.0, 65536.0, 0.0, 1.25e-5)
    assert [value_text(v) for v in values] == [
        "3e-4",
        "0.001",
        "0.25",
        "16",
        "6.554e4",
        "0",
        "1.25e-5",
    ]


# --- six real trainings --------------------------------------------------------------------------

RATES = (16.0, 0.03, 4.0, 0.1, 1.0, 0.3)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return [train(folder, rate) for rate in RATES]


def test_six_trainings_are_swept_and_their_own_losses_tell_which_failed(capsys, real):
    assert cli.run(["compare", *real, "--sweep"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    body = json.loads(_json(capsys, real))["sweep"]
    ends = {rate: _final_loss(path) for rate, path in zip(RATES, real, strict=True)}
    broke = sorted(rate for rate, loss in ends.items() if not math.isfinite(loss))
    trained = sorted(set(RATES) - set(broke))
    assert broke
    assert trained
    assert (body["stable"], body["failing"]) == (trained[-1], broke[0])
    told = {point["value"]: point["fate"] for point in body["points"]}
    assert told == {rate: (Fate.FAILED if rate in broke else Fate.STABLE).value for rate in RATES}
    assert f"Stable up to {trained[-1]:g} ({len(trained)} runs)" in out
    assert f"failing from {broke[0]:g} on ({len(broke)} runs)" in out


def _json(capsys, runs):
    assert cli.run(["compare", *runs, "--json"]) == 0
    return capsys.readouterr().out


def _final_loss(path):
    return open_run(path).steps.column("loss")[-1].as_py()
