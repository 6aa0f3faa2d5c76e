"""An estimate of the rate gives way to what reruns have shown; pure, over hand-built tries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, RunFacts, Severity
from ampwatch.diagnosis.findings import Verdict
from ampwatch.diagnosis.rules.rate import how_to_change_rate
from ampwatch.recovery.proof import Proof, Try, sentence_of, with_proof
from ampwatch.report.terminal_report import advised

ESTIMATE = Advice(
    Action.LOWER, "The updates are too large.", current=1.0, recommended=0.16, low=0.09, high=0.28,
    factor=0.16, group=0, confidence=0.6, restart_from_step=40,
)  # fmt: skip


def rate(value, *, held):
    return Try("lr", value, 200, "healthy" if held else "failing", held, "", {}, "x")


def diagnosis(advice=ESTIMATE):
    action = how_to_change_rate(advice) if advice.factor else "Mend it."
    head = Finding("AMP301", "learning-rate-too-high", Severity.ERROR, 40, 80, (0,), None,
                   "The rate is too high.", "", action)  # fmt: skip
    facts = RunFacts("id", "ampwatch", (0,), 80, None, None, True, 1.0, 1.0, 0, 0)
    return Diagnosis(facts, Verdict.FAILING, (head,), advice)


def proof_of(*tries):
    return Proof("run", 1.0, 200, tries)


def test_the_estimate_gives_way_to_the_proved_rate_and_interval():
    proof = proof_of(rate(0.178, held=True), rate(0.457, held=False))
    said = with_proof(diagnosis(), proof)
    advice = said.learning_rate
    assert (advice.recommended, advice.low, advice.high) == (0.178, 0.178, 0.457)
    assert advice.factor == pytest.approx(0.178)
    assert advice.because == sentence_of(proof)
    assert advice.restart_from_step == 40
    assert "0.28" not in advised(advice)
    assert "the limit lies between 0.178 and 0.457" in advice.because
    assert said.findings[0].action == how_to_change_rate(advice)
    assert "Set the peak learning rate to 0.178 (now 1)." in said.findings[0].action
    assert set(said.to_json()["learning_rate"]) == set(diagnosis().to_json()["learning_rate"])


def test_what_was_kept_with_the_proved_rate_is_said_with_it():
    kept = ("float32", "wide")
    held = replace(rate(0.178, held=True), kept=kept)
    said = with_proof(diagnosis(), Proof("run", 1.0, 200, (held,), kept=kept))
    assert said.learning_rate.besides == "wide in float32"
    assert "lower to 0.178 (now 1) with wide in float32" in advised(said.learning_rate)
    assert (
        "Set the peak learning rate to 0.178 (now 1), with wide in float32."
        in said.findings[0].action
    )


def test_without_reruns_or_with_reruns_of_other_things_the_estimate_stands():
    assert with_proof(diagnosis(), None) == diagnosis()
    cured = Try("float32", "a", 200, "healthy", True, "", {}, "x")
    assert with_proof(diagnosis(), proof_of(cured)) == diagnosis()


def test_an_estimate_at_or_above_a_rate_that_failed_is_not_advised_where_none_held():
    proof = proof_of(rate(0.16, held=False), rate(0.04, held=False))
    advice = with_proof(diagnosis(), proof).learning_rate
    assert (advice.recommended, advice.factor, advice.low, advice.high) == (None, None, None, 0.04)
    assert advice.because == "No rate down to 0.04 held: nothing is proved."


def test_a_rate_that_was_proved_and_failed_all_the_same_changes_nothing():
    proof = proof_of(rate(1.0, held=True))
    assert with_proof(diagnosis(), proof) == diagnosis()


def test_a_lower_rate_that_ends_a_trouble_which_came_back_unchanged_is_advised():
    unknown = Advice(Action.UNKNOWN, "Not recorded.", current=1.0)
    came_back = Try("nothing", None, 200, "failing", False, "AMP103 scale-collapse", {}, "x")
    proof = proof_of(came_back, rate(0.05, held=True))
    advice = with_proof(diagnosis(unknown), proof).learning_rate
    assert (advice.action, advice.recommended, advice.factor) == (Action.LOWER, 0.05, 0.05)
    alone = proof_of(rate(0.05, held=True))
    assert with_proof(diagnosis(unknown), alone) == diagnosis(unknown)
