"""Text from outside is shown, never obeyed."""

from __future__ import annotations

import pytest

from ampwatch.printable_text import printable, with_article


def test_what_a_terminal_would_obey_is_replaced():
    assert printable("a\x1b[2Jb\u202ec\nd") == "a�[2Jb�c�d"


@pytest.mark.parametrize(
    "text",
    ["an SGD", "an Adam", "an AdamW", "an int", "an LBFGS", "an NAdam", "a Linear", "a list",
     "a dict", "a UserDict", "a GradScaler", "a ", "an RMSprop"],
)  # fmt: skip
def test_the_article_is_that_of_the_word_as_it_is_read(text):
    noun = text.partition(" ")[2]
    assert with_article(noun) == text
