"""A comparison in the terminal: figures, where they part, settings, and the rate for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.words import count_text, list_text, scale_text
from ampwatch.report.comparison import Comparison, has_boundary
from ampwatch.report.facts import powers
from ampwatch.report.letter import STYLES, Write, advised, labelled
from ampwatch.report.parting import Difference, Parting
from ampwatch.text import printable

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_RUNS = len(LETTERS)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print it, as this console can show it."""
    fancy = console.is_terminal and "utf" in console.encoding.lower()

    def write(text: str) -> str:
        return powers(printable(text)) if fancy else printable(text)

    console.print(told(comparison, write), highlight=False)


def told(comparison: Comparison, write: Write) -> Group:
    """All that is to be said of it: the figures, where they part, the settings, the rate."""
    parts: list[RenderableType] = [_grid(comparison.names, comparison.figures, write)]
    parts += _section("Where they part", labelled(list(_partings(comparison)), write))
    if comparison.settings:
        settings = {n: [v or "-" for v in values] for n, values in comparison.settings.items()}
        parts += _section("Settings that differ", _grid((), settings, write))
    else:
        parts += _section("Settings that differ", Text("None that the records tell."))
    rate = _rate(comparison)
    if rate:
        parts += _section("Learning rate", Text(write(rate)))
    return Group(*parts)


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, "bold"), body]


def _grid(names: Sequence[str], rows: Mapping[str, Sequence[str]], write: Write) -> Grid:
    """A column a run; what is told of it below its letter and name."""
    count = len(next(iter(rows.values())))
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    for _ in range(count):
        grid.add_column(overflow="fold")
    heads = names or [""] * count
    titles = (f"{letter} {printable(n)}" for letter, n in zip(LETTERS, heads, strict=False))
    grid.add_row("", *(Text(title.strip(), "bold") for title in titles))
    for label, values in rows.items():
        cells = (Text(write(value), STYLES.get(value, "")) for value in values)
        grid.add_row(printable(label), *cells)
    return grid


def _partings(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for letter, parting in zip(LETTERS[1:], comparison.partings, strict=False):
        labels = chain([f"A and {letter}"], repeat(""))
        yield from zip(labels, _sentences(parting, letter), strict=False)
    if comparison.uncounted:
        names = list_text(comparison.uncounted)
        yield "note", f"The steps of {names} are counted: their log does not number them."


def _sentences(parting: Parting, letter: str) -> Iterator[str]:
    if not parting.common_steps:
        yield "They have no step in common."
        return
    last = parting.last_common_step
    yield f"{count_text(parting.common_steps, 'step')} in common, the last {last:,}."
    said = {
        "loss": _loss_text(parting),
        "scale": _scale_text(parting.scale),
        "skips": _skips_text(parting.skips, letter),
    }
    for name, text in said.items():
        known = text if name in parting.both_tell else "not told by both"
        yield f"{name.capitalize()}: {known}."


def _loss_text(parting: Parting) -> str:
    bits, apart = parting.loss_bits, parting.loss
    if bits is None:
        return "the same to the last bit"
    text = f"differs from step {bits.step:,}"
    if apart is None and not parting.knows_noise:
        return f"{text} ({_pair(bits)}), in too few steps to tell it from noise"
    if apart is None:
        return f"{text}, never by more than noise"
    said = _pair(apart)
    if apart.step == bits.step:
        return f"{text} ({said}), beyond noise"
    return f"{text}, beyond noise from step {apart.step:,} ({said})"


def _pair(difference: Difference) -> str:
    return f"{_number(difference.first)} against {_number(difference.second)}"


def _scale_text(scale: Difference | None) -> str:
    if scale is None:
        return "the same"
    values = f"{scale_text(scale.first)} against {scale_text(scale.second)}"
    return f"differs from step {scale.step:,} ({values})"


def _skips_text(skips: Difference | None, letter: str) -> str:
    if skips is None:
        return "the same"
    return f"step {skips.step:,} is skipped by {'A' if skips.first else letter} alone"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _rate(comparison: Comparison) -> str:
    advice = comparison.learning_rate
    if advice is None:
        told = comparison.not_together or ""
        return told[:1].upper() + told[1:]
    if not has_boundary(advice):
        return "None of these runs failed by its rate: they show no upper limit to it."
    return f"For all: {advised(advice)}. {advice.because}"
