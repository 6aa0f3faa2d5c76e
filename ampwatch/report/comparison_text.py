"""A comparison for the terminal: figures, first differences, settings, and the rate for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.words import count_text, list_text
from ampwatch.errors import RunError
from ampwatch.printable_text import printable
from ampwatch.report.compared_run import LOSS
from ampwatch.report.comparison import Comparison, has_boundary
from ampwatch.report.parting_text import grouped_partings, parting_sentences
from ampwatch.report.sweep import RATE, Fate, Point, Sweep, besides_text
from ampwatch.report.terminal_report import STYLES, Write, advised, is_fancy, labelled, writer

_MOST_IN_FULL = 5  # runs whose differences are told in full
_LEAST_WIDTH = 18  # of a run's column; those that do not fit beside one another go below
_MOST_VALUES = 12  # of the user's own values
_MOST_SAME = 8  # settings that all have, by name


def letter(number: int) -> str:
    """The letters that stand for a run: A to Z, then AA, AB."""
    rest, last = divmod(number, 26)
    return (letter(rest - 1) if rest else "") + chr(ord("A") + last)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print it, as this console can show it."""
    write = writer(fancy=is_fancy(console))
    console.print(comparison_text(comparison, write, console.width), highlight=False)


def comparison_text(comparison: Comparison, write: Write, width: int | None = None) -> Group:
    """The whole comparison; runs that do not fit into the width are told below the others."""
    parts: list[RenderableType] = []
    figures, left_out = _figures(comparison)
    parts += _grids(comparison.names, figures, write, width)
    parts += [Text(left_out, "dim")] if left_out else []
    parts += _section("Where they part", labelled(list(_differences(comparison)), write))
    if comparison.settings:
        settings = {n: [v or "-" for v in values] for n, values in comparison.settings.items()}
        parts += _section("Settings that differ", *_grids((), settings, write, width))
    else:
        parts += _section("Settings that differ", Text("None in the records."))
    if comparison.same_settings:
        names = list_text(list(comparison.same_settings), _MOST_SAME)
        parts.append(Text(write(f"The same in all: {names}."), "dim"))
    rate = _rate(comparison)
    swept = comparison.sweep.sentence if _is_of_rate(comparison) and comparison.sweep else ""
    if rate or swept:
        parts += _section("Learning rate", *(Text(write(t)) for t in (swept, rate) if t))
    return Group(*parts)


def print_sweep(console: Console, comparison: Comparison) -> None:
    """Print the sweep alone, as this console can show it; raises RunError where there is none."""
    if comparison.sweep is None:
        raise RunError(
            "No setting differs between these runs, so there is no sweep: `ampwatch compare` "
            "without --sweep shows where they part."
        )
    write = writer(fancy=is_fancy(console))
    console.print(sweep_text(comparison, comparison.sweep, write), highlight=False)


def sweep_text(comparison: Comparison, sweep: Sweep, write: Write) -> Group:
    """A row a run, by the setting, and where it begins to fail."""
    grid = Grid.grid(padding=(0, 2))
    for _ in (sweep.setting, sweep.outcome, "verdict", "run"):
        grid.add_column(overflow="fold")
    grid.add_row(*(Text(t, "bold") for t in (sweep.setting, sweep.outcome, "what became", "run")))
    best = _best(sweep)
    for point in sweep.points:
        mark = " (best)" if point is best else ""
        fate = point.fate.value
        verdict = point.verdict if fate in {Fate.STABLE, Fate.FAILED} else fate
        name = f"{letter(point.run)} {comparison.names[point.run]}"
        fated = Text(verdict, STYLES.get(verdict, ""))
        outcome = Text(point.outcome_text + mark)
        grid.add_row(Text(write(point.text)), outcome, fated, Text(write(name)))
    parts: list[RenderableType] = [grid, Text(), Text(write(sweep.sentence), "bold")]
    besides = besides_text(sweep)
    parts += [Text(write(besides))] if besides else []
    rate = _rate(comparison) if sweep.setting == RATE else ""
    return Group(*parts, *([Text(write(rate))] if rate else []))


def _best(sweep: Sweep) -> Point | None:
    known = [point for point in sweep.points if point.outcome is not None]
    sign = -1 if sweep.higher_is_better else 1
    return min(known, key=lambda point: sign * (point.outcome or 0.0), default=None)


def _section(title: str, *body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, "bold"), *body]


def _figures(comparison: Comparison) -> tuple[dict[str, list[str]], str]:
    """The figures, each with its difference to the first run's; and what was left out."""
    own = [name for name in comparison.values if name != LOSS]
    hidden = own[_MOST_VALUES:]
    found = {}
    for name, texts in comparison.figures.items():
        if name.rpartition(", ")[0] in hidden:
            continue
        apart = comparison.differences.get(name, ("",) * len(texts))
        found[name] = [
            f"{text} ({more})" if more and number else text
            for number, (text, more) in enumerate(zip(texts, apart, strict=True))
        ]
    values = count_text(len(hidden), "value")
    return found, f"{values} more that were logged are in --json." if hidden else ""


def _grids(
    names: Sequence[str], rows: Mapping[str, Sequence[str]], write: Write, width: int | None
) -> list[RenderableType]:
    """The table, in as many parts as it takes to show every run."""
    count = len(next(iter(rows.values())))
    room = 0 if width is None else width - max(len(label) for label in rows)
    fits = count if width is None else max(2, room // (_LEAST_WIDTH + 2))
    found: list[RenderableType] = []
    for start in range(0, count, fits):
        found += [Text()] if start else []
        found.append(_grid(names, rows, range(start, min(count, start + fits)), write))
    return found


def _grid(
    names: Sequence[str], rows: Mapping[str, Sequence[str]], shown: range, write: Write
) -> Grid:
    """A column a run, with its letter and name at the top."""
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    titles = []
    for number in shown:
        grid.add_column(overflow="fold")
        name = printable(names[number]) if names else ""
        titles.append(Text(f"{letter(number)} {name}".strip(), "bold"))
    grid.add_row("", *titles)
    for label, values in rows.items():
        cells = (Text(write(values[n]), STYLES.get(values[n], "")) for n in shown)
        grid.add_row(printable(label), *cells)
    return grid


def _differences(comparison: Comparison) -> Iterator[tuple[str, str]]:
    if len(comparison.names) <= _MOST_IN_FULL:
        for number, one in enumerate(comparison.partings, 1):
            labels = chain([f"A and {letter(number)}"], repeat(""))
            yield from zip(labels, parting_sentences(one, "A", letter(number)), strict=False)
    else:
        yield from _of_many(comparison)
    if comparison.uncounted:
        names = list_text(comparison.uncounted)
        yield "note", f"The steps of {names} are counted: their log does not number them."


def _of_many(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """The runs that part alike from the first, in a line; all of them are named."""
    for text, numbers in grouped_partings(comparison.partings):
        letters = list_text([letter(number) for number in numbers], len(numbers))
        yield "A and", f"{letters}: {text}."
    yield "", "Two runs alone (`ampwatch compare A B`) are told in full."


def _is_of_rate(comparison: Comparison) -> bool:
    return comparison.sweep is not None and comparison.sweep.setting == RATE


def _rate(comparison: Comparison) -> str:
    advice = comparison.learning_rate
    if advice is None:
        reason = comparison.not_together or ""
        return reason[:1].upper() + reason[1:]
    if not has_boundary(advice):
        told = "None of these runs failed by its rate: they show no upper limit."
        return "" if _is_of_rate(comparison) else told
    return f"For all: {advised(advice)}. {advice.because}"
