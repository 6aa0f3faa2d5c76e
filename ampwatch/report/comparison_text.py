"""A comparison for the terminal: figures, first differences, settings, and the rate for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.words import count_text, list_text, scale_text
from ampwatch.printable_text import printable
from ampwatch.report.comparison import Comparison, has_boundary
from ampwatch.report.divergence import Difference, Divergence
from ampwatch.report.terminal_report import STYLES, Write, advised, is_fancy, labelled, writer

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_RUNS = len(LETTERS)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print it, as this console can show it."""
    write = writer(fancy=is_fancy(console))
    console.print(comparison_text(comparison, write), highlight=False)


def comparison_text(comparison: Comparison, write: Write) -> Group:
    """The whole comparison: the figures, where the runs differ, the settings, the rate."""
    parts: list[RenderableType] = [_grid(comparison.names, comparison.figures, write)]
    parts += _section("First differences", labelled(list(_differences(comparison)), write))
    if comparison.settings:
        settings = {n: [v or "-" for v in values] for n, values in comparison.settings.items()}
        parts += _section("Settings that differ", _grid((), settings, write))
    else:
        parts += _section("Settings that differ", Text("None in the records."))
    rate = _rate(comparison)
    if rate:
        parts += _section("Learning rate", Text(write(rate)))
    return Group(*parts)


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, "bold"), body]


def _grid(names: Sequence[str], rows: Mapping[str, Sequence[str]], write: Write) -> Grid:
    """A column a run, with its letter and name at the top."""
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


def _differences(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for letter, one in zip(LETTERS[1:], comparison.partings, strict=False):
        labels = chain([f"A and {letter}"], repeat(""))
        yield from zip(labels, _sentences(one, letter), strict=False)
    if comparison.uncounted:
        names = list_text(comparison.uncounted)
        yield "note", f"The steps of {names} are counted: their log does not number them."


def _sentences(one: Divergence, letter: str) -> Iterator[str]:
    if not one.common_steps:
        yield "They have no step in common."
        return
    last = one.last_common_step
    yield f"{count_text(one.common_steps, 'step')} in common, the last {last:,}."
    texts = {
        "loss": _loss_text(one),
        "scale": _scale_text(one.scale),
        "skips": _skips_text(one.skips, letter),
    }
    for name, text in texts.items():
        known = text if name in one.both_tell else "not recorded by both"
        yield f"{name.capitalize()}: {known}."


def _loss_text(one: Divergence) -> str:
    bits, apart = one.loss_bits, one.loss
    if bits is None:
        return "the same to the last bit"
    text = f"differs from step {bits.step:,}"
    if apart is None and not one.knows_noise:
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
        reason = comparison.not_together or ""
        return reason[:1].upper() + reason[1:]
    if not has_boundary(advice):
        return "None of these runs failed by its rate: they show no upper limit."
    return f"For all: {advised(advice)}. {advice.because}"
