"""Every number of a letter is true, whatever the run: computed again by `letter_truth`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import letter_truth
import numpy as np
import pyarrow as pa
import pytest
import written_runs
from letter_truth import printed

import ampwatch
from ampwatch import store
from ampwatch.errors import LogError
from ampwatch.importers import import_log
from ampwatch.report.letter import Letter, letter_of
from ampwatch.report.letter_facts import Fact, Holds, Name, Reading, Remedy, Sentence, present_rate
from ampwatch.rows import Table

if TYPE_CHECKING:
    from examples.gallery.vocabulary import Case

SAMPLES = sorted(
    path
    for path in (Path(__file__).parent / "importers" / "samples").iterdir()
    if path.suffix != ".json"
)


def checked(run: ampwatch.Run) -> tuple[Letter, list[str]]:
    letter = letter_of(run.info.name, run, ampwatch.diagnose(run))
    return letter, letter_truth.problems_of(run)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_every_number_in_the_letter_on_a_foreign_log_is_true(sample: Path, tmp_path: Path) -> None:
    try:
        run = ampwatch.open_run(import_log(str(sample), tmp_path))
    except LogError as error:
        pytest.skip(str(error))
    letter, problems = checked(run)
    assert problems == []
    if "no step numbers" in " ".join(printed(letter).split()):
        assert letter_truth.is_numbered_by_line(run)


# --- other runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepted", "skipped", "ended"),
    [(100, 0, True), (100, 40, True), (100, 1, False), (1, 0, False), (0, 30, True), (0, 0, True)],
)
def test_every_number_in_the_letter_on_a_written_run_is_true(
    tmp_path: Path, accepted: int, skipped: int, ended: bool
) -> None:
    path = written_runs.write_run(tmp_path, accepted=accepted, skipped=skipped, ended=ended)
    assert checked(ampwatch.open_run(path))[1] == []


def test_of_steps_that_a_resumed_run_computed_twice_the_last_rows_count(tmp_path: Path) -> None:
    path = written_runs.write_run(tmp_path, accepted=100, skipped=30)
    written_runs.more(path, 60, 20, first=90, ended=True)
    letter, problems = checked(ampwatch.open_run(path))
    assert problems == []
    assert str(letter.about).startswith("170 steps")


def rewritten(tmp_path: Path, accepted: int, **columns: Any) -> ampwatch.Run:
    """A run whose rows have these values in these columns."""
    path = written_runs.write_run(tmp_path, accepted=0, ended=False)
    with contextlib.closing(store.RankWriter(path, 0)) as writer:
        written_runs.more(path, accepted, first=0, ended=True, writer=writer, **columns)
    return ampwatch.open_run(path)


def test_a_last_loss_that_is_not_finite_is_not_the_beginning_of_scattered_ones(
    tmp_path: Path,
) -> None:
    lost = [step % 10 == 9 for step in range(60)]
    loss = np.where(lost, np.nan, 1.0)
    letter, problems = checked(rewritten(tmp_path, 60, loss=loss))
    text = " ".join(printed(letter).split())
    assert problems == []
    assert "step 9 the loss is NaN or inf, in 6 steps in all; the last is step 59" in text
    assert letter.title == "The loss is inf or NaN, in some steps"
    assert "at the end" not in text


def test_a_last_gradient_norm_that_is_not_finite_is_not_the_beginning_of_scattered_ones(
    tmp_path: Path,
) -> None:
    norm = np.where([step % 10 == 9 for step in range(60)], np.nan, 1.0)
    letter, problems = checked(rewritten(tmp_path, 60, grad_norm=norm))
    text = " ".join(printed(letter).split())
    assert problems == []
    assert "step 9 the gradient norm is NaN or inf, in 6 steps in all; the last is step 59" in text
    assert "to the end" not in text


def test_a_loss_that_is_not_finite_from_a_step_on_is_the_beginning(tmp_path: Path) -> None:
    loss = np.where(np.arange(60) >= 40, np.nan, 1.0)
    loss[20] = np.nan
    letter, problems = checked(rewritten(tmp_path, 60, loss=loss))
    assert problems == []
    assert "step 40 the loss is NaN and never finite again" in " ".join(printed(letter).split())


def test_the_peak_of_a_log_is_the_highest_learning_rate_that_it_shows(tmp_path: Path) -> None:
    step = np.arange(200)
    down = 0.25 * (1 + np.cos(np.pi * (step - 50) / 150))
    lr = np.where(step < 50, 0.01 * (step + 1), down)
    loss = np.where(step < 44, 3 / (1 + 0.05 * step), 40.0 * (step - 43))
    lost = np.where(step < 60, 1.0, np.nan)
    run = rewritten(tmp_path, 200, lr=lr, loss=loss * lost, grad_norm=lost)
    letter, problems = checked(run)
    assert letter.title == "Learning rate too high"
    assert problems == []
    assert ampwatch.diagnose(run).learning_rate.current == pytest.approx(lr.max())


def test_a_scale_of_zero_throughout_did_not_fall(tmp_path: Path) -> None:
    zeros = np.zeros(60)
    letter, problems = checked(rewritten(tmp_path, 60, scale=zeros, scale_after=zeros))
    assert problems == []
    assert "fell" not in printed(letter)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(685_412.0, "685,400"), (1.2345e-5, "1.234e-5"), (0.1295, "0.1295"), (3e-4, "0.0003")],
)
def test_the_learning_rate_in_use_has_the_digits_that_its_user_gave_it(
    rate: float, text: str
) -> None:
    assert present_rate(rate).text == text


def test_no_line_ends_in_blanks_where_the_first_line_wraps(tmp_path: Path) -> None:
    run = ampwatch.open_run(written_runs.write_run(tmp_path, "a-run-with-quite-a-long-name" * 2))
    letter = letter_of(run.info.name, run, ampwatch.diagnose(run))
    assert [line for line in printed(letter, 60).split("\n") if line != line.rstrip()] == []


FAMILIES = ("misuse", "formats", "numbers", "scale", "rates", "benign", "blind", "held-out")
ONE_HEALTHY_IN = 8


def letters_apart(cases: Sequence[Case]) -> Iterator[Case]:
    """Of cases about which the same has to be told the first one, and some of the healthy ones."""
    told = Counter[tuple[str | None, ...]]()
    for case in cases:
        if case.twin_of is None:
            label = case.label
            codes = (*sorted(label.must), *sorted(label.tells), label.advice)
            if told[codes] % (ONE_HEALTHY_IN if label.is_healthy else len(cases)) == 0:
                yield case
            told[codes] += 1


@pytest.mark.slow_trainings
@pytest.mark.parametrize("family", FAMILIES)
def test_the_letters_of_a_family_of_the_gallery_are_true(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from examples.gallery.performing import perform_missing
    from examples.gallery.registry import all_cases

    cases = [case for case in letters_apart(all_cases()) if case.family == family]
    assert cases
    for case in perform_missing(cases, tmp_path, 0):
        assert letter_truth.problems_of(ampwatch.open_run(tmp_path / case.name)) == [], case.name


# --- the checker itself ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Changed:
    """A run of whose steps one number is another."""

    run: ampwatch.Run
    column: str
    row: int
    value: Any

    @property
    def steps(self) -> pa.Table:
        rows = self.run.steps
        values = rows.column(self.column).to_pylist()
        values[self.row] = self.value
        at = rows.column_names.index(self.column)
        field = rows.schema.field(at)
        return rows.set_column(at, field, pa.array(values, field.type))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)


@pytest.mark.parametrize(
    ("skipped", "column", "row", "value", "told"),
    [
        (40, "skipped", 110, False, "40"),
        (40, "loss", 139, 1.0, "never finite again"),
        (40, "scale", 5, 1e9, "highest of 'scale'"),
        (40, "scale_after", 139, 3.0, "last of 'scale_after'"),
        (40, "step", 7, 6, "139"),
        (0, "loss", 95, 9.0, "median of 'loss'"),
        (0, "step", 7, 6, "99"),
    ],
)
def test_a_number_that_the_rows_do_not_have_is_untrue(
    tmp_path: Path, skipped: int, column: str, row: int, value: Any, told: str
) -> None:
    run = ampwatch.open_run(written_runs.write_run(tmp_path, accepted=100, skipped=skipped))
    diagnosis = ampwatch.diagnose(run)
    letter, body = letter_of("one", run, diagnosis), diagnosis.to_json()
    assert letter_truth.untrue_numbers(letter, run, body, printed(letter)) == []
    problems = letter_truth.untrue_numbers(
        letter, Changed(run, column, row, value), body, printed(letter)
    )
    assert any(told in problem for problem in problems), (problems, printed(letter))


@pytest.fixture
def letter_on_skips(tmp_path: Path) -> tuple[ampwatch.Run, Letter, dict[str, Any]]:
    run = ampwatch.open_run(written_runs.write_run(tmp_path, accepted=100, skipped=40))
    diagnosis = ampwatch.diagnose(run)
    return run, letter_of("one", run, diagnosis), diagnosis.to_json()


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        (Sentence.of("It took 7 tries."), "'7' is printed"),
        (Sentence.of(Remedy("Try 12,345 times.")), "in no page of its rule"),
        (Sentence.of("Not recorded: loss."), "'loss' is called absent"),
        (Sentence.of("No recorded checkpoint is from before the trouble."), "none is recorded"),
        (Sentence.of("Ruled out: inf or NaN in the inputs."), "inputs are called finite"),
        (Sentence.of("Ruled out: scaler state lost on resume."), "there was none"),
        (Sentence.of("Also: ", Name("AMP999"), "."), "AMP999 is no finding"),
        (Sentence.of(Name("8 ranks")), "8 ranks are 1"),
        (Sentence.of("on rank ", Name("3")), "rank 3 has no rows"),
        (Sentence.of(Fact(Reading.STEPS, 140, "139", column="step")), "no rounding of 140"),
        (Sentence.of(Fact(Reading.STEPS, 139, "139", column="step")), "is 140, not 139"),
        (Sentence.of(Fact(Reading.ESTIMATE, 3, "3", column="no_such_key")), "in no row"),
    ],
)
def test_a_sentence_that_says_what_no_row_says_is_reported(
    letter_on_skips: tuple[ampwatch.Run, Letter, dict[str, Any]], sentence: Sentence, told: str
) -> None:
    run, letter, body = letter_on_skips
    spoilt = replace(letter, opening=(*letter.opening, sentence))
    problems = letter_truth.untrue_numbers(spoilt, run, body, printed(spoilt))
    assert any(told in problem for problem in problems), problems


NAN, INF = float("nan"), float("inf")


def small_run() -> Any:
    """Six steps, of which step 3 was computed twice; a layer with two rows a step."""
    steps = {
        "step": [0, 1, 2, 3, 3, 4, 5], "rank": [0] * 7, "optimizer": [0, 0, 0, 0, 0, None, 0],
        "loss": [4.0, 2.0, None, 7.0, 3.0, NAN, INF], "skipped": [False] * 5 + [True, True],
    }  # fmt: skip
    other = {"step": [0], "rank": [1], "optimizer": [0], "loss": [99.0], "skipped": [True]}
    layers = {
        "step": [0, 0, 5, 5], "rank": [0] * 4, "layer": ["up", "down"] * 2,
        "act_amax": [1.0, 5.0, 8.0, INF],
    }  # fmt: skip
    events = {
        "step": [4, 5, 5], "rank": [0] * 3, "kind": ["overflow", "overflow", "misuse"],
        "detail": [
            '{"layer": "up", "direction": "forward"}', '{"layer": "up", "direction": "backward"}',
            '{"code": "AMP401"}',
        ],
    }  # fmt: skip
    return SimpleNamespace(
        steps=pa.concat_tables([pa.table(steps), pa.table(other)]),
        layers=pa.table(layers), events=pa.table(events), info=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reading", "value", "more"),
    [
        (Reading.VALUE, 3.0, {"first": 3, "last": 3}),
        (Reading.FIRST, 4.0, {}),
        (Reading.LAST, 3.0, {}),
        (Reading.HIGHEST, 4.0, {}),
        (Reading.LOWEST, 2.0, {}),
        (Reading.MEDIAN, 3.0, {}),
        (Reading.MEDIAN, 2.5, {"first": 1}),
        (Reading.COUNT, 2, {"holds": Holds.NOT_FINITE}),
        (Reading.COUNT, 2, {"column": "skipped", "holds": Holds.TRUE}),
        (Reading.STEPS, 6, {"column": "step"}),
        (Reading.STEP, 4, {"holds": Holds.NOT_FINITE, "first": 4, "last": 4}),
        (Reading.STEP_OF_HIGHEST, 0, {}),
        (Reading.FIRST_STEP, 4, {"holds": Holds.NOT_FINITE}),
        (Reading.LAST_STEP, 5, {"holds": Holds.NOT_FINITE}),
        (Reading.SINCE, 3, {"holds": Holds.ABOVE, "line": 2.5}),
        (Reading.SINCE, 4, {"holds": Holds.NOT_FINITE}),
        (Reading.HIGHEST, 8.0, {"table": Table.LAYERS, "column": "act_amax"}),
        (Reading.LAST, 5.0, {"table": Table.LAYERS, "column": "act_amax", "layer": "down"}),
        (
            Reading.COUNT, 1,
            {
                "table": Table.EVENTS, "column": "overflow", "holds": Holds.OF_LAYER,
                "layer": "up", "direction": "forward",
            },
        ),
        (
            Reading.FIRST_STEP, 5,
            {"table": Table.EVENTS, "column": "misuse", "holds": Holds.OF_CODE, "code": "AMP401"},
        ),
        (Reading.ESTIMATE, 0.5, {"column": "recommended"}),
    ],
)  # fmt: skip
def test_a_reading_is_computed_as_its_meaning_says(
    reading: Reading, value: float, more: dict[str, Any]
) -> None:
    fact = Fact(reading, value, "", **{"column": "loss", **more})
    body = {"learning_rate": {"recommended": 0.5}}
    assert letter_truth.recompute(fact, small_run(), body) == value


@pytest.mark.parametrize(
    ("text", "value", "right"),
    [
        ("0.07", 0.0696, True), ("0.07", 0.0755, False), ("29,000", 28_600, True),
        ("29,000", 28_400, False), ("100", 104, True), ("100", 106, False),
        ("2.1e-22", 2.1e-22, True), ("2.1e-22", 2.2e-22, False), ("NaN", NAN, True),
        ("inf", INF, True), ("-inf", INF, False),
        ("12 %", 0.12, True), ("12 %", 12.0, False), ("1.5 octaves", 1.46, True),
        ("2900,0", 29_000, False),
    ],
)  # fmt: skip
def test_a_text_is_a_rounding_by_half_of_its_last_digit(
    text: str, value: float, right: bool
) -> None:
    assert letter_truth.is_rounded(text, value) is right
