"""Any loop that prints names and numbers: `step 10 | loss 2.31 | lr: 1e-4, grad_norm=0.8`.

A number's name decides its column, with the same words as in tables. This format is tried last, and
only while no framework's own lines have contained a loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ampwatch.importers.format import NUMBER, Format
from ampwatch.importers.statements import Amend, More, Place, Skip, Statement, Stats
from ampwatch.importers.tables.column_names import column_in_text
from ampwatch.metric_names import Metric, is_of_validation, metric_of

# Each part begins with a character that no other begins with, and takes all of it: a line is read
# in one pass.
_TOKEN = re.compile(
    r"(?P<number>[-+]?(?:\d+(?:,\d+)*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|"
    r"(?:[Nn][Aa][Nn]|[Ii]nf(?:inity)?))(?![\w.]))"
    r"|(?P<glued>[-+]?\.?\d[\w.]*)"
    r"|(?P<word>[A-Za-z_][\w./%-]*)"
    r"|(?P<mark>[^\s\w])"
)
_BETWEEN = frozenset(":=[('\"{#")  # may stand between a name and its number
_BAR = re.compile(r"\d%\|[^|]{0,400}\| *(\d{1,12})/(\d{1,12}) \[[^\],]{0,60}")
_COUNTED = re.compile(r"\bProgress on:\S{1,40} +(\d+(?:\.\d+)?)(k?)it/")  # a bar in a log
_LEADING = re.compile(r"\s*(\d{1,12})(?:/(\d{1,12}))?[ |]")
_EPOCH_AND_BATCH = re.compile(r"\[ *(\d{1,9})/\d{1,9}\] *\[ *(\d{1,9})/(\d{1,9})\]")
_BRACKETED = re.compile(r"(?:^|[\s\]])\[ *(\d{1,12})(?:/(\d{1,12}))?\](?= *[A-Za-z])")
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_PLACE_ALONE = re.compile(
    r"(?i)\b(?:epoch|step|iteration|batch)\W{0,4}\d{1,12}(?:/\d{1,12})?\W{0,8}$"
)
_VALUE_ALONE = re.compile(rf"[\d\s:.,/\[\]-]*[A-Za-z][\w ./-]{{0,80}}[:= ] *{NUMBER}[ ,]*")
_VALUES_ALONE = re.compile(
    rf"[\W\d]*(?:(?:INFO|DEBUG)\W+)?(?:[A-Za-z][\w ./-]{{0,40}}[:=] *{NUMBER} ?%?[ ,;|]*){{1,8}}"
)
_TURNED = re.compile(rf"(?<![\w.])({NUMBER}) +([A-Za-z_]\w{{0,40}}) *(?=,|$)")
# Characters around a name or a number that change neither.
_AROUND = re.compile(r"\((?:train|training)\)|\b(?:tensor|array|Array|float\d{0,3})\(")
# A line that begins with one of these is not about a training step.
_OTHER_LINES = frozenset({
    "val", "valid", "validation", "eval", "evaluation", "evaluating", "test", "testing", "dev",
    "best", "saved", "saving", "save", "loaded", "loading", "resuming", "resumed", "checkpoint",
    "config", "args", "namespace",
})  # fmt: skip
# Words before `step` that make it a setting, and before `loss` that leave it the loss.
_NO_STEP_WORDS = frozenset({
    "warmup", "max", "total", "num", "number", "every", "save", "eval", "val", "logging", "log",
    "decay", "start", "end", "first", "of", "until", "per", "accumulation", "grad", "gradient",
    "remaining", "resume", "env",
})  # fmt: skip
_LOSS_WORDS = frozenset({
    "train", "training", "batch", "current", "avg", "average", "running", "mean", "total",
})  # fmt: skip
_EPOCHS = frozenset({"epoch", "ep", "train"})
_LOSSES = frozenset({Metric.LOSS, Metric.PER_UNIT})
_LEVELS = frozenset({"INFO", "DEBUG", "WARNING", "WARN", "ERROR"})
_SKIPPED = re.compile(r"(?i)\b(?:overflow|skipp(?:ed|ing))\b(?! *[:=]? *(?:\d|false|no))")
_NOT_FINITE = re.compile(r"(?i)\b(?:nan|inf|non-?finite|not finite|overflow)\b")
_OF_STEP = re.compile(
    r"(?i)\bskip\w{0,5}\b.{0,30}\b(?:steps?|updat\w+|batch|iteration|optimizer)\b"
)
_MOST_CHARACTERS, _MOST_WORDS = 4096, 3


@dataclass(frozen=True, slots=True)
class _Pair:
    """A number in a plain line and the words before it; `of` is the number after a slash."""

    words: tuple[str, ...]
    number: str
    of: str | None = None


def read(line: str) -> Iterator[Statement]:
    """Yield what a plain line of names and numbers states."""
    line = _AROUND.sub("", line[:_MOST_CHARACTERS])
    if line.lstrip().startswith("|"):  # a table's row: `| loss | 2.31 |`
        line = line.replace("|", "=")
    bar = _BAR.search(line)
    pairs = _pairs(line if bar is None else f"{line[: bar.start()]} | {line[bar.end() :]}")
    values = _values(pairs)
    if not values:  # `9.98 loss, 0.001 LR`
        pairs = _pairs(_TURNED.sub(r"\2 \1", line))
        values = _values(pairs)
    place = _place(pairs, line, bar)
    if place is not None and "loss" not in values:
        values = {**_loss_by_its_words(pairs), **values}
    is_skipped = _SKIPPED.search(line) is not None
    if place is not None and values.keys() & {"loss", "grad_norm"}:
        more = {name: value for name, value in metrics(pairs).items() if name not in values}
        yield Stats(place.step, {**more, **values}, place.epoch, place.per_epoch)
        if is_skipped:
            yield Amend(is_skip=True)
    elif place is not None and not values and _PLACE_ALONE.search(line):
        yield place
    elif place is None and values and (_VALUE_ALONE.fullmatch(line) or _is_list(values, line)):
        yield More({**metrics(pairs), **values})
    elif not values and is_skipped and _NOT_FINITE.search(line) and _OF_STEP.search(line):
        yield Skip()


def _loss_by_its_words(pairs: Sequence[_Pair]) -> dict[str, float]:
    """The first number of a plain line that is a loss by its words, such as `mse` or `Loss_G`."""
    named = {
        name: value
        for name, value in metrics(pairs).items()
        if metric_of(name) in _LOSSES and not name.startswith("aux")
    }
    return dict(zip(("loss",), named.values(), strict=False))


def metrics(pairs: Sequence[_Pair], *, of_validation: bool = False) -> dict[str, float]:
    """A plain line's numbers whose names say what they measure, and are none of our columns."""
    found: dict[str, float] = {}
    for pair in pairs:
        name = "_".join(pair.words).lower()
        if of_validation and not is_of_validation(name):
            name = f"val_{name}"
        counts = not pair.words or pair.of is not None or _step_named(pair.words) is not None
        if counts or column_in_text(name) is not None or metric_of(name) is None:
            continue
        value = _value(pair.number, has_comma=False)
        if value is not None:
            found.setdefault(name, value)
    return found


def pairs_of_measures(line: str) -> Sequence[_Pair]:
    """The named numbers of a plain line, whatever it is about."""
    return _pairs(_AROUND.sub("", line[:_MOST_CHARACTERS]), of_other_lines=True)


def _is_list(values: Mapping[str, float], line: str) -> bool:
    """Whether a plain line lists a loss and other numbers by name, and nothing else."""
    return "loss" in values and _VALUES_ALONE.fullmatch(line) is not None


def _pairs(line: str, *, of_other_lines: bool = False) -> Sequence[_Pair]:
    """The named numbers of a plain line; none if the line is not about a step."""
    found: list[_Pair] = []
    words: list[str] = []
    slash, last = False, ""
    for token in _TOKEN.finditer(line):
        kind, text = token.lastgroup, token[0]
        if kind == "word":
            is_other = text.lower() in _OTHER_LINES and not any(pair.words for pair in found)
            if is_other and not of_other_lines:
                return ()
            before = words[1 - _MOST_WORDS :] if last == "word" else []
            words = before if slash or text in _LEVELS else [*before, text]
        elif kind == "number" and slash and found and found[-1].of is None:
            found[-1] = _Pair(found[-1].words, found[-1].number, text)
            words = []
        elif kind == "number":
            found.append(_Pair(tuple(words), text))
            words = []
        elif text not in _BETWEEN:
            words = []
        slash, last = text == "/", "" if slash else kind or ""  # after a slash: a unit
    return found


def _place(pairs: Sequence[_Pair], line: str, bar: re.Match[str] | None) -> Place | None:
    """The step, the epoch and its length in a plain line; None if it has none of them."""
    epoch: int | None = None
    step: _Pair | None = None
    surest: float = math.inf
    for at, pair in enumerate(pairs):
        told = _step_named(pair.words)
        if epoch is None and pair.words and pair.words[-1].lower() in _EPOCHS:
            epoch = _whole(pair.number)
            following = pairs[at + 1] if at + 1 < len(pairs) else pair
            if step is None and following.of is not None and not following.words:
                step = following  # `Epoch: [0][ 10/100]`
        elif told and told[1] < surest and _whole(pair.number) is not None:
            step, surest = pair, told[1]
    if step is not None:
        is_of_epoch = epoch is not None or "atch" in step.words[-1:][0]
        return Place(_whole(step.number), epoch, _whole(step.of) if is_of_epoch else None)
    if epoch is None and (both := _EPOCH_AND_BATCH.search(line)):  # `[0/25][150/1583]`
        return Place(int(both[2]), int(both[1]), int(both[3]))
    if counted := _COUNTED.search(line):
        return Place(int(float(counted[1]) * (1000 if counted[2] else 1)), epoch)
    place = bar or _LEADING.match(line) or _BRACKETED.search(line)
    if place is not None:
        return Place(int(place[1]), epoch, _whole(place[2]))
    return None if epoch is None else Place(epoch=epoch)


def _values(pairs: Sequence[_Pair]) -> dict[str, float]:
    """A plain line's numbers by our column; of two names for one column, the more certain one."""
    texts: dict[str, tuple[int, str]] = {}
    for pair in pairs:
        told = _named(pair.words)
        if told and told[0] not in ("step", "(skips)") and pair.of is None:
            column, distance = told
            if column not in texts or distance < texts[column][0]:
                texts[column] = distance, pair.number
    has_comma = any("," in text and not _GROUPED.fullmatch(text) for _, text in texts.values())
    read = {column: _value(text, has_comma=has_comma) for column, (_, text) in texts.items()}
    return {column: value for column, value in read.items() if value is not None}


def _named(words: Sequence[str]) -> tuple[str, int] | None:
    """The column that the last words before a number mean; the longest name counts."""
    for count in range(len(words), 0, -1):
        told = column_in_text("_".join(words[-count:]))
        if told is not None:
            return told if {word.lower() for word in words[:-count]} <= _LOSS_WORDS else None
    return None


def _step_named(words: Sequence[str]) -> tuple[str, int] | None:
    told = column_in_text(words[-1]) if words else None
    if told is None or told[0] != "step" or {word.lower() for word in words} & _NO_STEP_WORDS:
        return None
    return told


def _value(text: str, *, has_comma: bool) -> float | None:
    """A plain line's number, whose comma is read as in the line's other numbers."""
    text = text.replace(",", "." if has_comma else "")
    return float(text) if text.count(".") < 2 else None


def _whole(text: str | None) -> int | None:
    """A count in a plain line: `10`, `00010` or `9.000`."""
    if text is None or "," in text:
        return None
    value = float(text)
    return int(value) if value.is_integer() and 0 <= value < 1e12 else None


FORMAT = Format(
    source="plain",
    anchors=(
        "loss", "Loss", "LOSS", "xent", "grad_norm", "gnorm", "l2_norm/grad", "learning_rate",
        " lr-", "Epoch", "Step", "[batch=", "[step=", "skipping", "Skipping",
        "bce", "BCE", "mse", "MSE", "mae", "MAE", "nll", "NLL", "Loss_", "errG", "Error",
    ),
    read=read,
    is_shared=True,
    is_last_resort=True,
)  # fmt: skip
