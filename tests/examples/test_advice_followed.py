"""What the letter says, done to the letter, makes a failing run train."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.slow_trainings
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("sgd-too-fast", "AMP301"),
        ("mask-beyond-half", "AMP203"),
        ("clip-before-unscale", "AMP401"),
    ],
)
def test_a_rerun_that_does_what_the_letter_says_trains(tmp_path: Path, name: str, code: str):
    from advice_followed import follow

    from examples.gallery import all_cases

    cases = {case.name: case for case in all_cases()}
    story = follow(cases[name], cases[f"{name}.twin"], tmp_path, seed=1)
    assert story.before.verdict == "failing"
    assert story.before.headline.startswith(code)
    assert len(story.actions) == 1
    assert story.after.verdict == "healthy"
    assert story.after.learns
