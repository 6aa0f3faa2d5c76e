"""The text formats, in the order in which they are tried; the first that reads a line gets it.

Most frameworks are a row in `frameworks`, the others a function in `frameworks_by_code`. Another
package adds its own by an entry point of the group `ampwatch.formats`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points

from ampwatch.errors import LogError
from ampwatch.importers.format import Format
from ampwatch.importers.formats import frameworks_by_code as code
from ampwatch.importers.formats import giving_up, low_precision, plain
from ampwatch.importers.formats.frameworks import DEEPSPEED, FRAMEWORKS
from ampwatch.importers.line_splitter import plain_lines
from ampwatch.importers.line_templates import shape_of
from ampwatch.importers.statements import Stats

_MOST_LEARNED_LINES, _MOST_ALIKE = 4000, 20

FORMATS: tuple[Format, ...] = (
    low_precision.NVIDIA_INSPECTOR,  # the only one with a line for each figure: most lines by far
    DEEPSPEED,
    code.NEOX,
    code.MEGATRON,
    code.FAIRSEQ,
    code.ULTRALYTICS,  # before those that take its bars for steps
    code.HF_TRAINER,
    *FRAMEWORKS,
    code.TORCHTITAN,
    code.STABLE_BASELINES,
    low_precision.LOW_PRECISION_OPTIONS,
    giving_up.FORMAT,
    plain.EVALUATIONS,
    plain.FORMAT,
)
_GROUP = "ampwatch.formats"


def formats_for(source: str | None) -> Sequence[Format]:
    """All text formats, or the one with this name; raises LogError if there is none."""
    if source is None:
        return (*_added_formats(), *FORMATS)
    forms = _by_source()
    if source not in forms:
        raise LogError(f"There is no format {source!r}. Known formats: {', '.join(sorted(forms))}.")
    return (forms[source],)


def source_names() -> Sequence[str]:
    """The names of all text formats that identify a framework."""
    return sorted(_by_source())


def _by_source() -> Mapping[str, Format]:
    return {form.source: form for form in (*FORMATS, *_added_formats()) if not form.is_shared}


@functools.cache
def _added_formats() -> tuple[Format, ...]:
    """The text formats of other packages; raises LogError, with its name, for one that is none."""
    added = []
    for entry in entry_points(group=_GROUP):
        cannot = f"The text format {entry.value} ({_GROUP}) cannot be loaded"
        try:
            form = entry.load()
        except Exception as problem:
            raise LogError(f"{cannot}: {problem!r}. {_REMEDY}") from problem
        if not isinstance(form, Format):
            raise LogError(f"{cannot}: it is a {type(form).__name__}. {_REMEDY}")
        added.append(form)
    return tuple(added)


_REMEDY = "Repair it, or uninstall its package."


def formats_learned(
    formats: Sequence[Format], data: bytes, name: str, columns: Mapping[str, str]
) -> Sequence[Format]:
    """The formats for a log that has this text and name: the last resort knows its own kinds."""
    last = next((form for form in formats if form.is_last_resort), None)
    if last is None:
        return formats
    lines = _telling_lines(data)
    formats = [
        dataclasses.replace(form, read=form.learn(lines)) if form.learn else form
        for form in formats
    ]
    specific = [form for form in formats if not form.is_shared]
    if columns:
        formats = [form for form in formats if form.is_shared]
    elif any(_tells_loss(specific, line) for line in lines):
        return formats
    learned = plain.learned(lines, name, columns)
    guesses = plain.guesses(learned, lines)
    own = dataclasses.replace(
        last,
        anchors=(*plain.anchors_of(learned, lines), *last.anchors),
        read=learned.read,
        notes=() if guesses is None else (guesses,),
    )
    return [own if form is last else form for form in formats]


def _telling_lines(data: bytes) -> list[str]:
    """The first lines of a text, and of those that look like none of them the first as well."""
    lines = plain_lines(data)
    first, rest = lines[:_MOST_LEARNED_LINES], lines[_MOST_LEARNED_LINES:]
    shapes = collections.Counter(map(shape_of, first)) if rest else collections.Counter[str]()
    for line in rest[:-1]:
        shape = shape_of(line)
        shapes[shape] += 1
        if shapes[shape] <= _MOST_ALIKE and len(first) < 2 * _MOST_LEARNED_LINES:
            first.append(line)
    return [*first, *rest[-1:]]  # the last one may be cut


def _tells_loss(formats: Sequence[Format], line: str) -> bool:
    """Whether a framework's format reads a loss in a line."""
    return any(
        isinstance(told, Stats) and "loss" in told.values
        for form in formats
        if any(anchor in line for anchor in form.anchors)
        for told in form.read(line)
    )
