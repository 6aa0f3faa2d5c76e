"""Any loop that prints names and numbers: `step 10 | loss 2.31 | lr: 1e-4, grad_norm=0.8`.

This format is tried last, and only while no framework's own lines have contained a loss. What the
words of a line leave open, the log's other lines may say (`learned`). Lines of an evaluation have a
format of their own (`EVALUATIONS`).
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ampwatch.importers.format import NUMBER, Format
from ampwatch.importers.line_roles import (
    Counter,
    Duty,
    Kind,
    Role,
    Words,
    kind_of,
    learn_roles,
    text_of,
)
from ampwatch.importers.named_numbers import (
    NamedNumber,
    column_named,
    figures_among,
    has_decimal_commas,
    in_plain_words,
    metrics_of,
    named_losses,
    numbers_in,
    renamed,
    step_named,
    values_of,
    whole,
)
from ampwatch.importers.statements import Amend, Metrics, More, Place, Skip, Statement, Stats
from ampwatch.importers.tables.column_names import says_nothing, speaks_of_training
from ampwatch.importers.text_tables import TextTable, bare_columns, tables_in
from ampwatch.importers.timestamps import PATTERN as TIMESTAMP
from ampwatch.metric_names import Metric, is_metric, metric_of

_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\| *(\d{1,12})/(\d{1,12}) \[[^\],]{0,60}")
_COUNTED = re.compile(r"\bProgress on:\S{1,40} +(\d+(?:\.\d+)?)(k?)it/")  # a bar in a log
_LEADING = re.compile(r"\s*(\d{1,12})(?:/(\d{1,12}))?(?:[ |]|(?<=\d):(?= ))")
_EPOCH_AND_BATCH = re.compile(r"\[ *(\d{1,9})/\d{1,9}\] *\[ *(\d{1,9})/(\d{1,9})\]")
_BRACKETED = re.compile(r"(?:^|[\s\]])\[ *(\d{1,12})(?:/(\d{1,12}))?\](?= *[A-Za-z])")
_PLACE_ALONE = re.compile(
    r"(?i)\b(?:epoch|step|iteration|batch)\W{0,4}\d{1,12}(?:/\d{1,12})?\W{0,8}$"
)
_VALUE_ALONE = re.compile(rf"[\d\s:.,/\[\]-]*[A-Za-z][\w ./-]{{0,80}}[:= ] *{NUMBER}[ ,]*")
_VALUES_ALONE = re.compile(
    rf"[\W\d]*(?:(?:INFO|DEBUG)\W+)?(?:[A-Za-z][\w ./-]{{0,40}}[:=] *{NUMBER} ?%?[ ,;|]*){{1,8}}"
)
_TURNED = re.compile(rf"(?<![\w.])({NUMBER}) +([A-Za-z_]\w{{0,40}}) *(?=,|$)")
# Characters around a name or a number that change neither.
_AROUND = re.compile(
    r"\((?:train|training)\)|"
    r"\b(?:(?:np|numpy|torch)\.)?(?:tensor|[aA]rray|b?float\d{0,3}|int\d{0,2})\("
)
# `[train]: 0.5`, or `[loss] 0.5 |`
_BRACKETED_NAME = re.compile(rf"\[([A-Za-z]\w{{0,30}})\](?= *[:=]| +{NUMBER} *(?:\||$))")
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")
_CLOCK = re.compile(
    rf"{TIMESTAMP}|(?:\b\d\d?/\d\d?/\d{{4}} )?(?<![\d:])\d+:\d\d:\d\d(?:[.,]\d+)?(?: [AP]M\b)?"
)
_NO_COUNTER = re.compile(
    r"(?i)time|eta|elapsed|remain|second|\bs\b|\bms\b|mem|data|speed|/s|seed|version|epoch|rank|"
    r"size|gpu"
)
_OF_TRAINING = re.compile(r"(?i)\b(?:train|epsilon|lr|learning|entropy|optimi[sz]er|epoch|episode)")
_EPOCHS = frozenset({"epoch", "epochs", "ep", "train"})
# A word for a skip that no number follows: `skipped steps: 3` counts.
_SKIPPED = re.compile(
    r"(?i)\b(?:skipping|(?:overflow|skipped)\b(?!(?: \w+){1,2} *[:=]))\b"
    r"(?! *(?:[:=] *)?(?:\d|false|no))"
)
_NOT_FINITE = re.compile(r"(?i)\b(?:nan|inf|non-?finite|not finite|overflow)\b")
_OF_STEP = re.compile(
    r"(?i)\bskip\w{0,5}\b.{0,30}\b(?:steps?|updat\w+|batch|iteration|optimizer)\b"
)
_ANCHORS = frozenset({
    "step", "iter", "Iter", "epoch", "batch", "Batch", "episode", "Episode", "lr", "reward", "train"
})  # fmt: skip
_MOST_CHARACTERS = 16384  # verl logs a hundred figures on a line
_LEAST_ALIKE, _FINER = 3, 3
_LAST_NUMBER = re.compile(r"[\w.+-]+$")


@dataclass(frozen=True, slots=True)
class _Line:
    """A plain line as it is read: its text, a progress bar in it, its named numbers."""

    text: str
    bar: re.Match[str] | None
    numbers: Sequence[NamedNumber]


@dataclass(frozen=True, slots=True)
class PlainLines:
    """Reads plain lines, with what the log's own lines have taught of its tables and kinds."""

    tables: Sequence[TextTable] = ()
    mapped: Mapping[str, str] = field(default_factory=dict)  # what the user calls ours: our column
    roles: Mapping[Kind, Role] = field(default_factory=dict)
    figures: Collection[str] = ()  # names of fractions that change, beside those that say it
    parts: Collection[str] = ()  # losses on lines of their own, after the loss of the same place
    has_decimal_commas: bool = False
    names_steps: bool = False  # by words: a number at a line's beginning is then no step
    has_loss: bool = False  # by that name: other losses are then its parts
    is_training: bool = True  # by its words; else nothing is read
    has_goals_alone: bool = False  # no loss at all, but scores or rewards of a training
    cut_line: str = ""  # the log's last one, if it breaks off: its last number may be cut

    def read(self, text: str) -> Iterator[Statement]:
        """Yield what a plain line of names and numbers states."""
        if not self.is_training:
            return
        if text == self.cut_line:
            text = _LAST_NUMBER.sub("", text)
        line = self.line(text)
        role = self.roles.get(kind_of(line.numbers), Role()) if self.roles else Role()
        if role.duty is Duty.NONE:
            return
        place = None
        if role.duty not in _WITHOUT_PLACE:
            place = _place(line, role.step, by_words=self.names_steps)
        if place is not None and role.duty is Duty.EPOCH:
            place = Place(epoch=place.epoch)
        values = values_of(line.numbers)
        if "loss" not in values and not self.has_loss and (place or role.duty in _WITHOUT_PLACE):
            losses = self._losses(line)
            is_sure = line.bar is not None or role.step is not None or not _is_by_marks(line)
            is_sure |= "loss" in line.text.lower()
            values = {**dict(zip(("loss",) * is_sure, losses.values(), strict=False)), **values}
        if place is None:
            yield from self._read_without_place(line, values, role)
        else:
            yield from self._read_at(place, line, values, role)

    def line(self, text: str) -> _Line:
        """A plain line: a table's row by its names, a bar and clocks out of the way."""
        text = text[:_MOST_CHARACTERS]
        text = next((row for table in self.tables if (row := table.line_of(text))), text)
        text = _AROUND.sub("", _BRACKETED_NAME.sub(r"\1", in_plain_words(text)))
        if text.lstrip().startswith("|"):  # a table's row: `| loss | 2.31 |`
            text = text.replace("|", "=")
        bar = _BAR.search(text)
        without = text if bar is None else f"{text[: bar.start()]} | {text[bar.end() :]}"
        without = _CLOCK.sub(" ", without)
        if self.has_decimal_commas:
            without = _DECIMAL_COMMA.sub(".", without)
        numbers = numbers_in(without)
        is_named = values_of(numbers) or _counters_by_words(numbers) != (None, None)
        if not is_named and _TURNED.search(without):  # `9.98 loss, 0.001 LR`
            numbers = numbers_in(_TURNED.sub(r"\2 \1", without))
        return _Line(text, bar, renamed(numbers, self.mapped) if self.mapped else numbers)

    def _losses(self, line: _Line) -> dict[str, float]:
        """A line's losses by their words, except the parts of the one on another line."""
        losses = named_losses(line.numbers, self.figures)
        return {name: value for name, value in losses.items() if name not in self.parts}

    def _read_at(
        self, place: Place, line: _Line, values: dict[str, float], role: Role
    ) -> Iterator[Statement]:
        """Yield what a plain line states that tells its step or epoch."""
        told = self._with_metrics(line, values)
        is_step = bool(values.keys() & {"loss", "grad_norm"})
        is_goal = self.has_goals_alone and any(metric_of(name) is Metric.GOAL for name in told)
        if is_step or is_goal:
            is_bar = line.bar is not None
            yield Stats(place.step, told, place.epoch, place.per_epoch, is_redrawn=is_bar)
            if is_step and _SKIPPED.search(line.text):
                yield Amend(is_skip=True)
        elif not values and _is_place(line, role):
            if not begins_evaluation(line.text):
                yield place
        elif told and (values or self.names_steps):
            if place.step is None:
                yield place
            yield More(told, place.step, place.epoch)
        elif not values and _is_skip(line.text):
            yield Skip()

    def _read_without_place(
        self, line: _Line, values: dict[str, float], role: Role
    ) -> Iterator[Statement]:
        """Yield what a plain line states whose step is on another line, or nowhere."""
        if _is_skip(line.text) and not any(map(math.isfinite, values.values())):
            yield Skip()
        elif not values and role.duty is not Duty.MORE:
            return
        elif role.duty is Duty.UNNUMBERED:
            yield Stats(values=self._with_metrics(line, values))
        elif role.duty is Duty.MORE or _is_list(line, values):
            yield More(self._with_metrics(line, values, is_more=True))

    def _with_metrics(
        self, line: _Line, values: Mapping[str, float], *, is_more: bool = False
    ) -> dict[str, float]:
        """A plain line's values and figures; a loss by its words is no figure once more."""
        more = metrics_of(line.numbers, self.figures)
        if "loss" not in values_of(line.numbers) and "loss" in values and not is_more:
            more.pop(next(iter(self._losses(line))), None)
        return {**{name: value for name, value in more.items() if name not in values}, **values}


def learned(
    texts: Sequence[str], name: str = "", columns: Mapping[str, str] | None = None
) -> PlainLines:
    """What some lines of a log teach of its tables and of the kinds of its lines.

    Numbers without any name are losses if the log is called so. `columns` are what the user says:
    our column, and the log's name of it.
    """
    mapped = {name: column for column, name in (columns or {}).items()}
    tables = [*tables_in(texts), *(bare_columns(texts) if "loss" in name.lower() else ())]
    plain = PlainLines(tables, mapped)
    lines = list(map(plain.line, texts))
    if has_decimal_commas(line.numbers for line in lines):
        plain = PlainLines(tables, mapped, has_decimal_commas=True)
        lines = list(map(plain.line, texts))
    of_loss = [line for line in lines if "loss" in values_of(line.numbers)]
    has_loss = len(of_loss) > 1 or any(_place(line) is not None for line in of_loss)
    has_loss &= not _sums_up(of_loss, lines)

    figures = figures_among(line.numbers for line in lines)

    def words_of(line: _Line) -> Words:
        return _words_of(line, figures, has_loss=has_loss)

    said = [words_of(line) for line in lines]
    placed = [words for words in said if words.has_loss and words.place]
    is_training = any(_OF_TRAINING.search(line.text) for line in lines)
    roles = learn_roles(lines, words_of, _is_no_counter)
    return dataclasses.replace(
        plain,
        roles={**roles, **_of_first_line(lines, roles)},
        figures=figures,
        parts=_parts(lines, figures),
        names_steps=sum(words.counts for words in placed) > len(placed) / 2,
        has_loss=has_loss,
        is_training=bool(mapped or "loss" in name.lower() or _is_training(texts, lines)),
        has_goals_alone=is_training and not any(words.has_loss for words in said),
        cut_line=_cut_line(lines, texts),
    )


def _parts(lines: Sequence[_Line], figures: Collection[str]) -> frozenset[str]:
    """The losses that always stand on a line after another loss of the same step."""
    leaders: dict[Place, str] = {}
    found: set[str] = set()
    for line in lines:
        place, name = _place(line), next(iter(named_losses(line.numbers, figures)), None)
        if place is not None and name is not None:
            found.add(name)
            leaders.setdefault(place, name)
    return frozenset(found - {*leaders.values()})


def _is_training(texts: Sequence[str], lines: Sequence[_Line]) -> bool:
    """Whether a log has words of a training, or says nothing at all beside its losses."""
    if speaks_of_training(texts) or speaks_of_training(line.text for line in lines):
        return True
    tells = (line for line in lines if named_losses(line.numbers) or values_of(line.numbers))
    names = {"_".join(n.words) for line in tells for n in line.numbers}
    return all(map(says_nothing, names))


def anchors_of(plain: PlainLines, texts: Sequence[str]) -> Collection[str]:
    """Texts of which a line must contain one for this log's plain lines to read it.

    Of each kind of line that is read the longest name; any digit, where lines have none.
    """
    found, kinds = {*_ANCHORS}, collections.Counter[Kind]()
    for text in texts:
        line = plain.line(text)
        kind = kind_of(line.numbers)
        kinds[kind] += 1
        is_known = any(anchor in text for anchor in found)
        if is_known or kinds[kind] > _LEAST_ALIKE or next(plain.read(text), None) is None:
            continue
        words = [word for names, _ in kind for word in names if word in text]
        if plain.tables or plain.mapped or not words:
            return "0123456789"
        found.add(max(words, key=len))
    return found


def _sums_up(of_loss: Sequence[_Line], lines: Sequence[_Line]) -> bool:
    """Whether the lines with a loss by that name sum up many, each with one loss by its words."""
    finer = sum(
        1 for line in lines
        if "loss" not in values_of(line.numbers) and _place(line) is not None
        and sum("loss" in name.lower() for name in named_losses(line.numbers)) == 1
    )  # fmt: skip
    return finer > _FINER * len(of_loss)


def _of_first_line(lines: Sequence[_Line], roles: Mapping[Kind, Role]) -> Mapping[Kind, Role]:
    """The role of a log's first line if it is cut: that of the kind which ends as it does."""
    kinds = [kind_of(line.numbers) for line in lines if line.text.strip()]
    first = kinds[0] if kinds else ()
    alike = (kind for kind in roles if len(kind) < len(first) and first[-len(kind) :] == kind)
    whole = max(alike, key=len, default=None)
    is_alone = first not in roles and kinds.count(first) == 1
    return {first: roles[whole]} if is_alone and whole is not None else {}


def _cut_line(lines: Sequence[_Line], texts: Sequence[str]) -> str:
    """The last line of a log, if it breaks off: other lines begin so and go on."""
    kind = kind_of(lines[-1].numbers) if lines else ()
    others = {kind_of(line.numbers) for line in lines[:-1]}
    goes_on = any(len(other) > len(kind) and other[: len(kind)] == kind for other in others)
    return texts[-1] if kind and goes_on and kind not in others else ""


def guesses(plain: PlainLines, texts: Sequence[str]) -> str | None:
    """A sentence on what was taken for the step and the loss where the log does not say so."""
    names: dict[str, str] = {}
    for line in map(plain.line, texts):
        role = plain.roles.get(kind_of(line.numbers), Role())
        losses = [] if plain.has_loss else list(named_losses(line.numbers, plain.figures))
        if role.step is not None and not role.step.of and (losses or plain.has_loss):
            names.setdefault("step", "_".join(line.numbers[role.step.at].words))
        if losses and (role.duty is not None or _place(line) is not None):
            names.setdefault("loss", losses[0])
    pairs = [f"{column} = `{name}`" for column, name in names.items() if name not in ("", column)]
    if not pairs:
        return None
    mapping = " ".join(f"--map {column}=NAME" for column in names)
    return f"Read as {', '.join(pairs)}. If another number is meant, name it: {mapping}."


_WITHOUT_PLACE = frozenset({Duty.MORE, Duty.UNNUMBERED})


def _is_list(line: _Line, values: Mapping[str, float]) -> bool:
    """Whether a plain line holds a value by name, or lists a loss and others, and nothing else."""
    if _VALUE_ALONE.fullmatch(line.text):
        return True
    return "loss" in values and _VALUES_ALONE.fullmatch(line.text) is not None


def _is_place(line: _Line, role: Role) -> bool:
    return role.duty is Duty.PLACE or _PLACE_ALONE.search(line.text) is not None


def _is_skip(text: str) -> bool:
    """Whether a line's words say that a step was left out for what was not finite."""
    return all(words.search(text) for words in (_SKIPPED, _NOT_FINITE, _OF_STEP))


def _place(
    line: _Line, learned_step: Counter | None = None, *, by_words: bool = False
) -> Place | None:
    """The step, the epoch and its length in a plain line; None if it has none of them."""
    numbers = line.numbers
    epoch_at, step_at = _counters_by_words(numbers)
    if learned_step is not None and learned_step.of:
        return Place(whole(text_of(numbers, learned_step)), whole(numbers[learned_step.at].text))
    step_at = step_at if learned_step is None else learned_step.at
    epoch = None if epoch_at is None or epoch_at == step_at else whole(numbers[epoch_at].text)
    if step_at is not None:
        step = numbers[step_at]
        is_of_epoch = epoch is not None or "atch" in "".join(step.words[-1:])
        return Place(whole(step.text), epoch, whole(step.of) if is_of_epoch else None)
    place = None if by_words and line.bar is None else _place_by_marks(line, epoch)
    return place or (None if epoch is None else Place(epoch=epoch))


def _is_by_marks(line: _Line) -> bool:
    """Whether a line's place is only a number at its beginning or in brackets."""
    return _counters_by_words(line.numbers) == (None, None) and _place(line) is not None


def _place_by_marks(line: _Line, epoch: int | None) -> Place | None:
    """The place in a plain line by a bar, brackets or a leading number."""
    if epoch is None and (both := _EPOCH_AND_BATCH.search(line.text)):  # `[0/25][150/1583]`
        return Place(int(both[2]), int(both[1]), int(both[3]))
    if counted := _COUNTED.search(line.text):
        return Place(int(float(counted[1]) * (1000 if counted[2] else 1)), epoch)
    place = line.bar or _LEADING.match(line.text) or _BRACKETED.search(line.text)
    return None if place is None else Place(int(place[1]), epoch, whole(place[2]))


def _counters_by_words(numbers: Sequence[NamedNumber]) -> tuple[int | None, int | None]:
    """Which of a plain line's numbers are the epoch and the step, by the words before them."""
    epoch_at, step_at, surest = None, None, math.inf
    for at, number in enumerate(numbers):
        column = step_named(number.words)
        if epoch_at is None and _names_epoch(number):
            epoch_at = at
            following = numbers[at + 1] if at + 1 < len(numbers) else number
            if step_at is None and following.of is not None and not following.words:
                step_at = at + 1  # `Epoch: [0][ 10/100]`
        elif column and column[1] < surest and whole(number.text) is not None:
            step_at, surest = at, column[1]
    return epoch_at, step_at


def _names_epoch(number: NamedNumber) -> bool:
    words = [word.lower() for word in number.words]
    return bool(words) and words[-1] in _EPOCHS and not {"max", "total", "num"} & {*words}


def _words_of(line: _Line, figures: Collection[str], *, has_loss: bool) -> Words:
    """What a line's words say of it; if the log has a loss by that name, others are its parts."""
    numbers = line.numbers
    epoch_at, step_at = _counters_by_words(numbers)
    values = values_of(numbers)
    has_loss = "loss" in values or (not has_loss and bool(named_losses(numbers, figures)))
    is_list = _VALUES_ALONE.fullmatch(line.text) is not None
    return Words(
        counts=epoch_at is not None or step_at is not None,
        names_epoch=epoch_at is not None,
        place=_place(line),
        step_at=step_at,
        has_loss=has_loss,
        names_loss="loss" in values,
        has_values=has_loss or bool(values),
        has_metrics=bool(metrics_of(numbers, figures if is_list else ())),
    )


def _is_no_counter(number: NamedNumber) -> bool:
    """Whether the words before a number say that it counts no steps: a column, a time, a size."""
    name = "_".join(number.words).lower()
    column = column_named(number.words)
    is_column = column is not None and column[0] != "step"
    return is_column or is_metric(name) or bool(_NO_COUNTER.search(name))


FORMAT = Format(
    source="plain",
    anchors=(
        "loss", "Loss", "LOSS", "xent", "grad_norm", "gnorm", "l2_norm/grad", "learning_rate",
        " lr-", "Epoch", "Step", "[batch=", "[step=", "skipping", "Skipping",
        "bce", "BCE", "mse", "MSE", "mae", "MAE", "nll", "NLL", "Loss_", "errG", "Error",
    ),
    read=PlainLines().read,
    is_shared=True,
    is_last_resort=True,
)  # fmt: skip

read = FORMAT.read


# --- evaluations ----------------------------------------------------------------------------------

# Lines of an evaluation between those of training, whichever program prints them.
#
# `{'eval_loss': 1.2, 'eval_wer': 0.3}`, `validation loss at iteration 1000 | lm loss value: 2.3`,
# `valid | epoch 001 | loss 5.3 | ppl 40`, `val loss 0.7 acc 0.81`: metrics, not steps.

# After a time, a level, a place: a word that says what the line is about.
_BEGINS_EVALUATION = re.compile(
    r"(?i)^(?:[\W\d_]|\b(?:info|debug|epoch|ep|step|iter|iteration|rank)\b){0,120}"
    r"(?:val|validat(?:ion|ed|ing)|valid|eval|evaluat(?:ion|ed|ing)|test|test(?:ed|ing)|dev)"
    r"(?:[ :,_|>\])=-]|$)"
)
_EPOCH_OF_EVALUATION = re.compile(r"(?i)\bepoch\W{0,4}(\d{1,9})")
# A heading alone, such as `Eval epoch: 5`: its values are on the lines after it.
_HEADING_OF_EVALUATION = re.compile(
    r"(?i)[^a-z]*(?:val\w*|eval\w*|test\w*) +epoch\W{0,4}(\d{1,9})\W*"
)
_ANCHORS_OF_EVALUATIONS = (
    "val", "Val", "VAL", "eval", "Eval", "EVAL", "test", "Test", "TEST", "dev ", "Dev ",
)  # fmt: skip


def begins_evaluation(line: str) -> bool:
    """Whether the first words of a line say that it is about an evaluation."""
    return _BEGINS_EVALUATION.match(line[:400]) is not None


def read_evaluation(line: str) -> Iterator[Statement]:
    """Yield the metrics of an evaluation's line."""
    line = in_plain_words(line[:4096])
    begin = _BEGINS_EVALUATION.match(line[:400])
    if begin is None:
        return
    numbers = numbers_in(line, of_other_lines=True)
    metrics = metrics_of(numbers, of_validation=True)
    if metrics:
        epoch = _EPOCH_OF_EVALUATION.search(begin[0])
        yield Metrics(metrics, None if epoch is None else int(epoch[1]))
    elif heading := _HEADING_OF_EVALUATION.fullmatch(line):
        yield Place(epoch=int(heading[1]), is_evaluation=True)


EVALUATIONS = Format(
    source="evaluations", anchors=_ANCHORS_OF_EVALUATIONS, read=read_evaluation, is_shared=True
)
