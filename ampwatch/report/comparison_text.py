"""A comparison in words: sentences on where runs diverge, and the tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis import Action
from ampwatch.diagnosis.learning_rate.constants import ROBUST_DEVIATIONS
from ampwatch.diagnosis.value_text import count_text, list_text, scale_text
from ampwatch.errors import RunError
from ampwatch.printable_text import printable
from ampwatch.report.compared_run import LOSS
from ampwatch.report.comparison import Comparison
from ampwatch.report.divergence import (
    ColumnDifference,
    Difference,
    Divergence,
    FirstDifference,
    LayerDifference,
    words_of,
)
from ampwatch.report.sweep import RATE, Fate, Point, Sweep, besides_text
from ampwatch.report.terminal_report import STYLES, Write, advised, is_fancy, labelled, writer
from ampwatch.rows import Table

_MOST_IN_FULL = 5  # runs whose differences are printed in full
_LEAST_WIDTH = 18  # of a run's column; those that do not fit beside one another go below
_MOST_VALUES = 12  # of the user's own values
_MOST_SAME = 8  # settings that all have, by name


def letter(number: int) -> str:
    """The letters that stand for a run: A to Z, then AA, AB."""
    rest, last = divmod(number, 26)
    return (letter(rest - 1) if rest else "") + chr(ord("A") + last)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a comparison of runs, as this console can show it."""
    write = writer(fancy=is_fancy(console))
    console.print(comparison_text(comparison, write, console.width), highlight=False)


def comparison_text(comparison: Comparison, write: Write, width: int | None = None) -> Group:
    """A comparison as tables; runs that do not fit into the width are told below the others."""
    parts: list[RenderableType] = []
    figures, left_out = _figures(comparison)
    parts += _grids(comparison.names, figures, write, width)
    parts += [Text(left_out, "dim")] if left_out else []
    parts += (
        [Text(), Text(write(comparison.not_together), "bold")] if comparison.not_together else []
    )
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
            "without --sweep shows where they differ."
        )
    write = writer(fancy=is_fancy(console))
    console.print(sweep_text(comparison, comparison.sweep, write), highlight=False)


def sweep_text(comparison: Comparison, sweep: Sweep, write: Write) -> Group:
    """A sweep as a table: one row per run, by the setting, and where it begins to fail."""
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
    points = [point for point in sweep.points if point.outcome is not None]
    sign = -1 if sweep.higher_is_better else 1
    return min(points, key=lambda point: sign * (point.outcome or 0.0), default=None)


def _section(title: str, *body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, "bold"), *body]


def _figures(comparison: Comparison) -> tuple[dict[str, list[str]], str]:
    """The figures, each with its difference to the first run's; and what was left out."""
    own = [name for name in comparison.values if name != LOSS]
    hidden = own[_MOST_VALUES:]
    figures = {}
    for name, texts in comparison.figures.items():
        if name.rpartition(", ")[0] in hidden:
            continue
        apart = comparison.differences.get(name, ("",) * len(texts))
        figures[name] = [
            f"{text} ({more})" if more and number else text
            for number, (text, more) in enumerate(zip(texts, apart, strict=True))
        ]
    values = count_text(len(hidden), "value")
    return figures, f"{values} more that were logged are in --json." if hidden else ""


def _grids(
    names: Sequence[str], rows: Mapping[str, Sequence[str]], write: Write, width: int | None
) -> list[RenderableType]:
    """The table of a comparison, in as many parts as it takes to show every run."""
    count = len(next(iter(rows.values())))
    room = 0 if width is None else width - max(len(label) for label in rows)
    fits = count if width is None else max(2, room // (_LEAST_WIDTH + 2))
    grids: list[RenderableType] = []
    for start in range(0, count, fits):
        grids += [Text()] if start else []
        grids.append(_grid(names, rows, range(start, min(count, start + fits)), write))
    return grids


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
    yield "", "For a full comparison, name two runs: `ampwatch compare A B`."


def _is_of_rate(comparison: Comparison) -> bool:
    return comparison.sweep is not None and comparison.sweep.setting == RATE


def _rate(comparison: Comparison) -> str:
    advice = comparison.learning_rate
    if advice is None:
        return ""
    if advice.action is not Action.LOWER or not advice.has_interval:
        told = "None of these runs failed by its learning rate: they show no upper limit."
        return "" if _is_of_rate(comparison) else told
    return f"For all: {advised(advice)}. {advice.because} {_OF_ONE}"


_OF_ONE = (
    "The report on one of them weighs that run and earlier ones like it, so its range may differ."
)


# --- where two runs diverge -----------------------------------------------------------------------

_DIGITS = (".4g", ".7g", ".9g", ".17g")  # until the two values look different
_MOST_NAMED = 3  # columns that differ at the same step, or later
_WHAT = {"input_amax": "largest input "}  # what the numbers are, where the name does not say it
_SCALES = frozenset({"scale", "scale_after"})


def parting_text(one: Divergence, first: str, second: str) -> str:
    """Where the second run diverges from the first, and in what; `first` and `second` name them."""
    return " ".join(parting_parts(one, first, second))


def parting_parts(one: Divergence, first: str, second: str) -> list[str]:
    """Where the second run diverges, in separate sentences, the most important one first."""
    if not one.common_steps:
        return ["They have no step in common."]
    if not one.compared:
        return [f"Both recorded {count_text(one.common_steps, 'step')}, but no column in common."]
    found = one.first
    if found is None:
        names = list_text([words_of(name) for name in one.compared], 4)
        steps = count_text(one.common_steps, "step")
        return [f"Identical to the bit over {steps}, in everything that both recorded: {names}."]
    said = _column_text(found.columns[0], first, second)
    parts = [f"They diverge at step {found.step:,}, in the {said}."]
    if found.same_before:
        before = count_text(found.same_before, "common step")
        verb = "is" if found.same_before == 1 else "are"
        parts.append(f"The {before} before {verb} identical to the bit.")
    parts += [_rest_text(found, first, second)]
    parts += [layer_text(found.layer)] if found.layer else []
    return [part for part in parts if part]


def parted_by(one: Divergence) -> str:
    """Where a run diverges, in a few words, to group runs that diverge alike."""
    if not one.common_steps:
        return "no step in common"
    if not one.compared:
        return "no column in common"
    if one.first is None:
        return "identical to the bit"
    first, *others = one.first.columns
    more = f" and in {count_text(len(others), 'other value')}" if others else ""
    return f"diverge at step {one.first.step:,} in the {words_of(first.column)}{more}"


def grouped_partings(partings: Sequence[Divergence]) -> list[tuple[str, list[int]]]:
    """The runs that diverge alike, by number (the first run is 0); the largest group first."""
    groups: dict[str, list[int]] = {}
    for number, one in enumerate(partings, 1):
        groups.setdefault(parted_by(one), []).append(number)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def layer_text(found: LayerDifference) -> str:
    """The sentence on the layer that shows a difference."""
    label = words_of(found.column, Table.LAYERS)
    pair = _pair(found.first, found.second)
    if found.is_where_it_began:
        return f"The first layer to differ is {found.layer} ({label} {pair})."
    layers = f"{found.differing:,} of {count_text(found.sampled, 'layer')}"
    verb = "differs" if found.differing == 1 else "differ"
    return (
        f"Layers were next sampled at step {found.step:,}: {layers} {verb}, most of all "
        f"{found.layer} ({label} {pair})."
    )


def _rest_text(found: FirstDifference, first: str, second: str) -> str:
    """The sentences on what else differs there, and on what differs later."""
    there = [_column_text(part, first, second) for part in found.columns[1:]]
    later = [f"{words_of(part.column)} from step {part.step:,}" for part in found.later]
    sentences = []
    if there:
        sentences.append(f"There also: {list_text(there, _MOST_NAMED)}.")
    if later:
        sentences.append(f"Later: {list_text(later, _MOST_NAMED)}.")
    return " ".join(sentences)


def _column_text(part: ColumnDifference, first: str, second: str) -> str:
    name = words_of(part.column)
    if part.column == "skipped":
        return f"{name} of {first if part.first else second} alone"
    if part.column in _SCALES and not isinstance(part.first, str):
        return f"{name} ({scale_text(part.first)} against {scale_text(float(part.second))})"
    return f"{name} ({_WHAT.get(part.column, '')}{_pair(part.first, part.second)})"


def _pair(first: float | str, second: float | str) -> str:
    """Both runs' values in words, with enough digits to see that they differ."""
    if isinstance(first, str) or isinstance(second, str):
        return f"{first} against {second}"
    if math.isfinite(first) != math.isfinite(second):
        one, other = (f"{v:.4g}" if math.isfinite(v) else "not finite" for v in (first, second))
        return f"{one} against {other}"
    texts = ((format(first, digits), format(second, digits)) for digits in _DIGITS)
    one, other = next((pair for pair in texts if pair[0] != pair[1]), (str(first), str(second)))
    return f"{one} against {other}"


# --- loss, scale and skips ----------------------------------------------------------------------


def parting_sentences(one: Divergence, first: str, second: str) -> Iterator[str]:
    """Where two runs diverge, and where loss, scale and skips each begin to differ."""
    yield parting_text(one, first, second)
    if not one.common_steps:
        return
    last = one.last_common_step
    yield f"{count_text(one.common_steps, 'step')} in common, the last {last:,}."
    texts = {
        "loss": _loss_text(one),
        "scale": _scale_text(one.scale),
        "skips": _skips_text(one.skips, first, second),
    }
    for name, text in texts.items():
        answer = text if name in one.both_tell else "not recorded by both"
        yield f"{name.capitalize()}: {answer}."


def _loss_text(one: Divergence) -> str:
    bits = one.loss_bits
    if bits is None:
        return "the same to the last bit"
    end = one.loss_end
    ends = "" if end is None or end.step == bits.step else f"; at the end {_both(end)}"
    return _loss_parting(one, bits) + ends


def _loss_parting(one: Divergence, bits: Difference) -> str:
    """Where the losses begin to differ, and whether by more than noise: what differs has a size."""
    text, apart, noise = f"differs from step {bits.step:,}", one.loss, one.loss_noise
    if apart is None and noise is None:
        return f"{text} ({_both(bits)}), in too few steps to tell it from noise"
    if apart is not None and apart.step == bits.step:
        return f"{text} ({_both(apart)}), beyond noise"
    if apart is not None:
        return f"{text}, beyond noise from step {apart.step:,} ({_both(apart)})"
    assert noise is not None
    if abs(bits.first - bits.second) > ROBUST_DEVIATIONS * noise:
        return f"{text} ({_both(bits)}), later by no more than noise ({noise:.2g})"
    return f"{text}, never by more than noise ({noise:.2g})"


def _both(difference: Difference) -> str:
    return f"{_number(difference.first)} against {_number(difference.second)}"


def _scale_text(scale: Difference | None) -> str:
    if scale is None:
        return "the same"
    values = f"{scale_text(scale.first)} against {scale_text(scale.second)}"
    return f"differs from step {scale.step:,} ({values})"


def _skips_text(skips: Difference | None, first: str, second: str) -> str:
    if skips is None:
        return "the same"
    return f"step {skips.step:,} is skipped by {first if skips.first else second} alone"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
