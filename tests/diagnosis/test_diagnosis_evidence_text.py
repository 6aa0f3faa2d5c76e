"""Evidence says what it shows: label, unit, and what the number is compared with."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hand_built import scaled_run

import ampwatch.diagnosis.rules
from ampwatch.diagnosis import Evidence, diagnose
from ampwatch.diagnosis.learning_rate.judgement import TABLE, SignReading
from ampwatch.diagnosis.value_text import _FORMS, evidence_text, label_of

RULES = Path(ampwatch.diagnosis.rules.__file__).parent
# With so many arguments a piece of evidence compares, without saying with what.
_COMPARED = {"Evidence": 4, "counted": 3}


def pieces():
    """Every `Evidence(...)` and `counted(...)` in the rules, with its file and line."""
    for file in sorted(RULES.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _COMPARED:
                yield f"{file.name}:{node.lineno}", node


def test_no_rule_compares_a_number_without_saying_with_what():
    found = dict(pieces())
    assert len(found) > 50
    bare = [place for place, node in found.items() if len(node.args) == _COMPARED[node.func.id]]
    assert not bare


def test_every_signal_has_a_label():
    named = {
        (place, node.args[0].value)
        for place, node in pieces()
        if isinstance(node.args[0], ast.Constant)
    }
    words = {"exception", "eps", "loss", "overflows", "spikes"}  # their names are their labels
    bare = [one for one in named if label_of(one[1]) == one[1] and one[1] not in words]
    assert not bare
    used = {signal for _, signal in named}
    helped = {
        "input_scale",
        "weight_scale",
        "grad_scale",
        "allocated_bytes",
        "peak_share",
        "utilisation",
        "largest_flops",
        "loss_peak",
        "metric",
    }
    assert set(_FORMS) <= used | helped  # `_now` of devices.py, and the rate's table


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (Evidence("scale", 812, 2.0**-76, 2.0**16, "established before"),
         "loss scale at step 812: 1.3e-23 (established before: 65,536)"),
        (Evidence("loss_peak", 209, 790.4, 4.1, "before"),
         "highest loss (median of a few steps) from step 209: 790.4 (before: 4.1)"),
        (Evidence("lr_moved", 900, 91.0, 91.0, "skips"),
         "changes of the learning rate on skipped steps up to step 900: 91 (skips: 91)"),
        (Evidence("act_finite", 7, "false", 65504.0, "largest number of fp16"),
         "output is finite at step 7: no (largest number of fp16: 65,504)"),
        (Evidence("underflow_share", 50, 0.981, 0.5, "threshold"),
         "gradients lost to underflow at step 50: 98.1 % (threshold: 50 %)"),
        (Evidence("exception", None, "KeyError"), "exception: KeyError"),
        (Evidence("allocated_bytes", 3, 3.94e8, 1e8, "at first"),
         "smallest allocated memory at step 3: 394 MB (at first: 100 MB)"),
    ],
)  # fmt: skip
def test_evidence_has_one_form(evidence, text):
    assert evidence_text(evidence) == text


def test_the_signs_of_the_rate_say_what_they_are_held_against():
    reading = SignReading(1.0, 0.5, 0.03, 7)
    told = {entry.name: entry.compared(reading)[2] for entry in TABLE if entry.held}
    assert set(told.values()) == {"too much above", "small below", "before", "at first", "at best"}
    without = next(entry for entry in TABLE if not entry.held)
    assert without.compared(reading) == ("yes", None, "")


def test_the_json_says_evidence_in_the_same_words():
    run = scaled_run([False] * 100 + [True] * 30)
    body = json.loads(json.dumps(diagnose(run).to_json()))
    told = [piece for finding in body["findings"] for piece in finding["evidence"]]
    assert any(piece["against_is"] for piece in told)
    assert any("established before: 65,536" in piece["text"] for piece in told)


def test_information_stands_below_all_that_counts():
    run = scaled_run([True] + [False] * 100 + [True] * 30)
    severities = [finding.severity.weight > 0 for finding in diagnose(run).findings]
    assert severities == sorted(severities, reverse=True)
    assert len(set(severities)) == 2
