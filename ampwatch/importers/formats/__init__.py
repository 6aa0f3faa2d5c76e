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
from ampwatch.importers.formats.frameworks import FRAMEWORKS
from ampwatch.importers.line_splitter import plain_lines, shape_of
from ampwatch.importers.statements import Stats

_MOST_LEARNED_LINES, _MOST_ALIKE = 4000, 20

FORMATS: tuple[Format, ...] = (
    low_precision.NVIDIA_INSPECTOR,  # the only one with a line for each figure: most lines by far
    code.DEEPSPEED,
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
    by_source = _by_source()
    if source not in by_source:
        raise LogError(
            f"There is no format {source!r}. Known formats: {', '.join(sorted(by_source))}."
        )
    return (by_source[source],)


def source_names() -> Sequence[str]:
    """The names of all text formats that identify a framework."""
    return sorted(_by_source())


def _by_source() -> Mapping[str, Format]:
    known = (*FORMATS, *_added_formats())
    return {form.source: form for form in known if not form.is_shared}


@functools.cache
def _added_formats() -> tuple[Format, ...]:
    """The text formats of other packages; raises LogError, with its name, for one that is none."""
    found = []
    for entry in entry_points(group=_GROUP):
        try:
            form = entry.load()
        except Exception as problem:
            raise LogError(f"{_why_not(entry.value)}: {problem!r}. {_REMEDY}") from problem
        if not isinstance(form, Format):
            raise LogError(f"{_why_not(entry.value)}: it is a {type(form).__name__}. {_REMEDY}")
        found.append(form)
    return tuple(found)


_REMEDY = "Mend it, or uninstall its package."


def _why_not(value: str) -> str:
    return f"The text format {value} ({_GROUP}) cannot be loaded"


def formats_learned(
    formats: Sequence[Format], data: bytes, name: str, columns: Mapping[str, str]
) -> Sequence[Format]:
    """The formats for a log that has this text and name: the last resort knows its own kinds."""
    last = next((form for form in formats if form.is_last_resort), None)
    if last is None:
        return formats
    lines = _telling_lines(data)
    known = [form for form in formats if not form.is_shared]
    if columns:
        formats = [form for form in formats if form.is_shared]
    elif any(_tells_loss(known, line) for line in lines):
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
    seen = collections.Counter(map(shape_of, first)) if rest else collections.Counter[str]()
    for line in rest[:-1]:
        shape = shape_of(line)
        seen[shape] += 1
        if seen[shape] <= _MOST_ALIKE and len(first) < 2 * _MOST_LEARNED_LINES:
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
