"""A text format, and the patterns that formats share."""

from __future__ import annotations

import math
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
    """Every printed scale is a scale."""
    return True


def as_printed(scale: float) -> float:
    """The scale as printed."""
    return scale


@dataclass(frozen=True, slots=True)
class Format:
    """One framework's text: how its lines are found and read.

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
    leads: bool = False  # identifies the source even if a library below it prints the skips


def number(text: str) -> float:
    """A printed number; nan if the text is not a number."""
    try:
        return float(text.strip("'\" ").replace(",", ""))
    except ValueError:
        return float("nan")


def snapped(scale: float) -> float:
    """The power of two that is printed like this in a few digits."""
    if not (scale > 0 and math.isfinite(scale)):
        return scale
    near: float = 2.0 ** round(math.log2(scale))
    return near if math.isclose(near, scale, rel_tol=0.05) else scale


def pattern(text: str) -> re.Pattern[str]:
    """A pattern in which `{}` matches a number (a group) and a blank matches one or more blanks."""
    pieces = [re.escape(piece).replace(r"\ ", " +") for piece in text.split("{}")]
    return re.compile(f"({NUMBER})".join(pieces))


def fields(line: str, keys: Mapping[str, re.Pattern[str]]) -> dict[str, float]:
    """The columns whose pattern matches in the line."""
    found = {}
    for column, wanted in keys.items():
        match = wanted.search(line)
        if match:
            found[column] = number(match[1])
    return found


def keyed(text: str) -> re.Pattern[str]:
    """The pattern of a value after its key: `key: value`, `key=value` or `'key': 'value'`."""
    return re.compile(rf"(?<![\w.-]){text}['\"]?\s*[:=]?\s*['\"\[]?({NUMBER})")
