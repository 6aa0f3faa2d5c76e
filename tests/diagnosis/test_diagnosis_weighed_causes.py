"""The causes that a diagnosis lists, with their probabilities and signs."""

from __future__ import annotations

import numpy as np
from hand_built import HandBuiltRun, Info, event_table, scaled_run, step_table

from ampwatch.diagnosis import diagnose


def logged(loss, **columns):
    run = HandBuiltRun(step_table(loss=list(loss), **columns))
    run.info = Info(source="generic")
    return run


def causes(run):
    return diagnose(run).to_json()["causes"]


def test_a_run_without_trouble_has_no_causes():
    assert causes(logged(np.linspace(3, 1, 200))) == []


def test_what_was_seen_done_is_certain_and_names_its_finding():
    misuse = event_table([(1, "misuse", {"code": "AMP404", "step": 1})])
    run = scaled_run([False] * 200, loss=np.linspace(3, 1, 200).tolist(), events=misuse)
    first = causes(run)[0]
    assert (first["code"], first["probability"]) == ("AMP404", 1.0)
    assert set(first) == {"cause", "code", "probability", "for", "against"}


RISES = [*np.linspace(3, 1, 100), *np.geomspace(1, 80, 60)]


def test_a_chance_of_the_learning_rate_is_the_one_that_the_advice_gives():
    norm = [*([0.5] * 60), *np.geomspace(0.5, 40, 100)]
    told = diagnose(logged(RISES, grad_norm=norm, lr=[1e-3] * 160))
    assert told.learning_rate.action.value == "lower"
    chances = {one.cause: one.probability for one in told.causes}
    assert abs(chances["the learning rate"] - told.learning_rate.probability) < 0.01
    assert all(one.signs_for for one in told.causes)


def test_a_learning_rate_that_the_advice_clears_is_not_listed():
    told = diagnose(logged(RISES, grad_norm=[0.5] * 160, lr=[1e-3] * 160))
    assert told.learning_rate.action.value == "not-the-cause"
    assert {one.cause for one in told.causes} == {
        "the data", "a change of the data or of the objective",
    }  # fmt: skip


def test_what_was_announced_is_the_learning_rate_where_the_table_has_no_say():
    noise = 0.05 * np.random.default_rng(0).standard_normal(700).clip(-2, 2)
    parts = (np.geomspace(6, 0.3, 220), np.linspace(0.3, 1.8, 60), np.full(420, 1.8))
    lr = [*np.linspace(1e-3, 0.2, 300), *([0.2] * 400)]
    norm = [*([1.0] * 240), *([0.2] * 460)]
    told = diagnose(logged(np.concatenate(parts) + noise, lr=lr, grad_norm=norm))
    assert (told.learning_rate.action.value, told.learning_rate.probability) == ("lower", None)
    assert [(one.cause, one.probability) for one in told.causes] == [("the learning rate", 0.9)]
