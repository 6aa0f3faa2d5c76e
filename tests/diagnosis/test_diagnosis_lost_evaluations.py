"""A loss of an evaluation that is nan while training goes on; nan from a first line on."""

from __future__ import annotations

import math

import pytest

from ampwatch import diagnose, open_run
from ampwatch.importers import import_log

LINE = "epoch {n} | train_loss {l:.4f} | lr 1.0e-03 | val_loss {v}\n"


def diagnosed(text: str, folder):
    path = folder / "train.log"
    path.write_text(text, "utf-8")
    return diagnose(open_run(import_log(path, folder / "runs")))


def lines(values) -> str:
    return "".join(
        LINE.format(n=n, l=0.2 + 2 * math.exp(-n / 9), v=value) for n, value in enumerate(values)
    )


@pytest.mark.parametrize(
    ("values", "since"),
    [(["nan"] * 40, 0), ([f"{2 - n / 99:.3f}" for n in range(30)] + ["nan"] * 10, 30)],
)
def test_a_validation_loss_that_is_nan_to_the_end_is_a_warning(values, since, tmp_path):
    found = diagnosed(lines(values), tmp_path)
    (told,) = [finding for finding in found.findings if finding.code == "AMP204"]
    assert (found.verdict.value, told.severity.value, told.first_step) == (
        "warning", "warning", since,
    )  # fmt: skip
    assert "val_loss" in told.summary
    assert found.learning_rate.action.value != "lower"


def test_one_that_was_nan_and_is_finite_again_is_none(tmp_path):
    values = ["1.9", "nan", "1.7", "nan", "nan", *(f"{1.6 - n / 99:.3f}" for n in range(30))]
    assert not [f for f in diagnosed(lines(values), tmp_path).findings if f.code == "AMP204"]


def test_nan_from_the_first_line_of_a_later_part_does_not_clear_the_learning_rate(tmp_path):
    text = "".join(f"step {n} loss nan lr 2.0e+01\n" for n in range(200, 3200, 200))
    found = diagnosed(text, tmp_path)
    assert (found.verdict.value, found.learning_rate.action.value) == ("failing", "unknown")
