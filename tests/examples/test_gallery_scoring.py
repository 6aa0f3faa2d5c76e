"""The scorer's arithmetic, on findings made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def gallery_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def scored(labels: dict[str, Any], *said: dict[str, Any]) -> Any:
    from examples.gallery import Label
    from examples.gallery.scoring import read_answers, score

    made = {name: Label(**label) for name, label in labels.items()}
    return score(made, read_answers(json.dumps(line) for line in said))


ILL = {"must": ("AMP203",), "may": ("AMP103",), "layer": "block", "advice": "lower", "onset": 10}
FINDING = {"case": "ill", "code": "AMP203", "severity": "error", "layer": "block", "found_at": 14}


def test_a_demanded_finding_is_a_hit_and_counts_its_steps_from_the_onset() -> None:
    result = scored({"ill": ILL}, FINDING, {"case": "ill", "advice": "lower"})
    assert (result.total.precision, result.total.recall) == (1.0, 1.0)
    assert result.delays == {"AMP203": [4]}
    assert (result.culprits.hits, result.advice.hits) == (1, 1)
    assert result.wrong == []


def test_what_is_told_as_information_only_is_missed() -> None:
    result = scored({"ill": ILL}, {**FINDING, "severity": "info"})
    assert result.total.recall == 0.0
    assert result.total.precision is None
    assert result.wrong[0] == "ill: AMP203 missed (told as info)"


def test_what_a_label_allows_is_neither_a_hit_nor_false() -> None:
    result = scored({"ill": ILL}, FINDING, {**FINDING, "code": "AMP103"})
    assert (result.total.hits, result.total.false) == (1, 0)


def test_any_other_alarm_is_false_and_counts_once_a_case() -> None:
    stranger = {**FINDING, "code": "AMP401"}
    result = scored({"ill": ILL}, FINDING, stranger, stranger)
    assert (result.total.hits, result.total.false) == (1, 1)
    assert result.total.precision == 0.5
    assert result.codes["AMP401"].precision == 0.0


def test_silence_about_a_case_that_was_shown_is_a_miss_and_about_another_is_nothing() -> None:
    result = scored({"ill": ILL, "other": ILL}, {"case": "ill", "advice": "keep"})
    assert (result.total.hits, result.total.misses) == (0, 1)
    assert (result.advice.hits, result.advice.misses) == (0, 1)


def test_the_wrong_layer_or_none_is_a_wrong_culprit() -> None:
    wrong = scored({"ill": ILL}, {**FINDING, "layer": "head"})
    none = scored({"ill": ILL}, {**FINDING, "layer": None})
    assert (wrong.culprits.hits, wrong.culprits.misses) == (0, 1)
    assert (none.culprits.hits, none.culprits.misses) == (0, 1)
    assert "culprit head, not block" in wrong.wrong[0]


def test_a_healthy_run_counts_its_warnings_and_errors_and_forgives_information() -> None:
    alarm = {"code": "AMP105", "severity": "warning"}
    result = scored(
        {"calm": {"tells": ("AMP101",)}, "loud": {}, "shrill": {}},
        {"case": "calm", "code": "AMP101", "severity": "info"},
        {"case": "loud", **alarm},
        {"case": "shrill", **alarm, "severity": "error"},
    )
    assert result.healthy == 3
    assert (result.healthy_with_warning, result.healthy_with_error) == (["loud"], ["shrill"])
    assert result.told["AMP101"].recall == 1.0
    assert result.codes["AMP105"].false == 2


def test_a_finding_before_the_onset_is_no_head_start() -> None:
    result = scored({"ill": ILL}, {**FINDING, "found_at": 3})
    assert result.delays == {"AMP203": [0]}
