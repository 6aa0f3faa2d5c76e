"""What a text format is, and the pattern of a number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ampwatch.importers.named_numbers import figures_in
from ampwatch.importers.statements import Statement, Stats

# A number as any framework prints it. No two parts of the pattern match the same text, so it cannot
# backtrack for long.
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[Nn][Aa][Nn]|[Ii]nf)"

# The settings of torch's GradScaler, which most frameworks keep.
TORCH_SCALER = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000.0}


def any_scale(_: float) -> bool:
    """Accept every printed scale: the default of formats that print scales exactly."""
    return True


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
    # False for a scale that was rounded to 0, or is an average
    is_scale: Callable[[float], bool] = any_scale
    meant: Callable[[float], float] = float  # the true scale behind a rounded one
    instead_of: tuple[str, ...] = ()  # formats whose lines this framework prints as well
    is_shared: bool = False  # lines that any framework may print: they do not identify the source
    is_last_resort: bool = False  # used only while no other format has found a loss
    notes: tuple[str, ...] = ()  # how its figures are to be read
    counts_epochs: bool = False  # a bar on its lines counts batches, and is not its step
    # The same for one log, if its other lines say how its statistics are read.
    learn: Callable[[Sequence[str]], Callable[[str], Iterable[Statement]]] | None = None
    has_figures: bool = True  # its statistics may hold numbers beside those that `read` knows
    leads: bool = False  # identifies the source even if a library below it prints the skips

    def statements(self, line: str) -> Iterator[Statement]:
        """Yield what a line states: its statistics with all that it names beside our columns."""
        has_more = self.has_figures and not self.is_last_resort
        for told in self.read(line):
            if isinstance(told, Stats) and has_more:
                yield dataclasses.replace(told, values={**figures_in(line), **told.values})
            else:
                yield told


def number(text: str) -> float:
    """The number that a format's pattern found in a line; nan if the text is not a number."""
    try:
        return float(text.strip("'\" ").replace(",", ""))
    except ValueError:
        return float("nan")
