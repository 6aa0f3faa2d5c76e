"""Reads a log's lines into statements: finds formats, joins wrapped lines, notes unknown lines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np

from ampwatch.importers import line_templates
from ampwatch.importers.format import NUMBER, Format
from ampwatch.importers.line_splitter import Lines
from ampwatch.importers.line_templates import LineTemplate
from ampwatch.importers.named_numbers import named_losses, numbers_in, values_of
from ampwatch.importers.run_builder import RunBuilder
from ampwatch.importers.statements import (
    Amend,
    LayerStats,
    More,
    Place,
    Progress,
    Scale,
    Skip,
    Statement,
    Stats,
)
from ampwatch.importers.tables.cells import Cells
from ampwatch.importers.timestamps import time_ns

# Words that suggest a message about the loss scale, in lines of no known format.
SUSPECTS = ("oss scale", "oss_scale", "rad scale", "rad_scale", "verflow", "VERFLOW", "ounce scale")
_ABOUT_SCALE = re.compile(
    r"(?i)(overflow|loss[ _]scale|grad[ _]scale).{0,80}?(\d|skip|reduc|decreas|set)"
)
# Not about the scale: the capacity of experts, buffers, languages.
_INNOCENT = re.compile(
    r"(?i)overflow_expert|stack ?overflow|buffer overflow|rejecting batch|overflow-|--|args|config|"
    r"minimum loss|namespace"
)
_BAR = re.compile(r"\| *(\d+)/(\d+) \[[^\]]{3,60}(?:it/s|s/it)([^\]]{0,400}\])?")
_PADDING = re.compile(r" {8,}")  # where a copy from a terminal was joined in mid-word
# A sentence that quotes a message is not the message.
_QUOTING = re.compile(rb"\W*(?:[A-Za-z][\w']*,? +){3,20}\"[^\"]+\"[\s.!?]*")
_WRAP_LINES = 6
_WORD, _MOST_WORDS = re.compile(r"(?!(?i:nan|inf)\b)[^\W\d_]{2,}"), 3
_FIELD = re.compile(rf"\w['\"]? ?[:=\uff1a] ?\[?{NUMBER}")
_LEAST_FIELDS = 2  # of a single line that a program wrote
_LEAST_PLACES = 2  # places that make a series
_MOST_TEMPLATES = 8
_NUMBER_ABOVE_ZERO = re.compile(rb"\d*[1-9]\d*")  # a rounded zero may say nothing
_MOST_REMEMBERED = 4096
_MOST_TRIALS = 2048  # readings in a row without success: the log has no repeated lines


@dataclass(slots=True)
class Tally:
    """How many lines, and how many scales, a format has read."""

    lines: int = 0
    scales: int = 0  # statements with a scale or a skip
    printed_scales: int = 0  # statistics lines with a scale


@dataclass(slots=True)
class Unknown:
    """Lines that look like messages about the scale but that no format reads."""

    count: int = 0
    example: str = ""


@dataclass(slots=True)
class LineReader:
    """Reads the lines of one text log and passes their statements to a run builder."""

    formats: Sequence[Format]
    builder: RunBuilder
    tallies: dict[str, Tally] = field(default_factory=dict)
    unknown: Unknown = field(default_factory=Unknown)
    _templates: list[tuple[LineTemplate, Format]] = field(default_factory=list)
    # From no known format, and not yet a series; places by the first words of their lines.
    _held: list[Statement] = field(default_factory=list)
    _places: dict[tuple[str, ...], list[tuple[int | None, int | None]]] = field(
        default_factory=dict
    )
    _is_series: bool = False
    _has_record: bool = False  # among those
    _has_told_loss: bool = False  # in a line of a known framework
    # Lines but for their numbers: such as say nothing, and such as name a place and nothing else,
    # of which the last of several is the one that counts.
    _silent: set[bytes] = field(default_factory=set)
    _place_shapes: dict[bytes, Format] = field(default_factory=dict)
    _replaceable: tuple[int, bytes] | None = None
    _active: LineTemplate | None = None
    _known_anchor: re.Pattern[str] = field(init=False)
    _used: int = -1
    _trials: int = 0

    def __post_init__(self) -> None:
        anchors = {a for form in self.formats if not form.is_last_resort for a in form.anchors}
        self._known_anchor = re.compile("|".join(map(re.escape, (*anchors, *SUSPECTS))))

    def feed(self, lines: Lines) -> None:
        """Read those of a log's lines that contain an anchor of any format."""
        self._used = before = -1
        self._active = self._replaceable = None
        for at in lines.candidates:
            if at <= self._used:
                continue
            if at - before > 1 and self.builder.is_waiting:
                self.builder.passed(lines.count_filled(before + 1, at))
            before = at
            line = lines.line(at)
            if self._active is not None and self._active.takes(line):
                self._drop_replaceable()
            else:
                self._read_unlike(lines, at, line)
        self._use_template(None)
        self._read_replaceable(lines)
        if self.builder.is_waiting:
            self.builder.passed(lines.count_filled(before + 1, len(lines)))

    def _read_unlike(self, lines: Lines, at: int, line: bytes) -> None:
        """Read a line that does not fit the template in use."""
        shape = _NUMBER_ABOVE_ZERO.sub(b"1", line)
        # Talk that goes on, a million lines of it in some logs.
        if shape in self._silent or _QUOTING.fullmatch(line):
            self.builder.passed(1)
        elif shape in self._place_shapes and self._knows_training:
            self._drop_replaceable()
            self._replaceable = at, shape
        elif template := next((known for known, _ in self._templates if known.takes(line)), None):
            self._trials = 0
            self._drop_replaceable()
            self._use_template(template)
        else:
            self._use_template(None)
            self._read_replaceable(lines)
            self._read_line(lines, at, line, shape)

    def _drop_replaceable(self) -> None:
        """Count a line that named a place: one with a place of its own has followed it."""
        if self._replaceable is not None:
            self.builder.passed(1)
            self._tally(self._place_shapes[self._replaceable[1]]).lines += 1
            self._replaceable = None

    def _read_replaceable(self, lines: Lines) -> None:
        """Read the last line that named a place, and nothing else."""
        replaceable, self._replaceable = self._replaceable, None
        if replaceable is not None:
            at, shape = replaceable
            self._read_line(lines, at, lines.line(at), shape)

    @property
    def _knows_training(self) -> bool:
        return not self._held and (self._is_series or self.builder.state.attempts > 0)

    @property
    def anchors(self) -> list[str]:
        """The texts of which a line must contain one to be read."""
        wanted = {anchor for form in self.formats for anchor in form.anchors}
        return sorted(wanted | set(SUSPECTS))

    def source(self) -> Format | None:
        """The format that printed the scale or the skips; if none did, the one that read most."""
        forms = [f for f in self.formats if f.source in self.tallies and not f.is_shared]
        leading = [f for f in forms if f.leads and self.tallies[f.source].printed_scales]
        if not forms:
            return None
        replaced = {source for form in forms for source in form.instead_of}
        pool = leading or [form for form in forms if form.source not in replaced]

        tallies = self.tallies
        return max(pool, key=lambda form: (tallies[form.source].scales, tallies[form.source].lines))

    # --- the quick way ---------------------------------------------------------------------------

    def _use_template(self, template: LineTemplate | None) -> None:
        """Read on by another template, or by none; pass on what the one in use has read."""
        read, self._active = self._active, template
        if read is None or read is template:
            return
        form = next(form for known, form in self._templates if known is read)
        rows = read.rows()
        tally = self._tally(form)
        tally.lines += len(rows)
        if rows.values.keys() & {"scale_after", "scale"}:
            tally.scales += len(rows)
            tally.printed_scales += len(rows)
        if "scale_after" in rows.values:
            told, where = np.unique(rows.values["scale_after"].values, return_inverse=True)
            meant = np.array([form.meant(scale) for scale in told.tolist()])
            is_scale = np.array([form.is_scale(scale) for scale in told.tolist()])
            scale = Cells(meant[where], is_scale[where])
            rows = dataclasses.replace(rows, values={**rows.values, "scale_after": scale})
        self.builder.take_table(rows)

    # --- the slow way ----------------------------------------------------------------------------

    def _read_line(self, lines: Lines, at: int, line: bytes, shape: bytes) -> None:
        text = line.decode("utf-8", "replace")
        box = box_around(lines, at, self._used) if "|" in text else None
        if box is None:
            form, said, used = self._read_joined(lines, at, text)
        else:
            text, used = box
            form, said = self._read_by_formats(text)
        said = [_with_true_scale(statement, form) for statement in said]
        if form is None:
            self.builder.passed(1)
            self._note_unknown(text)
            if "|" not in text and not self._known_anchor.search(text):
                self._remember(shape, None)
            return
        if all(isinstance(statement, Place) for statement in said):
            self.builder.passed(1)
            if (len(said), used, box, form.is_last_resort) == (1, at, None, True):
                self._remember(shape, form)
        self._used = max(self._used, used)
        bar = None if form.is_last_resort or form.counts_epochs else self._bar(text)
        if bar is not None:
            self.builder.take(bar)
        is_new = form.source not in self.tallies
        self._count(form, said)
        if is_new:
            defaults = self.source()
            self.builder.state.defaults = defaults.scaler if defaults else {}
        at_ns = time_ns(text)
        self.builder.tell_time(at_ns)
        said = [_timed(statement, at_ns) for statement in said]
        for statement in self._released(form, said, text):
            self.builder.take(statement)
        if used == at and not self._held:
            self._learn_template(line, form)

    def _learn_template(self, line: bytes, form: Format) -> None:
        if self._trials >= _MOST_TRIALS:
            return
        used = [known for known in self._templates if known[0].has_taken]
        if len(used) == _MOST_TEMPLATES:
            return

        def read(text: str) -> Iterable[Statement]:
            self._trials += 1
            return form.statements(text)

        template = line_templates.learn(line, read)
        # Those that no line has fitted make room, or are tried no more.
        if len(self._templates) == _MOST_TEMPLATES or self._trials >= _MOST_TRIALS:
            self._templates = used
        if template is not None and self._trials < _MOST_TRIALS:
            self._templates.append((template, form))

    def _remember(self, shape: bytes, form: Format | None) -> None:
        """Remember of lines like this that they say nothing, or name a place and nothing else."""
        if len(self._silent) + len(self._place_shapes) < _MOST_REMEMBERED:
            if form is None:
                self._silent.add(shape)
            else:
                self._place_shapes[shape] = form

    def _released(self, form: Format, said: list[Statement], text: str) -> list[Statement]:
        """The statements of a line, unless they wait for what says that it is a training's."""
        if form.is_last_resort:
            return self._series_of(said, text)
        if self._held and any(isinstance(statement, Place) for statement in said):
            self._held += said
            return []
        if self._held and any(isinstance(statement, Stats | Skip) for statement in said):
            return [*self._held_before_a_framework(), *said]
        return said

    def _held_before_a_framework(self) -> list[Statement]:
        """What was held until a framework's line says that a training goes on.

        A program's record of a step is the first of many. Values without a place, such as those of
        an evaluation before the first step, belong to no step.
        """
        held = [statement for statement in self._held if _has_place(statement)]
        self._held = [] if self._has_record else held
        return held if self._has_record else []

    def _series_of(self, said: list[Statement], text: str) -> list[Statement]:
        """The statements of a loop's lines, from two places on that are worded alike.

        A single one is not a training, and two sentences of a talk are none.
        """
        if self._is_series or (self.builder.state.attempts and not self._held):
            return said  # a training is known
        self._held += said
        self._has_record |= len(_FIELD.findall(text)) >= _LEAST_FIELDS and any(
            isinstance(told, Stats) and told.step is not None and "loss" in told.values
            for told in said
        )
        words = _WORD.findall(text)
        worded = tuple(words[:_MOST_WORDS])
        for told in said:
            if _begins_place(told):
                is_bare = isinstance(told, Place) and len(words) <= _MOST_WORDS
                alike = () if is_bare else worded
                self._places.setdefault(alike, []).append((told.epoch, told.step))
        places = [*self._places.get((), ()), *self._places.get(worded, ())]
        unnumbered = places.count((None, None))
        if unnumbered < _LEAST_PLACES and len({*places}) - bool(unnumbered) < _LEAST_PLACES:
            return []
        held, self._held, self._is_series = self._held, [], True
        return held

    def finish(self) -> None:
        """Pass on what was held back, if the log has ended after a single line of a training.

        A program wrote it if its values stand behind their names and a colon or the like.
        """
        held, self._held = self._held, []
        if self._has_record and not self.builder.state.attempts:
            for statement in held:
                self.builder.take(statement)

    def _read_joined(
        self, lines: Lines, at: int, text: str
    ) -> tuple[Format | None, list[Statement], int]:
        """The format that reads the line, alone or joined with the lines it was broken into."""
        form, said = self._read_by_formats(text)
        # From a part of a line the last-resort format may only find that something was skipped.
        is_told = form is not None and not (form.is_last_resort and Skip() in said)
        may_be_cut = _may_be_cut(text, said) if is_told else self._known_anchor.search(text)
        if not may_be_cut:  # only a framework's line is joined
            return form, said, at
        if not is_told and _PADDING.search(text):
            unpadded, words = self._read_by_formats(_PADDING.sub("", text), is_whole=False)
            if unpadded is not None:
                return unpadded, words, at
        joined = text
        for more in range(1, _WRAP_LINES):
            following = lines.line(at + more).decode("utf-8", "replace")
            if not following or self._read_by_formats(following)[0] is not None:
                break
            joined += following
            other, words = self._read_by_formats(joined, is_whole=False)
            if other is not None and (not is_told or _is_rounder(words, said)):
                return other, words, at + more
        if not is_told and at - 1 > self._used:
            before = lines.line(at - 1).decode("utf-8", "replace")
            if before and self._read_by_formats(before)[0] is None:
                other, words = self._read_by_formats(before + text, is_whole=False)
                if other is not None:
                    return other, words, at
        return form, said, at

    def _read_by_formats(
        self, text: str, *, is_whole: bool = True
    ) -> tuple[Format | None, list[Statement]]:
        """The first format that reads a line; of a progress bar the last-resort one reads more."""
        known: tuple[Format | None, list[Statement]] = (None, [])
        for form in self.formats:
            if known[0] is not None and not form.is_last_resort:
                continue
            if form.is_last_resort and (self._has_told_loss or not is_whole):
                continue
            if any(anchor in text for anchor in form.anchors):
                said = list(form.statements(text))
                if said:
                    known = form, said
                if said and not all(isinstance(statement, Progress) for statement in said):
                    break
        return known

    @staticmethod
    def _bar(text: str) -> Statement | None:
        """The step and values of the last progress bar before a line's text."""
        bars = list(_BAR.finditer(text)) if "it/s" in text or "s/it" in text else []
        if not bars:
            return None
        numbers = numbers_in(bars[-1][3] or "")
        losses = zip(("loss",), named_losses(numbers).values(), strict=False)
        return Progress(int(bars[-1][1]), int(bars[-1][2]), {**dict(losses), **values_of(numbers)})

    # --- counting --------------------------------------------------------------------------------

    def _tally(self, form: Format) -> Tally:
        return self.tallies.setdefault(form.source, Tally())

    def _count(self, form: Format, said: Sequence[Statement]) -> None:
        tally = self._tally(form)
        tally.lines += 1
        for told in said:
            if isinstance(told, Stats):
                self._has_told_loss |= "loss" in told.values and not form.is_last_resort
                printed = "scale_after" in told.values or "scale" in told.values
                tally.printed_scales += printed
                tally.scales += printed or bool(told.window_skips or told.total_skips)
            elif isinstance(told, Scale):
                tally.scales += 1
            elif isinstance(told, Skip | Amend):
                # A statement without a value may come from another format with the same beginning.
                tally.scales += 1 + (told.scale is not None or told.scale_after is not None)

    def _note_unknown(self, text: str) -> None:
        if _ABOUT_SCALE.search(text[:400]) and not _INNOCENT.search(text[:400]):
            self.unknown.count += 1
            self.unknown.example = self.unknown.example or " ".join(text.split())[:160]


def _timed(statement: Statement, at_ns: int | None) -> Statement:
    """A line's statement with the time at which the line was printed."""
    if at_ns is None or not isinstance(statement, Stats | Skip | LayerStats):
        return statement
    if isinstance(statement, Skip | LayerStats):
        return dataclasses.replace(statement, time_ns=at_ns)
    values = {**statement.values, line_templates.TIME: at_ns}
    return dataclasses.replace(statement, values=values)


def _begins_place(told: Statement) -> TypeGuard[Stats | Place | More]:
    """Whether a line tells a place, or the losses of one, whose total may be on a line below."""
    is_part = isinstance(told, More) and any("loss" in name for name in told.values)
    return isinstance(told, Stats | Place) or (is_part and _has_place(told))


def _has_place(statement: Statement) -> bool:
    """Whether it says of which step or epoch it is."""
    place = getattr(statement, "step", None), getattr(statement, "epoch", None)
    return place != (None, None)


def _with_true_scale(statement: Statement, form: Format | None) -> Statement:
    """A line's statistics with the true scale; a scale printed with too few digits is left out."""
    if form is None or not isinstance(statement, Stats) or "scale_after" not in statement.values:
        return statement
    printed, values = statement.values["scale_after"], dict(statement.values)
    if form.is_scale(printed):
        values["scale_after"] = form.meant(printed)
    else:
        del values["scale_after"]
    return dataclasses.replace(statement, values=values)


def _may_be_cut(text: str, said: Sequence[Statement]) -> bool:
    """Whether the last number of a long line may continue on the next line."""
    tail = text[-1:]
    return len(text) >= 40 and (tail.isdigit() or tail in ".e-+") and bool(_scales(said))


def _is_rounder(longer: Sequence[Statement], shorter: Sequence[Statement]) -> bool:
    """Whether the joined lines give powers of two where the first line alone did not."""
    return all(map(_is_power, _scales(longer))) and not all(map(_is_power, _scales(shorter)))


def _scales(said: Sequence[Statement]) -> list[float]:
    told = (one for one in said if isinstance(one, Skip | Amend))
    return [scale for one in told for scale in (one.scale, one.scale_after) if scale is not None]


def _is_power(value: float) -> bool:
    return value > 0 and bool(np.log2(value) == np.round(np.log2(value)))


# --- boxes, as Stable-Baselines and OpenAI's logger print -----------------------------------------

# The step may stand anywhere in its box, so a whole box is read as one line.
_BOX_RULE = re.compile(rb"\s*[-=+]{5,}\s*")
_BOX_ROW = re.compile(rb"\s*\|[^|]{1,80}\|[^|]{0,80}\|\s*")
_MOST_BOX_ROWS = 60


def box_around(lines: Lines, at: int, after: int) -> tuple[str, int] | None:
    """The whole box that a line is a row of, as one line, and where it ends; None without one.

    A box begins after line `after`.
    """
    if _BOX_ROW.fullmatch(lines.line(at)) is None:
        return None
    first = last = at
    while first > max(after + 1, at - _MOST_BOX_ROWS) and _BOX_ROW.fullmatch(lines.line(first - 1)):
        first -= 1
    while last - at < _MOST_BOX_ROWS and _BOX_ROW.fullmatch(lines.line(last + 1)):
        last += 1
    if not all(_BOX_RULE.fullmatch(lines.line(rule)) for rule in (first - 1, last + 1)):
        return None
    rows = [lines.line(row).strip() for row in range(first, last + 1)]
    return b" ".join(rows).decode("utf-8", "replace"), last
