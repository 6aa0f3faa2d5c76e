"""What a run is called of which little was seen, and what its first sentence says."""

from __future__ import annotations

import pytest
from hand_built import HandBuiltRun, Info, scaled_run, step_table

from ampwatch.diagnosis import diagnose


def rows(count, **columns):
    """A run without a scaler of so many steps."""
    return HandBuiltRun(step_table(**{name: [value] * count for name, value in columns.items()}))


def log(count, **columns):
    """The same as another program's lines."""
    run = rows(count, **columns)
    return HandBuiltRun(run.steps, info=Info(source="csv", scaler={}))


@pytest.mark.parametrize("count", [2, 18, 40])
def test_a_run_of_few_steps_with_nothing_found_is_incomplete_and_says_how_few(count):
    told = diagnose(scaled_run([False] * count))
    assert told.verdict.value == "incomplete"
    assert told.calm == (
        f"No problems found in {count} steps, too few to judge the learning rate; the loss and the "
        "loss scale only."
    )
    assert told.learning_rate.action.value == "unknown"


def test_with_more_signals_the_first_sentence_does_not_list_them():
    seen = {"loss": 2.0, "grad_norm": 1.0, "update_norm": 1e-3, "param_norm": 1.0}
    assert diagnose(rows(40, **seen)).calm == (
        "No problems found in 40 steps, too few to judge the learning rate."
    )
    assert diagnose(rows(60, **seen)).calm == "No problems found in 60 steps."


def test_how_many_steps_are_enough_depends_on_what_they_show():
    assert diagnose(rows(60, loss=2.0)).verdict.value == "healthy"
    assert diagnose(rows(60, grad_norm=1.0)).verdict.value == "incomplete"
    assert diagnose(rows(120, grad_norm=1.0)).verdict.value == "healthy"
    scales = scaled_run([False] * 60)
    blind = scales.steps.drop_columns("loss")
    assert diagnose(HandBuiltRun(blind, info=scales.info)).verdict.value == "incomplete"


def test_a_healthy_run_of_which_one_signal_is_recorded_is_judged_by_it_only():
    told = diagnose(rows(200, loss=2.0))
    assert told.verdict.value == "healthy"
    assert told.calm == "No problems found, judged by the loss only."


def test_a_log_of_few_lines_is_judged_by_them_and_says_how_few_they_are():
    few = log(10, loss=2.0, lr=1e-3)
    falling = step_table(loss=[2.0 - n / 50 for n in range(10)], lr=[1e-3] * 10)
    told = diagnose(HandBuiltRun(falling, info=few.info))
    assert told.verdict.value == "healthy"
    assert told.calm == (
        "No problems found in 10 lines, too few to judge the learning rate; the loss only."
    )


@pytest.mark.parametrize(("steps", "epochs", "verdict"), [
    (range(7), False, "incomplete"), (range(7), True, "healthy"),
    (range(0, 700, 100), False, "healthy"), (range(3), True, "incomplete"),
])  # fmt: skip
def test_a_few_single_steps_show_less_than_as_many_epochs_or_lines_far_apart(
    steps, epochs, verdict
):
    table = step_table(step=list(steps), loss=[2.0 - n / 10 for n in range(len(steps))])
    marks = {"step": ["epochs"]} if epochs else {}
    run = HandBuiltRun(table, info=Info(source="generic", scaler={}, marks=marks))
    assert diagnose(run).verdict.value == verdict


@pytest.mark.parametrize(("lines", "verdict"), [(3, "incomplete"), (5, "healthy")])
def test_a_loss_scale_beside_them_does_not_make_a_few_lines_enough(lines, verdict):
    table = step_table(
        step=[50 * n for n in range(lines)], loss=[2.0 - n / 10 for n in range(lines)],
        scale=[65536.0] * lines,
    )  # fmt: skip
    assert diagnose(HandBuiltRun(table, info=Info(source="csv"))).verdict.value == verdict


def test_what_was_found_in_few_steps_stands():
    skipped = [False] * 25 + [True] * 15
    assert diagnose(scaled_run(skipped)).verdict.value == "failing"
    slow = diagnose(scaled_run([False] * 30 + [True] * 5))
    assert slow.verdict.value == "warning"
    assert slow.calm is None


def test_how_a_short_run_ended_is_said_after_how_little_it_shows():
    told = diagnose(scaled_run([False] * 18, clean_end=False))
    assert told.calm.startswith("No problems found in 18 steps, too few")
    assert "no end mark" in told.calm
    assert "no end mark" not in told.while_running().calm


def test_the_json_keeps_its_keys_and_gives_the_reason_with_the_advice():
    body = diagnose(scaled_run([False] * 18)).to_json()
    assert set(body) == {
        "schema",
        "run",
        "verdict",
        "findings",
        "learning_rate",
        "outcome",
        "causes",
    }
    assert body["verdict"] == "incomplete"
    assert body["learning_rate"]["action"] == "unknown"
    assert "In 18 steps the loss has not come down" in body["learning_rate"]["because"]


def test_nothing_accepted_yet_is_said_as_before():
    told = diagnose(scaled_run([True] * 4))
    assert told.calm == "The log ends before anything could be judged."
