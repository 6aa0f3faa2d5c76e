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


def test_a_loss_that_gradients_announced_is_likelier_the_learning_rate():
    loss = [*np.linspace(3, 1, 100), *np.geomspace(1, 80, 60)]
    calm = [0.5] * 160
    grew = [*[0.5] * 60, *np.geomspace(0.5, 40, 100)]

    def rate(norm):
        told = causes(logged(loss, grad_norm=norm, lr=[1e-3] * 160))
        found = {one["cause"]: one["probability"] for one in told}
        assert all(0.01 <= chance <= 0.99 for chance in found.values())
        return found.get("the learning rate", 0.0)

    assert rate(grew) > 0.8
    assert rate(grew) > rate(calm)
