"""The table of compared runs, sorted by any of its columns."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from compare_page import answer_html, runs_html, settings_html

from ampwatch.report.comparison import BEST, END, Comparison
from ampwatch.report.divergence import Divergence

NAMES = ("a", "B", "c", "d")
ENDS = (0.3, 0.1, math.nan, None)
TEXTS = ("0.3", "0.1", "never finite", "")


@pytest.fixture
def comparison():
    """Four runs: the third never had a finite loss, the fourth logged none."""
    shown = {"verdict": ("healthy", "failing", "failing", "warning"), END: TEXTS, BEST: TEXTS}
    return Comparison(
        names=NAMES, figures=shown, numbers={END: ENDS, BEST: ENDS}, differences={}, values={},
        settings={"lr": ("0.01", "2e-3", "10", None)}, same_settings={}, partings=(),
        uncounted=(), learning_rate=None,
    )  # fmt: skip


def rows(page):
    return re.findall(r'data-go="(\w)"', page)


def table(comparison, order=None):
    return runs_html(comparison, {name: at for at, name in enumerate(NAMES)}, set(), order)


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ("run", "aBcd"),
        ("-run", "dcBa"),
        (END, "Bacd"),  # by size, and what has none comes last, either way
        (f"-{END}", "caBd"),
        ("verdict", "Bcad"),
    ],
)
def test_runs_are_sorted_by_a_column_and_those_without_a_value_come_last(comparison, order, wanted):
    assert "".join(rows(table(comparison, order))) == wanted


def test_an_order_that_this_table_does_not_have_changes_nothing(comparison):
    assert rows(table(comparison, "<b>")) == rows(table(comparison))
    assert "Sorted by the loss at the end, the best first" in table(comparison, "<b>")


def test_a_heading_says_how_it_sorts_and_what_a_click_does(comparison):
    found = [table(comparison, order) for order in (None, BEST, f"-{BEST}")]
    heads = [re.search(r'aria-sort="(\w+)"><button[^>]*data-sort="(-?[\w ]*)" [^>]*>best', page)
             for page in found]  # fmt: skip
    assert [head.groups() for head in heads] == [
        ("none", BEST), ("ascending", f"-{BEST}"), ("descending", ""),
    ]  # fmt: skip


def test_runs_of_two_models_are_said_to_be_unrelated_before_where_they_part(comparison):
    sentence = "These are not runs of one model: they train 172 and 676 parameters."
    unrelated = dataclasses.replace(
        comparison, names=("a", "b"), partings=(Divergence(0),), not_together=sentence
    )
    page = answer_html(unrelated, 0)
    assert 0 < page.index(sentence) < page.index("They have no step in common.")


@pytest.mark.parametrize(("settings", "told"), [
    ({"lr": ("1", "2", "3", "4")}, "Settings that differ"),
    ({}, "No recorded setting differs."),
])  # fmt: skip
def test_settings_that_differ_have_a_table_of_their_own(comparison, settings, told):
    styles = {name: at for at, name in enumerate(NAMES)}
    page = settings_html(dataclasses.replace(comparison, settings=settings), styles)
    assert told in page
