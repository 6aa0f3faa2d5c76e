"""The rate is lowered by what the diagnosis advises, for a while, and comes back."""

import pytest
import torch
from guarded_training import Training

from ampwatch.guarding import lowered_rate

RATE = 0.01


class Told:
    """What the diagnosis says, at once."""

    def __init__(self, factor, why="as the diagnosis advises"):
        self.answers = factor, why
        self.asked = 0

    def __call__(self, _folder):
        self.asked += 1
        return self

    def answer(self):
        return self.answers

    def drop(self):
        pass


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(lowered_rate, "HOLD_STEPS", 20)
    monkeypatch.setattr(lowered_rate, "PART_STEPS", 5)


def told(monkeypatch, factor, **more):
    advice = Told(factor, **more)
    monkeypatch.setattr(lowered_rate, "Advice", advice)
    return advice


class Scheduled(Training):
    """The same with a schedule."""

    def __init__(self, schedule=None, **options):
        super().__init__(lambda p: torch.optim.AdamW(p, RATE), **options)
        make = schedule or (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda _: 1.0))
        self.schedule = make(self.optimizer)

    def one(self, *args, **options):
        super().one(*args, **options)
        self.schedule.step()

    def attach(self, folder, **options):
        return super().attach(folder, **{"lower_rate": True, **options})

    @property
    def rate(self):
        return self.optimizer.param_groups[0]["lr"]


def rates_of(run):
    return run.steps.column("lr").to_pylist()


@pytest.mark.usefixtures("short")
def test_after_a_second_outlier_the_rate_is_lowered_and_comes_back_to_what_it_was(
    tmp_path, monkeypatch
):
    advice = told(monkeypatch, 0.25)
    guarded = Scheduled().attach(tmp_path, dry_run=False).steps(150, {80, 90})
    run, events = guarded.close()
    rates = rates_of(run)
    assert rates[:91] == [RATE] * 91
    assert rates[91:111] == pytest.approx([RATE / 4] * 20)
    assert rates[111] == pytest.approx(RATE * 0.25 ** (2 / 3))
    assert rates[-1] == pytest.approx(RATE)
    assert advice.asked == 1
    decided = [(step, one["decided"]) for step, one in events][1:]
    assert decided == [
        (80, "leave-out"),
        (90, "leave-out"),
        (91, "lower-rate"),
        (121, "raise-rate"),
    ]


@pytest.mark.usefixtures("short")
def test_the_schedule_goes_on_from_the_lowered_rate(tmp_path, monkeypatch):
    told(monkeypatch, 0.5)
    guarded = Scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 300))
    guarded.attach(tmp_path, dry_run=False).steps(105, {80, 90})
    alone = Scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 300)).steps(105)
    assert guarded.rate == pytest.approx(alone.rate / 2)
    guarded.close()
    assert guarded.rate == pytest.approx(alone.rate)  # the watch has ended


def test_one_outlier_or_two_far_apart_lower_nothing(tmp_path, monkeypatch):
    advice = told(monkeypatch, 0.25)
    Scheduled().attach(tmp_path, dry_run=False).steps(200, {80, 190}).close()
    assert advice.asked == 0


@pytest.mark.parametrize("options", [{"dry_run": True}, {"lower_rate": False}, {"most": (2, 1000)}])
def test_nothing_is_lowered_in_a_dry_run_where_it_may_not_or_at_the_cap(
    tmp_path, monkeypatch, options
):
    advice = told(monkeypatch, 0.25)
    guarded = Scheduled().attach(tmp_path, **{"dry_run": False, **options}).steps(110, {80, 90})
    run, _ = guarded.close()
    assert advice.asked == 0
    assert set(rates_of(run)) == {RATE}


def test_a_diagnosis_that_does_not_blame_the_rate_lowers_nothing_and_is_told(tmp_path, monkeypatch):
    told(monkeypatch, None, why="the diagnosis does not say to lower it (keep)")
    guarded = Scheduled().attach(tmp_path, dry_run=False).steps(110, {80, 90})
    run, events = guarded.close()
    assert set(rates_of(run)) == {RATE}
    assert events[-1][1]["told"] == (
        "The learning rate stays: the diagnosis does not say to lower it (keep)."
    )


def test_the_callback_may_forbid_it(tmp_path, monkeypatch):
    told(monkeypatch, 0.25)
    guarded = Scheduled().attach(
        tmp_path, dry_run=False, on_action=lambda proposed: proposed.action != "lower-rate"
    )
    guarded.steps(110, {80, 90})
    run, events = guarded.close()
    assert set(rates_of(run)) == {RATE}
    assert "on_action forbids it" in events[-1][1]["told"]


@pytest.mark.usefixtures("short")
def test_a_rate_that_the_program_sets_meanwhile_is_let_be(tmp_path, monkeypatch):
    told(monkeypatch, 0.25)
    guarded = Training(lambda p: torch.optim.AdamW(p, RATE)).attach(
        tmp_path, dry_run=False, lower_rate=True
    )
    guarded.steps(95, {80, 90})
    guarded.optimizer.param_groups[0]["lr"] = 0.003
    guarded.steps(60)
    run, events = guarded.close()
    assert set(rates_of(run)[96:]) == {0.003}
    assert "Somebody else has set" in events[-1][1]["told"]
