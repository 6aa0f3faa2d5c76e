"""Text from outside (names of runs and layers, messages), made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, printable: without characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "�" for c in text)


def cut(text: str, most: int) -> str:
    """The text, at most so long: a longer one ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def with_article(noun: str) -> str:
    """The name of a class with "a" or "an" before it: a Linear, an Adam, an SGD."""
    is_spelled = noun[:2].isupper()  # read letter by letter: "an S-G-D"
    vowels = "AEFHILMNORSX" if is_spelled else "AEIOaeio"
    return f"{'an' if noun[:1] in tuple(vowels) else 'a'} {noun}"
