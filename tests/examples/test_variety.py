"""The variety: one number gives the same cases, labels hold, its book is never rewritten."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def gallery_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (ROOT, ROOT / "benchmarks"):
        monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def command() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("variety", ROOT / "benchmarks" / "variety.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("variety", None)


def first_of(mechanism: str, *, seed: int = 5, most_steps: int = 20_000, **wanted: Any) -> Any:
    """The first case of this number in which the mechanism acts."""
    from examples.gallery.variety.composing import compose, setting_of

    for number in range(20_000):
        setting = setting_of(seed, number)
        fits = setting.mechanism == mechanism and setting.steps <= most_steps
        if fits and all(getattr(setting, name) == value for name, value in wanted.items()):
            return compose(seed, number)
    raise AssertionError(f"no case of {mechanism}")


def test_the_same_number_gives_the_same_case() -> None:
    from examples.gallery.variety.composing import compose

    for number in range(6):
        one, other = compose(3, number), compose(3, number)
        assert one.setting == other.setting
        assert one.truth == other.truth
        np.testing.assert_array_equal(one.columns.loss, other.columns.loss)
        np.testing.assert_array_equal(one.columns.scale, other.columns.scale)


def test_another_number_gives_other_cases() -> None:
    from examples.gallery.variety.composing import setting_of

    assert [setting_of(1, n) for n in range(9)] != [setting_of(2, n) for n in range(9)]


def test_every_family_of_a_case_is_of_its_split_and_no_family_of_two() -> None:
    from examples.gallery.variety.composing import setting_of
    from examples.gallery.variety.families import split_of

    for number in range(300):
        setting = setting_of(7, number)
        families = setting.architecture, setting.optimizer, setting.mechanism
        assert {split_of(family) for family in families} == {setting.split}


def test_each_split_has_healthy_and_faulty_mechanisms_and_several_optimizers() -> None:
    from examples.gallery.variety.architectures import ARCHITECTURES
    from examples.gallery.variety.families import SPLITS, members
    from examples.gallery.variety.optimizers import OPTIMIZERS
    from examples.gallery.variety.registry import all_mechanisms

    known = all_mechanisms()
    for split in SPLITS:
        mine = [known[name] for name in members(known, split)]
        assert sum(one.is_benign for one in mine) >= 4
        assert len({one.kind for one in mine if not one.is_benign}) >= 10
        assert len(members(ARCHITECTURES, split)) >= 5
        assert len({OPTIMIZERS[name].law for name in members(OPTIMIZERS, split)}) >= 3


def test_the_split_asked_for_changes_no_case() -> None:
    from examples.gallery.variety.composing import numbers, setting_of

    every = list(numbers(30, None))
    blind = list(numbers(10, "blind"))
    assert blind == [n for n in every if setting_of(0, n).split == "blind"]


def test_a_poisoned_run_without_a_scaler_is_nan_from_the_next_step_on() -> None:
    case = first_of("nan/poisoned", is_twin=False)
    at = case.truth.onset
    assert np.isfinite(case.columns.loss[:at]).all()
    assert np.isnan(case.columns.loss[at:]).all()
    assert case.truth.verdicts == ("failing",)


def test_a_sweep_of_the_rate_fails_where_it_passes_its_limit() -> None:
    case = first_of("rate/swept-up", is_twin=False, seen="attached")
    rate, onset = case.columns.rate, case.truth.onset
    assert (np.diff(rate) > 0).all()
    limit = case.story.instability.limit[onset]
    assert rate[onset - 2] < limit < rate[onset + 2]


def test_a_scale_that_grows_each_step_or_two_costs_a_third_of_them() -> None:
    case = first_of("storm/short-interval", is_twin=False)
    late = case.columns.skipped[len(case.columns) // 2 :]
    assert 0.25 < late.mean() < 0.6


def test_a_shard_comes_back_at_the_same_place_of_each_epoch() -> None:
    case = first_of("spike/every-epoch", is_twin=False, seen="attached")
    high = np.flatnonzero(case.story.excess > 0.9 * case.story.excess.max())
    starts = high[np.diff(high, prepend=-9) > 1]
    assert len(starts) >= 4
    assert np.diff(starts).std() <= 1


def test_a_root_at_zero_gives_a_finite_loss_and_leaves_nothing() -> None:
    case = first_of("nan/root-at-zero", is_twin=False)
    at = case.truth.onset - case.story.first_step
    assert np.isfinite(case.columns.loss[: at + 1]).all()
    assert not np.isfinite(case.columns.grad_norm[at])
    assert np.isnan(case.columns.loss[at + 1 :]).all()


def test_what_only_looks_ill_is_healthy_and_does_look_ill() -> None:
    burst = first_of("calm/clipped-explosions")
    norm = burst.columns.grad_norm
    assert norm.max() > 8 * np.median(norm)
    hump = first_of("calm/early-hump", seen="attached")
    assert hump.story.excess.argmax() < 0.05 * len(hump.columns)
    empty = first_of("calm/empty-batches", precision="bf16")
    assert (empty.columns.loss == 0).any()
    assert all(case.truth.is_healthy for case in (burst, hump, empty))


def test_the_twin_of_a_fault_is_healthy_and_shows_none_of_it() -> None:
    case = first_of("nan/poisoned", is_twin=True)
    assert case.truth.is_healthy
    assert np.isfinite(case.columns.loss).all()
    assert np.isfinite(case.columns.param_norm).all()


def test_the_scale_halves_at_each_skip_and_grows_after_an_interval() -> None:
    case = first_of("calm/sawtooth")
    seen, interval = case.columns, case.story.growth_interval
    np.testing.assert_array_equal(seen.scale[1:], seen.scale_after[:-1])
    np.testing.assert_array_equal(seen.scale_after[seen.skipped], seen.scale[seen.skipped] / 2)
    grown = np.flatnonzero(seen.scale_after > seen.scale)
    assert len(grown)
    assert all(not seen.skipped[max(0, at - interval + 1) : at + 1].any() for at in grown)


def test_a_skipped_step_moves_no_weight() -> None:
    case = first_of("storm/heavy-batches", is_twin=False)
    assert case.columns.skipped.any()
    assert (case.columns.update_norm[case.columns.skipped] == 0).all()


def test_a_rate_over_the_limit_is_asked_for_only_where_the_loss_has_not_come_back() -> None:
    case = first_of("rate/at-once", is_twin=False, seen="attached")
    end = case.columns.loss[-20:]
    above = np.nanmedian((end - case.story.task.level[-20:]) / case.story.task.unit[-20:])
    asked = bool(case.truth.demands)
    assert asked == (not np.isfinite(end).all() or above >= 0.2)
    assert not asked or case.truth.by_rate


def test_what_three_columns_cannot_show_is_not_asked_of_who_sees_them() -> None:
    from examples.gallery.variety.truth import Demand, Truth

    both = (("loss", "update_norm"), ("loss", "grad_norm"))
    truth = Truth(
        (Demand(("AMP301",), both),), verdicts=("failing",), rate=("lower",), by_rate=True
    )
    assert truth.as_shown(frozenset({"loss", "grad_norm"})) == truth
    blind = truth.as_shown(frozenset({"loss", "lr"}))
    assert blind.demands == ()
    assert "AMP301" in blind.may
    assert blind.verdicts == ()
    assert set(blind.rate) == {"lower", "not-the-cause", "unknown"}
    assert replace(truth, by_rate=False).as_shown(frozenset({"loss"})).rate == ()


def test_a_second_demand_stands_in_where_the_first_cannot_be_seen() -> None:
    case = first_of("overflow/forward", is_twin=False)
    layers = {"layers", "loss", "scale", "events"}
    (seen,) = case.truth.as_shown(frozenset(layers)).demands
    (unseen,) = case.truth.as_shown(frozenset({"loss", "scale"})).demands
    assert seen.codes == ("AMP203",)
    assert "AMP204" in unseen.codes


def said(
    *findings: tuple[str, str, str | None], verdict: str = "healthy", action: str = "keep"
) -> Any:
    from examples.gallery.variety.judging import Said

    return Said(findings, verdict, action)


def test_any_of_a_group_meets_a_demand_and_every_other_alarm_is_false() -> None:
    from examples.gallery.variety.judging import judge
    from examples.gallery.variety.truth import Demand, Truth

    truth = Truth((Demand(("AMP103", "AMP104"), (("scale",),)),), frozenset({"AMP204"}))
    told = (("AMP104", "error", None), ("AMP204", "error", None), ("AMP401", "error", None))
    judged = judge(truth, said(*told))
    assert (judged.hits, judged.misses, judged.false) == (1, (), ("AMP401",))
    quiet = judge(truth, said(("AMP103", "info", None)))
    assert (quiet.hits, quiet.misses) == (0, ("AMP103|AMP104",))


def test_a_warning_on_a_healthy_run_is_false_and_information_is_not() -> None:
    from examples.gallery.variety.judging import judge
    from examples.gallery.variety.truth import healthy

    truth = healthy(told=("AMP102",))
    assert judge(truth, said(("AMP102", "info", None))).false == ()
    loud = judge(truth, said(("AMP102", "warning", None), action="lower"))
    assert (loud.false, loud.false_warning, loud.false_error) == (("AMP102",), True, False)
    assert loud.lowered_healthy


def test_what_is_too_grave_for_a_spike_that_healed_is_false() -> None:
    from examples.gallery.variety.judging import judge

    case = first_of("spike/one", is_twin=False)
    assert case.truth.worst in {"info", "warning"}
    told = judge(case.truth, said(("AMP303", "error", None)))
    assert (told.told, told.false) == (1, ("AMP303",))


@pytest.mark.parametrize("seen", ["attached", "scalars", "table", "text"])
def test_a_collapse_is_seen_whichever_way_it_is_logged(seen: str, tmp_path: Path) -> None:
    import ampwatch
    from examples.gallery.variety.judging import said as said_by
    from examples.gallery.variety.seeing import write

    case = first_of("collapse/for-good", seen=seen, is_twin=False, most_steps=2000)
    folder, shown = write(case, tmp_path)
    run = ampwatch.open_run(folder)
    assert abs(run.steps.num_rows - len(case.columns)) <= 2
    if "scale" in shown:
        assert said_by(ampwatch.diagnose(run)).verdict == "failing"


def test_twenty_cases_make_a_table_and_no_blind_miss_is_told(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from examples.gallery.variety import composing

    short = ((2.0, 3.0, 1.0),)  # a table needs no long runs
    monkeypatch.setattr(composing, "_LENGTHS", short)
    out, misses = tmp_path / "table.md", tmp_path / "misses.txt"
    words = ["--seed", "4", "--cases", "20", "--out", str(out), "--misses", str(misses)]
    assert command.main(words) == 0
    text = out.read_text("utf-8")
    assert "## Number 4" in text
    assert "| all | 20 |" in text
    assert text.strip() == capsys.readouterr().out.strip()
    assert "(blind," not in misses.read_text("utf-8")


def test_a_number_that_was_looked_at_is_refused(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "first_looks.md"
    book.write_text("## Number 12\n\n2030-01-01 00:00 UTC, commit `abc`: 9 cases\n", "utf-8")
    before = book.read_text("utf-8")
    words = ["--seed", "12", "--cases", "1", "--first-look", "--book", str(book)]
    assert command.main(words) == 2
    assert "2030-01-01 00:00 UTC" in capsys.readouterr().err
    assert book.read_text("utf-8") == before
    words[1] = "13"
    assert command.main(words) == 0
    after = book.read_text("utf-8")
    assert after.startswith(before)
    assert "## Number 13" in after


def test_a_trained_case_measures_for_itself_that_updates_are_rounded_away() -> None:
    from examples.gallery.variety.training.faults import RoundsUpdatesAway
    from examples.gallery.variety.training.loops import Plan

    plan = Plan("net/shallow", "adamw", "constant", "bf16-weights", 30, 1, at=0, severity=0.9)
    loop = RoundsUpdatesAway(plan, 0.0035)
    loop.go()
    assert sorted(loop.unmoved)[15] > 0.65
    assert loop.truth().demands[0].codes == ("AMP418",)


def test_a_rate_is_called_too_high_only_where_its_own_training_failed() -> None:
    from examples.gallery.variety.training.limits import Limit

    limit = Limit(stable=0.1, unstable=0.2, best_rate=0.1, first=2.0, best=1.0)
    assert not limit.fails([2.0] * 5 + [1.1] * 30, 0.4)
    assert limit.fails([2.0] * 5 + [1.9] * 30, 0.4)
    assert limit.fails([2.0] * 5 + [float("nan")] * 30, 0.4)
    assert not limit.fails([2.0] * 5 + [1.9] * 30, 0.01)  # too low is not too high


def test_every_part_of_the_trained_variety_belongs_to_each_split() -> None:
    from examples.gallery.variety.families import SPLITS, members
    from examples.gallery.variety.training.faults import FAULTS
    from examples.gallery.variety.training.loops import TORCH
    from examples.gallery.variety.training.nets import NETS

    for split in SPLITS:
        assert len(members(FAULTS, split)) >= 4
        assert len(members(NETS, split)) >= 4
        assert len(members(TORCH, split)) >= 2


def test_ranks_that_part_have_one_history_up_to_there() -> None:
    case = first_of("ranks/part", is_twin=False)
    at, other = case.truth.onset, case.partner
    np.testing.assert_array_equal(case.columns.scale[: at + 1], other.scale[: at + 1])
    assert (case.columns.scale[at + 1 :] != other.scale[at + 1 :]).any()
    assert (case.columns.loss != other.loss).any()


def test_an_optimizer_without_a_state_loses_none_at_a_restart() -> None:
    case = first_of("restart/moments-lost", is_twin=False, optimizer="sgd")
    assert case.truth.is_healthy
    assert not case.story.excess.any()


def test_a_log_of_each_so_many_steps_tells_as_many_lines_and_of_faults_that_last(
    tmp_path: Path,
) -> None:
    import ampwatch
    from examples.gallery.variety.composing import compose, setting_of
    from examples.gallery.variety.registry import all_mechanisms
    from examples.gallery.variety.seeing import write

    known = all_mechanisms()
    thinned = (
        n for n in range(3000)
        if setting_of(5, n).every > 1 and setting_of(5, n).seen == "table"
    )  # fmt: skip
    case = next(case for case in (compose(5, n) for n in thinned) if case.setting.every > 1)
    assert known[case.setting.mechanism].is_lasting
    folder, _ = write(case, tmp_path)
    lines = len(case.columns) // case.setting.every
    assert lines >= 100
    assert ampwatch.open_run(folder).steps.num_rows == lines
