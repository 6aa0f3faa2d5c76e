"""Where runs diverge, in sentences: for the terminal, the page and the HTML file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ampwatch.diagnosis.words import count_text, list_text, scale_text
from ampwatch.report.divergence import Difference, Divergence
from ampwatch.report.first_difference import (
    ColumnDifference,
    FirstDifference,
    LayerDifference,
    words_of,
)
from ampwatch.rows import Table

_DIGITS = (".4g", ".7g", ".9g", ".17g")  # until the two values look different
_MOST_NAMED = 3  # columns that differ at the same step, or later
_WHAT = {"input_amax": "largest input "}  # what the numbers are, where the name does not say it
_SCALES = frozenset({"scale", "scale_after"})


def parting_text(one: Divergence, first: str, second: str) -> str:
    """Where the second run diverges from the first, and in what; `first` and `second` name them."""
    return " ".join(parting_parts(one, first, second))


def parting_parts(one: Divergence, first: str, second: str) -> list[str]:
    """The same as separate sentences, the most important one first."""
    if not one.common_steps:
        return ["They have no step in common."]
    if not one.compared:
        return [f"Both recorded {count_text(one.common_steps, 'step')}, but no column in common."]
    found = one.first
    if found is None:
        names = list_text([words_of(name) for name in one.compared], 4)
        steps = count_text(one.common_steps, "step")
        return [f"Identical to the bit over {steps}, in everything that both recorded: {names}."]
    parts = [f"They diverge at step {found.step:,}, in the {_column_text(found, first, second)}."]
    if found.same_before:
        before = count_text(found.same_before, "common step")
        verb = "is" if found.same_before == 1 else "are"
        parts.append(f"The {before} before {verb} identical to the bit.")
    parts += [_rest_text(found, first, second)]
    parts += [layer_text(found.layer)] if found.layer else []
    return [part for part in parts if part]


def parted_by(one: Divergence) -> str:
    """The same in a few words, to group runs that diverge alike."""
    if not one.common_steps:
        return "no step in common"
    if not one.compared:
        return "no column in common"
    if one.first is None:
        return "identical to the bit"
    names = [words_of(part.column) for part in one.first.columns]
    return f"diverge at step {one.first.step:,} in the {list_text(names, 1)}"


def grouped_partings(partings: Sequence[Divergence]) -> list[tuple[str, list[int]]]:
    """The runs that diverge alike, by number (the first run is 0); the largest group first."""
    groups: dict[str, list[int]] = {}
    for number, one in enumerate(partings, 1):
        groups.setdefault(parted_by(one), []).append(number)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def layer_text(found: LayerDifference) -> str:
    """The layer that shows the difference."""
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


def _column_text(found: FirstDifference, first: str, second: str) -> str:
    return _said(found.columns[0], first, second)


def _rest_text(found: FirstDifference, first: str, second: str) -> str:
    """What else differs there, and what differs later."""
    there = [_said(part, first, second) for part in found.columns[1:]]
    later = [f"{words_of(part.column)} from step {part.step:,}" for part in found.later]
    sentences = []
    if there:
        sentences.append(f"There also: {list_text(there, _MOST_NAMED)}.")
    if later:
        sentences.append(f"Later: {list_text(later, _MOST_NAMED)}.")
    return " ".join(sentences)


def _said(part: ColumnDifference, first: str, second: str) -> str:
    name = words_of(part.column)
    if part.column == "skipped":
        return f"{name} of {first if part.first else second} alone"
    if part.column in _SCALES and not isinstance(part.first, str):
        return f"{name} ({scale_text(part.first)} against {scale_text(float(part.second))})"
    return f"{name} ({_WHAT.get(part.column, '')}{_pair(part.first, part.second)})"


def _pair(first: float | str, second: float | str) -> str:
    """Both values, with enough digits to see that they differ."""
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
        known = text if name in one.both_tell else "not recorded by both"
        yield f"{name.capitalize()}: {known}."


def _loss_text(one: Divergence) -> str:
    bits, apart = one.loss_bits, one.loss
    if bits is None:
        return "the same to the last bit"
    text = f"differs from step {bits.step:,}"
    if apart is None and not one.knows_noise:
        return f"{text} ({_both(bits)}), in too few steps to tell it from noise"
    if apart is None:
        return f"{text}, never by more than noise"
    said = _both(apart)
    if apart.step == bits.step:
        return f"{text} ({said}), beyond noise"
    return f"{text}, beyond noise from step {apart.step:,} ({said})"


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
