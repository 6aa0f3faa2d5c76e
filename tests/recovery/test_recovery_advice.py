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


def test_where_the_runs_own_rate_holds_with_a_cure_the_rate_is_not_the_cause():
    kept = ("autocast-off", True)
    failed = replace(rate(0.178, held=False), told="AMP203 forward-overflow")
    tries = [failed, *(replace(rate(value, held=True), kept=kept) for value in (0.178, 1.0))]
    followed = replace(diagnosis().findings[0], code="AMP203", because_of="AMP301")
    given = replace(diagnosis(), findings=(*diagnosis().findings, followed))
    said = with_proof(given, Proof("run", 1.0, 200, tuple(tries), kept=kept))
    assert (said.learning_rate.action, said.learning_rate.factor) == (Action.NOT_THE_CAUSE, None)
    assert (
        "the run's own learning rate of 1 held for 200 steps: it was not"
        in said.learning_rate.because
    )
    assert [(one.code, one.because_of) for one in said.findings] == [("AMP203", None)]
    assert said.headline.action == (
        "Train with autocast off. In a rerun of 200 steps the trouble was gone with that."
    )
    alone = with_proof(given, Proof("run", 1.0, 200, tuple(tries[:2]), kept=kept))
    assert alone.learning_rate.action is Action.LOWER
    assert [one.code for one in alone.findings] == ["AMP301", "AMP203"]


def test_without_reruns_or_with_reruns_of_other_things_the_estimate_stands():
    assert with_proof(diagnosis(), None) == diagnosis()
    cured = Try("float32", "a", 200, "healthy", True, "", {}, "x")
    assert with_proof(diagnosis(), proof_of(cured)) == diagnosis()


def test_an_estimate_at_or_above_a_rate_that_failed_is_not_advised_where_none_held():
    proof = proof_of(rate(0.16, held=False), rate(0.04, held=False))
    advice = with_proof(diagnosis(), proof).learning_rate
    assert (advice.recommended, advice.factor, advice.low, advice.high) == (None, None, None, 0.04)
    assert advice.because == "No learning rate down to 0.04 held: nothing is proved."


def test_a_proved_cure_is_what_is_to_be_done_where_no_lower_rate_is_advised():
    cured = Try("float32", "a", 200, "healthy", True, "", {}, "x")
    given = diagnosis(Advice(Action.UNKNOWN, "Not recorded.", current=1.0))
    said = with_proof(given, proof_of(cured))
    assert said.learning_rate.action is Action.UNKNOWN
    assert said.learning_rate.proved_steps == 200
    assert said.headline.action == (
        "Run a in float32 by `ampwatch.run_in_float32`, after the model is created. In a rerun of "
        "200 steps the trouble was gone with that."
    )


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


def test_a_rate_that_held_only_on_the_way_up_replaces_no_lower_estimate():
    higher, lower = (
        replace(proof_of(rate(held, held=True), rate(0.457, held=False)), needs_steps=450)
        for held in (0.178, 0.04)
    )
    assert with_proof(diagnosis(), higher) == diagnosis()
    advice = with_proof(diagnosis(), lower).learning_rate
    assert (advice.recommended, advice.factor, advice.proved_steps) == (0.04, 0.04, None)
    kept = replace(rate(0.178, held=True), kept=("float32", "wide"))
    cured = Proof("run", 1.0, 200, (kept,), kept=kept.kept, needs_steps=450)
    said = with_proof(diagnosis(), cured).learning_rate
    assert (said.recommended, said.besides) == (0.178, "wide in float32")
