"""What a text format is, and the patterns for numbers and fields that the formats share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ampwatch.importers.statements import Statement

# A number as any framework prints it. No two parts of the pattern match the same text, so it cannot
# backtrack for long.
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[Nn][Aa][Nn]|[Ii]nf)"

# The settings of torch's GradScaler, which most frameworks keep.
TORCH_SCALER = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000.0}


def any_scale(_: float) -> bool:
    """Accept every printed scale: the default of formats that print scales exactly."""
    return True


def as_printed(scale: float) -> float:
    """Take a scale as printed: the default of formats that do not round it."""
    return scale


@dataclass(frozen=True, slots=True)
class Format:
    """One framework's text format: how its lines are found and read.

    `anchors` are literal texts. Every line that `read` understands contains one of them; `read`
    never gets other lines. `read` returns what a line states, or nothing.
    """

    source: str  # the name in run.json
    anchors: tuple[str, ...]
    read: Callable[[str], Iterable[Statement]]
    scaler: Mapping[str, float] = field(default_factory=dict)  # the framework's defaults
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_scale: Callable[[float], bool] = (
        any_scale  # False for a scale that was rounded to 0, or is an average
    )
    meant: Callable[[float], float] = as_printed  # the true scale behind a rounded one
    instead_of: tuple[str, ...] = ()  # formats whose lines this framework prints as well
    is_shared: bool = False  # lines that any framework may print: they do not identify the source
    is_last_resort: bool = False  # used only while no other format has found a loss
    notes: tuple[str, ...] = ()  # how its figures are to be read
    counts_epochs: bool = False  # a bar on its lines counts batches, and is not its step
    leads: bool = False  # identifies the source even if a library below it prints the skips


def number(text: str) -> float:
    """The number that a format's pattern found in a line; nan if the text is not a number."""
    try:
        return float(text.strip("'\" ").replace(",", ""))
    except ValueError:
        return float("nan")


def pattern(text: str) -> re.Pattern[str]:
    """A format's pattern: `{}` matches a number (a group), a blank matches one or more blanks."""
    pieces = [re.escape(piece).replace(r"\ ", " +") for piece in text.split("{}")]
    return re.compile(f"({NUMBER})".join(pieces))


def fields(line: str, keys: Mapping[str, re.Pattern[str]]) -> dict[str, float]:
    """The numbers that a format's patterns find in a line, by our column."""
    found = {}
    for column, wanted in keys.items():
        match = wanted.search(line)
        if match:
            found[column] = number(match[1])
    return found


def keyed(text: str) -> re.Pattern[str]:
    """A format's pattern of a number after its key: `key: 1`, `key=1` or `'key': '1'`."""
    return re.compile(rf"(?<![\w.-]){text}['\"]?\s*[:=]?\s*['\"\[]?({NUMBER})")
