"""The page says what the tests try, and nothing else."""

from __future__ import annotations

from ranks_wrappers import MAKES
from wrapper_rank_cells import RANK_WRAPPERS
from wrapper_table import PAGE, page


def test_the_page_is_made_from_the_tests_expectations():
    assert PAGE.read_text() == page(), "run: python tests/wrappers/wrapper_table.py"


def test_every_wrapper_of_several_ranks_is_trained():
    assert list(MAKES) == [wrapper.name for wrapper in RANK_WRAPPERS]
