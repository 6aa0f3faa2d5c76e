"""What follows from reruns: pure, over hand-built tries."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.recovery.proof import Proof, Try, kept_proof, sentence_of, table_of
from ampwatch.recovery.prove import (
    MOST_TRIES,
    WIDE_ENOUGH,
    lower_rate,
    next_rate,
    reached_rate,
    top_of_rise,
)
from ampwatch.recovery.rerun import Record


def tried(rate, *, held, steps=300, others=None, **losses):
    verdict = "healthy" if held else "failing"
    told = "" if held else "AMP301 lr-too-high"
    by_step = {name.lstrip("at"): loss for name, loss in losses.items()}
    return Try("lr", rate, steps, verdict, held, told, by_step, "folder", **(others or {}))


def proof_of(*tries, base=1.0):
    return Proof("run", base, 300, tries)


def test_the_highest_rate_that_held_is_proved_and_bounded_by_the_lowest_above_that_did_not():
    proof = proof_of(tried(0.05, held=True), tried(0.2, held=False), tried(0.1, held=True))
    assert proof.proved.value == 0.1
    assert proof.interval == (0.1, 0.2)
    assert sentence_of(proof) == (
        "Proved: a learning rate of 0.1 held for 300 steps; the limit lies between 0.1 and 0.2."
    )
    assert proof.to_json()["proved"] == {
        "change": "lr", "value": 0.1, "steps": 300, "verdict": "healthy",
    }  # fmt: skip


def test_of_the_rates_that_held_the_one_with_the_lowest_loss_at_an_equal_step_is_proved():
    tries = (
        tried(0.05, held=True, at160=2.0, at320=0.9), tried(0.1, held=True, at160=2.5),
        tried(0.2, held=False, at10=90.0),
    )  # fmt: skip
    proof = proof_of(*tries)
    assert proof.proved.value == 0.05
    assert proof.interval == (0.1, 0.2)
    assert sentence_of(proof) == (
        "Proved: a learning rate of 0.05 held for 300 steps, with the lowest loss of those that "
        "held; the limit lies between 0.1 and 0.2."
    )


def test_a_rate_that_lives_but_learns_less_than_half_of_a_lower_one_is_above_the_limit():
    proof = proof_of(
        tried(0.1, held=True, at0=5.0, at160=1.0), tried(0.2, held=True, at0=5.0, at160=2.5),
        tried(0.4, held=True, at0=5.0, at160=4.0),
    )  # fmt: skip
    assert proof.interval == (0.2, 0.4)
    assert proof.proved.value == 0.1


def test_a_rate_that_held_once_and_failed_once_is_not_proved():
    proof = proof_of(tried(0.1, held=True), tried(0.1, held=False), tried(0.05, held=True))
    assert proof.proved.value == 0.05
    assert proof.interval == (0.05, 0.1)


def test_another_change_than_the_rate_is_proved_where_the_trouble_is_gone_with_it():
    tries = [
        Try("nothing", None, 60, "failing", False, "AMP203 forward-overflow", {}, "a"),
        Try("float32", "block.3", 300, "healthy", True, "", {}, "b"),
        Try("bfloat16", True, 300, "healthy", True, "", {}, "c"),
    ]
    proof = Proof("run", None, 300, tuple(tries))
    assert proof.proved.value == "block.3"
    assert proof.interval == (None, None)
    assert sentence_of(proof) == (
        "Proved: the trouble is gone for 300 steps with each of block.3 in float32; autocast to "
        "bfloat16."
    )
    none = Proof("run", None, 300, tuple(tries[:1]))
    assert none.proved is None
    assert sentence_of(none) == "No rerun came to an end: nothing is proved."


def test_the_printed_object_has_the_keys_of_the_contract_and_no_others():
    told = proof_of(tried(0.1, held=True, at10=2.0)).to_json()
    assert set(told) == {"schema", "proved", "interval", "tries"}
    assert set(told["proved"]) == {"change", "value", "steps", "verdict"}
    assert set(told["tries"][0]) == {"change", "value", "steps", "verdict", "loss_at", "run"}


WIDE = ("float32", "wide")
OVERFLOW = {"told": "AMP203 forward-overflow", "is_stable": False}


def with_wide(rate, *, held):
    return replace(tried(rate, held=held), kept=WIDE)


def test_rates_with_a_cure_and_without_are_not_compared_and_both_changes_are_named():
    proof = replace(proof_of(
        Try("float32", "wide", 60, "failing", False, "AMP301 lr-too-high", {}, "a"),
        replace(tried(0.05, held=False), **OVERFLOW),
        with_wide(0.05, held=True), with_wide(0.1, held=True), with_wide(0.2, held=False),
    ), kept=WIDE)  # fmt: skip
    assert proof.interval == (0.1, 0.2)
    assert (proof.proved.value, proof.proved.kept) == (0.1, WIDE)
    assert sentence_of(proof) == (
        "Proved: a learning rate of 0.1 with wide in float32 held for 300 steps; the limit lies "
        "between 0.1 and 0.2."
    )
    assert [(row[0], row[2]) for row in table_of(proof)[1:]] == [
        ("wide in float32", "no"), ("learning rate 0.05", "no"),
        ("learning rate 0.05 and wide in float32", "yes"),
        ("learning rate 0.1 and wide in float32", "yes"),
        ("learning rate 0.2 and wide in float32", "no"),
    ]  # fmt: skip


def test_with_a_cure_the_scripts_own_rate_is_proved_where_a_lower_one_gains_hardly_more():
    lower, own = (
        replace(tried(rate, held=True, at0=2.0, at160=loss), kept=WIDE)
        for rate, loss in ((0.05, 0.1), (1.0, 0.2))
    )
    proof = replace(proof_of(lower, own), kept=WIDE)
    assert proof.keeps_rate
    assert (proof.proved, proof.proved_rate) == (own, 1.0)
    assert sentence_of(proof) == (
        "Proved: with wide in float32, the run's own learning rate of 1 held for 300 steps: it was "
        "not the cause."
    )
    slower = replace(own, loss_at=own.loss_at | {"160": 0.4})
    proof = replace(proof, tries=(lower, slower))
    assert (proof.proved, proof.keeps_rate) == (lower, False)


def test_a_printed_rate_with_a_cure_is_not_to_be_taken_for_the_rate_alone():
    told = replace(proof_of(with_wide(0.1, held=True)), kept=WIDE).to_json()
    assert told["proved"] == {
        "change": "float32+lr", "value": {"float32": "wide", "lr": 0.1}, "steps": 300,
        "verdict": "healthy",
    }  # fmt: skip
    assert told["tries"][0]["change"] == "float32+lr"


def test_where_no_rate_held_with_the_cure_the_sentence_names_it():
    proof = replace(proof_of(tried(0.05, held=False), with_wide(0.02, held=False)), kept=WIDE)
    assert sentence_of(proof) == (
        "No learning rate down to 0.02 with wide in float32 held: nothing is proved."
    )
    assert "down to 0.05 held" in sentence_of(replace(proof, tries=proof.tries[:1]))


def test_where_none_held_nothing_is_proved():
    proof = proof_of(tried(0.1, held=False), tried(0.02, held=False))
    assert proof.proved is None
    assert proof.interval == (None, 0.02)
    assert sentence_of(proof) == "No learning rate down to 0.02 held: nothing is proved."
    assert sentence_of(proof_of()).endswith("nothing is proved.")


@given(st.floats(-12, -0.01), st.floats(-12, -0.01))
def test_the_search_ends_within_an_octave_of_the_limit_from_any_first_guess(limit, first):
    proof, rate = proof_of(), 2.0**first
    while rate is not None:
        done = tried(rate, held=rate <= 2.0**limit)
        proof = proof_of(*proof.tries, done)
        rate = next_rate(proof)
    low, high = proof.interval
    assert low <= 2.0**limit < high
    assert math.log2(high / low) <= WIDE_ENOUGH
    assert len(proof.tries) <= 2 * MOST_TRIES


def test_the_lowest_rate_is_checked_by_a_lower_one_where_its_loss_stood_above_its_first():
    doubtful = tried(0.1, held=True, others={"highest": 5.0}, at0=4.0, at160=3.0)
    assert next_rate(proof_of(doubtful)) == pytest.approx(0.025)
    lower = tried(0.025, held=True, others={"highest": 3.0}, at0=4.0, at160=1.0)
    proof = proof_of(doubtful, lower)
    assert proof.interval == (0.025, 0.1)
    assert next_rate(proof) == pytest.approx(0.05)
    calm = tried(0.1, held=True, others={"highest": 3.9}, at0=4.0, at160=3.0)
    assert next_rate(proof_of(calm)) == pytest.approx(math.sqrt(0.1))


def test_what_is_left_of_the_reruns_goes_below_the_lowest_rate_while_it_has_the_lowest_loss():
    low, high = tried(0.05, held=True, at160=0.9), tried(0.1, held=True, at160=2.5)
    assert lower_rate(proof_of(low, high)) == pytest.approx(0.0125)
    assert lower_rate(proof_of(low, high, tried(0.0125, held=True, at160=1.0))) is None
    assert lower_rate(proof_of(tried(0.05, held=True))) is None  # nothing to compare


def test_losses_are_compared_at_a_step_that_all_have():
    head, low, high = table_of(proof_of(
        tried(0.2, held=False, at10=3.0, at20=90.0), tried(0.1, held=True, at10=2.0),
    ))  # fmt: skip
    assert head[4] == "loss at step 10"
    assert (low[0], low[4]) == ("learning rate 0.1", "2")
    assert (high[0], high[4], high[5]) == ("learning rate 0.2", "3", "AMP301 lr-too-high")


def test_the_table_says_what_held_beside_the_others_whatever_the_verdict():
    leapt = tried(0.2, held=False, others={"highest": 3.0}, at0=4.0, at160=1.2)
    idle = tried(0.4, held=True, at0=4.0, at160=3.5)
    _, *rows = table_of(proof_of(tried(0.1, held=True, at0=4.0, at160=1.0), leapt, idle))
    assert [(row[2], row[3], row[5]) for row in rows] == [
        ("yes", "healthy", ""), ("yes", "failing", "AMP301 lr-too-high"),
        ("no", "healthy", "it learnt too little"),
    ]  # fmt: skip
    assert proof_of(leapt, idle).interval == (None, 0.2)  # alone, the verdict decides


def test_where_a_rate_failed_below_one_that_held_the_limit_is_the_lower_one():
    proof = proof_of(
        tried(0.1, held=True, at0=4.0, at160=1.0), tried(0.2, held=True, at0=4.0, at160=3.0),
        tried(0.25, held=True, at0=4.0, at160=2.0),
    )  # fmt: skip
    assert proof.interval == (0.1, 0.2)
    assert proof.proved.value == 0.1


def test_a_proof_is_kept_beside_the_run_and_read_again(tmp_path):
    for proof in (
        proof_of(tried(0.05, held=True, at10=1.5)),
        replace(proof_of(with_wide(0.05, held=True)), kept=WIDE),
    ):
        proof.keep(tmp_path)
        assert kept_proof(tmp_path) == proof
    (tmp_path / "proved.json").write_text("{")
    assert kept_proof(tmp_path) is None
    assert kept_proof(tmp_path / "none") is None


@pytest.mark.parametrize("text", ["[]", '{"tries": [{"change": 1}]}', '{"tries": [1]}', "null"])
def test_a_damaged_proof_is_none(tmp_path, text):
    (tmp_path / "proved.json").write_text(text)
    assert kept_proof(tmp_path) is None


def test_a_schedule_that_was_still_rising_is_judged_by_the_rate_that_it_had_reached():
    rising = Record({}, {step: 0.001 * (step + 1) for step in range(100)}, {})
    assert reached_rate(rising, 1.0) == pytest.approx(0.1)
    assert reached_rate(rising, 1.0, 0, 50) == pytest.approx(0.05)
    assert reached_rate(rising, 1.0, 50, 20) == pytest.approx(0.07)
    risen = Record({}, {step: min(1.0, 0.1 * (step + 1)) for step in range(100)}, {})
    assert reached_rate(risen, 1.0) == reached_rate(risen, 1.0, 0, 50) == 1.0
    assert reached_rate(Record({}, {}, {}), 0.3) == 0.3
    assert top_of_rise(rising, 1.0) == 97  # it came no further
    assert top_of_rise(risen, 1.0) == 9
    assert top_of_rise(Record({}, {}, {}), 0.3) == 0


def test_a_rate_that_held_only_on_the_way_up_is_not_proved(tmp_path):
    short = replace(proof_of(tried(0.1, held=True), tried(0.2, held=False)), needs_steps=450)
    assert (short.proved, short.proved_rate, short.best.rate) == (None, None, 0.1)
    assert short.to_json()["proved"] is None
    assert sentence_of(short) == (
        "Not proved: a learning rate of 0.1 held for 300 steps, while the run's learning rate rose "
        "for longer. `--steps 450`, with a `--budget` for it, reaches its highest."
    )
    short.keep(tmp_path)
    assert kept_proof(tmp_path) == short
    other = Try("bfloat16", True, 300, "healthy", True, "", {}, "folder")
    assert replace(short, tries=(other,)).proved == other  # it is none of a learning rate
