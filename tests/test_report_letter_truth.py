"""Every number in a letter is true: each is recomputed from the run's rows with plain numpy."""

from __future__ import annotations

import dataclasses
import functools
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from letter_truth import is_rounding_of, unexplained_remedy_numbers, untrue_numbers
from rich.console import Console
from structured_runs import write_structured
from written_runs import more, write_run

from ampwatch import diagnose, open_run
from ampwatch.diagnosis import RULES
from ampwatch.importers import import_log
from ampwatch.report.letter import letter_of
from ampwatch.report.letter_facts import Sentence
from ampwatch.report.letter_text import LetterView

ROOT = Path(__file__).parents[1]
SAMPLES = sorted(
    path
    for path in (ROOT / "tests" / "importers" / "samples").iterdir()
    if path.is_file() and path.suffix != ".json"
)
PAGES = {rule.code: " ".join(map(str, dataclasses.asdict(rule.page).values())) for rule in RULES}


def printed(letter, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(LetterView(letter), highlight=False, crop=False)
    return console.file.getvalue()


def check(run, *, lines=40, words=300):
    """Fail unless the run's letter is true and short; return its text."""
    diagnosis = diagnose(run)
    letter = letter_of(run.info.name, run, diagnosis)
    text = printed(letter)
    assert untrue_numbers(letter, run, diagnosis.to_json(), text) == []
    if letter.codes:
        head = diagnosis.headline
        names = [head.layer or "", *(map(str, head.ranks) if len(head.ranks) == 1 else ())]
        assert unexplained_remedy_numbers(letter, PAGES[letter.codes[0]], names) == []
    assert len(text.splitlines()) <= lines
    assert len(text.split()) <= words
    assert not any(line != line.rstrip() for line in text.splitlines())
    return text


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_the_letter_on_a_foreign_log_is_true(path, tmp_path):
    check(open_run(import_log(str(path), tmp_path)))


@pytest.mark.parametrize(("accepted", "skipped"), [(100, 0), (100, 30), (0, 30), (18, 0), (0, 0)])
def test_the_letter_on_a_written_run_is_true(accepted, skipped, tmp_path):
    check(open_run(write_run(tmp_path, accepted=accepted, skipped=skipped)))


@pytest.mark.parametrize(("rate", "fails"), [(0.1, True), (0.001, False)])
def test_the_letter_on_a_run_with_layers_is_true(rate, fails, tmp_path):
    check(open_run(write_structured(tmp_path, "one", rate=rate, fails=fails)))


def test_the_letter_on_a_resumed_run_counts_a_step_that_was_computed_twice_once(tmp_path):
    path = write_run(tmp_path, accepted=60)
    more(path, accepted=20, skipped=15, first=40, ended=True)
    check(open_run(path))


# --- the checker can fail -------------------------------------------------------------------------


class Altered:
    """A run in which one number of the steps was changed."""

    def __init__(self, run, column, at, value):
        self._run, self._change = run, (column, at, value)

    def __getattr__(self, name):
        return getattr(self._run, name)

    @functools.cached_property
    def steps(self):
        column, at, value = self._change
        rows = self._run.steps
        values = rows.column(column).to_pylist()
        values[at] = value
        place = rows.schema.get_field_index(column)
        return rows.set_column(place, column, pa.array(values, rows.schema.field(column).type))


@pytest.mark.parametrize(
    ("column", "at", "value"),
    [("scale", 100, 1e6), ("skipped", 110, False), ("loss", 5, 1e9), ("scale_after", -1, 3.0)],
)
def test_a_changed_row_makes_the_letter_untrue(column, at, value, tmp_path):
    run = open_run(write_run(tmp_path, skipped=30))
    diagnosis = diagnose(run)
    letter = letter_of("one", run, diagnosis)
    other = Altered(run, column, at, value)
    wrong = untrue_numbers(letter, other, diagnosis.to_json(), printed(letter))
    if column == "loss":  # the level is of the entries before the trouble: this is not among them
        assert wrong == [] or "loss" in " ".join(wrong)
    else:
        assert wrong


def test_a_number_among_the_words_is_found(tmp_path):
    run = open_run(write_run(tmp_path, skipped=30))
    diagnosis = diagnose(run)
    letter = letter_of("one", run, diagnosis)
    told = dataclasses.replace(letter, opening=(Sentence.of("It rose 12 times."),))
    wrong = untrue_numbers(told, run, diagnosis.to_json(), printed(told))
    assert "a number among the words: 'It rose 12 times.'" in wrong
    assert "12 is no fact" in wrong


@pytest.mark.parametrize(
    ("text", "value", "is_right"),
    [("29,000", 28_588.0, True), ("28,000", 28_588.0, False), ("0.07", 0.0696, True),
     ("0.06", 0.0696, False), ("7.3e-24", 7.28e-24, True), ("45 %", 0.4523, True),
     ("NaN", np.nan, True), ("65,536", 65536.0, True), ("65,536", 65537.0, False)],
)  # fmt: skip
def test_a_text_is_held_against_the_number_to_its_last_digit(text, value, is_right):
    assert is_rounding_of(text, value) is is_right


# --- trainings ------------------------------------------------------------------------------------

FAMILIES = ("misuse", "formats", "numbers", "scale", "rates", "benign", "blind", "held-out")


@pytest.mark.slow_trainings
@pytest.mark.parametrize("family", FAMILIES)
def test_the_letters_of_a_family_of_the_gallery_are_true(family, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.gallery.performing import chosen, perform_missing
    from examples.gallery.registry import all_cases

    cases = [case for case in chosen(all_cases(), family) if case.twin_of is None]
    assert cases
    for case in perform_missing(cases, tmp_path, 0):
        check(open_run(tmp_path / case.name))


@pytest.mark.slow_trainings
@pytest.mark.parametrize("name", ["lr-too-high", "forward-overflow", "healthy", "underflow"])
def test_the_letter_on_a_demo_is_true_and_says_what_to_do_in_line_8_at_the_latest(name, tmp_path):
    from ampwatch.cli.demo import SCENARIOS, train

    scenario = next(one for one in SCENARIOS if one.name == name)
    text = check(open_run(train(scenario, tmp_path / name, seed=0)), lines=30, words=220)
    if name == "lr-too-high":
        action = text.splitlines().index("What to do") + 2
        assert action <= 8
        assert "peak learning rate of 0.0" in text.splitlines()[action - 1]
