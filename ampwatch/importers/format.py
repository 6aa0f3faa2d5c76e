"""What an importer of a text format is, and the patterns they share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ampwatch.importers.sayings import Saying

# A number as any framework prints it. No two parts of it can match the same text, so it cannot
# backtrack for long.
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[Nn][Aa][Nn]|[Ii]nf)"

# The torch GradScaler's settings, which most frameworks keep.
TORCH_SCALER = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000.0}


def any_scale(_: float) -> bool:
    """Whatever is printed is the scale."""
    return True


def as_printed(scale: float) -> float:
    """The very number."""
    return scale


@dataclass(frozen=True, slots=True)
class Format:
    """One framework's text: how its lines are found and read.

    `anchors` are literal texts, one of which stands in every line that `read` understands; lines
    without any are never shown to it. `read` says what a line says, or nothing.
    """

    source: str  # as run.json names it
    anchors: tuple[str, ...]
    read: Callable[[str], Iterable[Saying]]
    scaler: Mapping[str, float] = field(default_factory=dict)  # the framework's defaults
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_scale: Callable[[float], bool] = any_scale  # else it is rounded away, or an average
    meant: Callable[[float], float] = as_printed  # the scale that is printed with few digits
    instead_of: tuple[str, ...] = ()  # formats whose lines this framework prints as well
    is_shared: bool = False  # lines that any framework may print: they never name the source
    is_last_resort: bool = False  # asked while no other format has told a loss
    leads: bool = False  # names the source even where a library below it prints the skips


def number(text: str) -> float:
    """A printed number; what is none is nan."""
    try:
        return float(text.strip("'\" ").replace(",", ""))
    except ValueError:
        return float("nan")


def snapped(scale: float) -> float:
    """The power of two that prints as this scale, in a few digits."""
    if not (scale > 0 and math.isfinite(scale)):
        return scale
    near: float = 2.0 ** round(math.log2(scale))
    return near if math.isclose(near, scale, rel_tol=0.05) else scale


def pattern(text: str) -> re.Pattern[str]:
    """A pattern in which `{}` stands for a number (a group) and a blank for some blanks."""
    pieces = [re.escape(piece).replace(r"\ ", " +") for piece in text.split("{}")]
    return re.compile(f"({NUMBER})".join(pieces))


def fields(line: str, keys: Mapping[str, re.Pattern[str]]) -> dict[str, float]:
    """The columns whose pattern the line holds."""
    found = {}
    for column, wanted in keys.items():
        match = wanted.search(line)
        if match:
            found[column] = number(match[1])
    return found


def keyed(text: str) -> re.Pattern[str]:
    """The pattern of a value behind its key, as `key: value`, `key=value` or `'key': 'value'`."""
    return re.compile(rf"(?<![\w.-]){text}['\"]?\s*[:=]?\s*['\"\[]?({NUMBER})")
