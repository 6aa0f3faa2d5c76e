"""Every number of a letter is true, whatever the run: computed again by `letter_truth`."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import children
import letter_truth
import pyarrow as pa
import pytest
import written_runs
from rich.console import Console

import ampwatch
from ampwatch.cli.demo import SCENARIOS, scripts_folder
from ampwatch.errors import LogError
from ampwatch.importers import import_log
from ampwatch.report.letter import Letter, letter_of
from ampwatch.report.letter_text import LetterView

SAMPLES = sorted(
    path
    for path in (Path(__file__).parent / "importers" / "samples").iterdir()
    if path.suffix != ".json"
)


def printed(letter: Letter, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(LetterView(letter))
    return console.file.getvalue()  # type: ignore[attr-defined]


def problems_of(run: Any, letter: Letter, body: dict[str, Any]) -> list[str]:
    """What is untrue or too long in a run's letter."""
    return [
        *letter_truth.untrue_numbers(letter, run, body, printed(letter)),
        *letter_truth.beyond_limits(printed(letter)),
    ]


def checked(run: ampwatch.Run) -> tuple[Letter, list[str]]:
    diagnosis = ampwatch.diagnose(run)
    letter = letter_of(run.info.name, run, diagnosis)
    return letter, problems_of(run, letter, diagnosis.to_json())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_every_number_in_the_letter_on_a_foreign_log_is_true(sample: Path, tmp_path: Path) -> None:
    try:
        run = ampwatch.open_run(import_log(str(sample), tmp_path))
    except LogError as error:
        pytest.skip(str(error))
    assert checked(run)[1] == []
