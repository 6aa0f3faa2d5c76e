"""Text from outside is shown, never obeyed."""

from __future__ import annotations

from ampwatch.printable_text import printable


def test_what_a_terminal_would_obey_is_replaced():
    assert printable("a\x1b[2Jb\u202ec\nd") == "a�[2Jb�c�d"
