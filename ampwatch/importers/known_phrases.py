"""Lines that some programs word in a way of their own, in plain words.

A row a program: its line, and the same as names and numbers. What is printed by words that say what
they mean needs no row here.
"""

from __future__ import annotations

import re

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_PHRASES: tuple[tuple[str, str, str], ...] = (
    # Deeplearning4j: its score is the loss.
    ("Score at iteration", rf"Score at iteration (\d+) is ({_NUMBER})", r"iteration \1 loss \2"),
    # darknet: the loss, its mean, the learning rate.
    (
        " avg",
        rf"^ *(\d+): ({_NUMBER}), {_NUMBER} avg(?: loss)?, ({_NUMBER}) rate,.*",
        r"iteration \1 loss \2 lr \3",
    ),
    # Flower: the loss after a round on all clients.
    ("fit progress", rf"fit progress: \((\d+), ({_NUMBER}), (.*)", r"step \1 loss \2 \3"),
    # VITS and its descendants: a list of losses that ends with the step and the learning rate.
    (
        "]",
        rf"INFO\s+\[(?:{_NUMBER}, )({_NUMBER}), (?:{_NUMBER}, ){{3,5}}(\d+), ({_NUMBER})\]$",
        r"step \2 gen_loss \1 lr \3",
    ),
)
_COMPILED = tuple((anchor, re.compile(wording), plain) for anchor, wording, plain in _PHRASES)


def in_plain_words(line: str) -> str:
    """A line with what is known to mean a step and a loss said in plain words."""
    for anchor, wording, plain in _COMPILED:
        if anchor in line:
            line = wording.sub(plain, line)
    return line
