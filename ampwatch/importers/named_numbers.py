"""The numbers of a line of text, each with the words before it, and what those words mean.

    `step 10 | loss 2.31 | lr: 1e-4, grad_norm=0.8`

A number's name decides its column, with the same words as in tables.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ampwatch.importers.tables.column_names import column_in_text, is_noise, losses_among
from ampwatch.metric_names import is_metric, is_of_validation

# --- lines that some programs word in a way of their own ------------------------------------------

# Lines that some programs word in a way of their own, in plain words.
#
# A row for each program: its line, and the same as names and numbers. What is printed by words that
# say what they mean needs no row here.

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_PHRASES: tuple[tuple[str, str, str], ...] = (
    # Deeplearning4j: its score is the loss.
    ("Score at iteration", rf"Score at iteration (\d+) is ({_NUMBER})", r"iteration \1 loss \2"),
    # What is measured before its step: `Cost after iteration 0: nan`, `Loss at step 10: 2.3`.
    (
        " ",
        (
            r"([A-Za-z][\w ]{0,30}) (?:after|at) (iteration|epoch|step):? (\d+)\s*[:=]? "
            rf"({_NUMBER})\s*$"
        ),
        r"\2 \3 \1 \4",
    ),
    # Tacotron 2: what its validation gave after an iteration.
    ("alidation loss ", rf"(Validation loss) (\d+):\s+({_NUMBER})", r"iteration \2 \1 \3"),
    # darknet: the loss, its mean, the learning rate.
    (
        " avg",
        rf"^ *(\d+): ({_NUMBER}), {_NUMBER} avg(?: loss)?, ({_NUMBER}) rate,.*",
        r"iteration \1 loss \2 lr \3",
    ),
    # `lr, 0.001` alone.
    (", ", rf"^\s*([A-Za-z][\w ]{{0,30}}), ({_NUMBER})\s*$", r"\1 \2"),
    # Flower: the loss after a round on all clients.
    ("fit progress", rf"fit progress: \((\d+), ({_NUMBER}), (.*)", r"step \1 loss \2 \3"),
    # VITS and its descendants: a list of losses that ends with the step and the learning rate.
    (
        "]",
        rf"INFO\s+\[(?:{_NUMBER}, )({_NUMBER}), (?:{_NUMBER}, ){{3,5}}(\d+), ({_NUMBER})\]$",
        r"step \2 gen_loss \1 lr \3",
    ),
)
# What a message's place in a program looks like, before the message.
_SOURCE = re.compile(
    r"^\s*(?:DEBUG|INFO|WARNING|ERROR):[\w.]+:|^\s*[IWEF]\d{4} [\d:.]+ +\d+ \S{1,80}:\d+\] |"
    r"\b[\w./-]{1,80}\.(?:py|cpp|cc|cu):\d+\b\]?"
)
_MARKS = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)|`")  # of markdown
_WORDS = {
    "学习率": " lr", "損失": " loss", "损失": " loss", "步数": " step", "迭代次数": " iteration",
    "迭代": " iteration", "训练": " train ", "验证": " val ", "测试": " test ", "轮次": " epoch ",
    "回合": " epoch ", "準確率": " accuracy", "准确率": " accuracy", "梯度范数": " grad_norm",
    "эпизод": " episode ", "Эпизод": " episode ", "эпоха": " epoch ", "Эпоха": " epoch ",
    "Обучение": " train ", "обучение": " train ", "Валидация": " val ", "валидация": " val ",
    "шаг ": " step ", "Шаг ": " step ", "потери": " loss", "Потери": " loss", "награда": " reward",
    "Награда": " reward", "точность": " accuracy", "Точность": " accuracy", "épocas": " epoch ",
    "época": " epoch ", "Época": " epoch ", "pérdida": " loss", "Pérdida": " loss",
    "époque": " epoch ", "précision": " accuracy", "손실": " loss", "에폭": " epoch ",
    "에포크": " epoch ", "정확도": " accuracy", "보상": " reward", "损失值": " loss",
    "学習率": " lr", "エポック": " epoch ", "ステップ": " step ",
    "−": "-", "∞": "inf", "×10": "^10", "：": ":", "，": ", ", "【": "[",  # noqa: RUF001
    "】": "]", "（": "(", "）": ")", "＝": "=", "．": ".",  # noqa: RUF001
}  # fmt: skip
FOREIGN_WORDS = frozenset(word for word in _WORDS if len(word) > 1)
# Of German, Dutch, French, Spanish, Portuguese and Italian: whole words that English has not.
_LATIN_WORDS = {
    **dict.fromkeys(("verlust", "verlies", "perte", "perdida", "perda", "perdita"), "loss"),
    **dict.fromkeys(("schritt", "stap", "paso", "passo", "étape"), "step"),
    **dict.fromkeys(("epoche", "epoca"), "epoch"),
    **dict.fromkeys(("genauigkeit", "trefferquote", "exactitude", "exactitud"), "accuracy"),
    **dict.fromkeys(
        ("lernrate", "taux d'apprentissage", "tasa de aprendizaje", "taxa de aprendizado",
         "taxa de aprendizagem", "tasso di apprendimento", "leersnelheid"), "lr",
    ),
    **dict.fromkeys(("validierung", "prüfung", "validación", "validazione"), "val"),
    **dict.fromkeys(("gradientennorm", "norme du gradient", "norma del gradiente"), "grad_norm"),
}  # fmt: skip
_LATIN = re.compile(rf"(?i)\b(?:{'|'.join(_LATIN_WORDS)})\b")
# Python 2 prints `('loss: ', 1.3)`: the comma stands between a name and its number.
_TUPLE = re.compile(r"(?<=[\w:= ])['\"],\s*(?=\[|-?\d|array)")
# `grad_norm={'default': 66.5}`: the first of a column's parts stands for it.
_PARTS = re.compile(
    r"(?i)\b((?:grad_?norm|gnorm|lr|learning_rate|loss_scale)\s*[=:]\s*)\{\s*['\"][^'\"]{1,40}['\"]\s*:"
)
_GLUED = re.compile(r"(?i)\b(epoch|step|iter|iteration|batch)(\d+)\b")  # `epoch0; batch480`
_COMPILED = tuple((anchor, re.compile(wording), plain) for anchor, wording, plain in _PHRASES)


def in_plain_words(line: str) -> str:
    """A line with what is known to mean a step and a loss said in plain words."""
    line = _GLUED.sub(r"\1 \2", _MARKS.sub("", _SOURCE.sub(" ", line)))
    if "{" in line:
        line = _PARTS.sub(r"\1", line)
    if line.lstrip().startswith(("('", '("')):
        line = _TUPLE.sub(" ", line)
    lowered = line.lower()
    if any(word in lowered for word in _LATIN_WORDS):  # a sixth of the time of the pattern
        line = _LATIN.sub(lambda word: _LATIN_WORDS[word[0].lower()], line)
    if not line.isascii():
        for word, english in _WORDS.items():
            line = line.replace(word, english)
    for anchor, wording, plain in _COMPILED:
        if anchor in line:
            line = wording.sub(plain, line)
    return line


# --- numbers and their names ----------------------------------------------------------------------

# Each part begins with a character that no other begins with, and takes all of it: a line is read
# in number pass.
_TOKEN = re.compile(
    r"(?P<number>(?![-+]?[1-9]\d{0,2}(?:\.\d{3})+,\d+(?![.\d]))"  # no `2.500,00`
    r"[-+]?(?:\d+(?:,\d+)*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|"
    r"(?:[Nn][Aa][Nn]|[Ii]nf(?:inity)?|INF(?:INITY)?)))(?:(?:st|nd|rd|th)\b|"
    # What goes on directly, as in `2'500`, `2^16`, `1.#INF` or `1.2 k`, makes another number of it.
    r"(?!\w|[.'^\u00a0\u2009\u202f]\d|\*\*|\.?#| ?[kKM]\b(?! ?[=:])))"
    r"|(?P<glued>[-+]?\.?\d[\w.]*)"
    r"|(?P<word>[^\W\d](?:[\w./%-]|@(?=\w))*)"
    r"|(?P<mark>[^\s\w])"
)
_BETWEEN = frozenset(":=[('\"{#-")  # may stand between a name and its number
_VERBS = frozenset({"is", "was", "are", "equals", "so", "far"})  # say nothing of a number
_WIDE = re.compile(r"\t| {2}")  # begins another name
_LOSS = re.compile(r"(?i)\bloss\b.*[:=] *[-+]?[\d.nN]")
_ROUNDED_AWAY = re.compile(r"0\.0{2,}")  # of a learning rate of 1e-6, three digits say nothing
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
# A line that begins with number of these is not about a training step.
_OTHER_LINES = frozenset({
    "val", "valid", "validation", "eval", "evaluation", "evaluating", "test", "testing", "dev",
    "best", "saved", "saving", "save", "loaded", "loading", "resuming", "resumed", "checkpoint",
    "config", "args", "namespace",
})  # fmt: skip
_TIMES = ("time", "sec", "seconds")
# Words before `step` that make it a setting, and before `loss` that leave it the loss.
_NO_STEP_WORDS = frozenset({
    "warmup", "max", "total", "num", "number", "every", "save", "eval", "val", "logging", "log",
    "decay", "start", "end", "first", "of", "until", "per", "accumulation", "grad", "gradient",
    "remaining", "resume", "env", *_TIMES,
})  # fmt: skip
_PARTS_OF_WORK = frozenset({"episode", "rollout"})
_INDEX_WORDS = frozenset({"i", "idx", "index", "no", "nr", "number", "num", "id"})
_LOSS_WORDS = frozenset({
    "train", "training", "batch", "current", "avg", "average", "running", "mean", "total",
})  # fmt: skip
_COUNTED = frozenset({"train", "training", "total"})  # `train=960` is how many there are
TEXT_COLUMNS = ("step", "loss", "lr", "grad_norm", "scale_after")  # that a user can name
_LEVELS = frozenset({"INFO", "DEBUG", "WARNING", "WARN", "ERROR"})
_MOST_WORDS, _LEAST_LINES = 3, 3
_MOST_NAMES = 4096  # whose meaning is remembered: a log has the same ones on every line


@dataclass(frozen=True, slots=True)
class NamedNumber:
    """A number in a line and the words before it; `of` is the number after a slash."""

    words: tuple[str, ...]
    text: str
    of: str | None = None


def named_losses(numbers: Sequence[NamedNumber], figures: Collection[str] = ()) -> dict[str, float]:
    """A plain line's numbers that are losses by their words, such as `mse` or `Loss_G`."""
    values = metrics_of(numbers, figures)
    losses = losses_among(tuple(values))
    return {n: values[n] for n in losses if not n.startswith("aux") and "scale" not in n}


def names_of(lines: Iterable[Sequence[NamedNumber]], most: int = 6) -> list[str]:
    """What the numbers on several lines are called, the most frequent ones."""
    names = collections.Counter(
        _plain_name("_".join(number.words)) for numbers in lines for number in numbers
    )
    return [name for name, count in names.most_common() if name and count >= _LEAST_LINES][:most]


def renamed(numbers: Sequence[NamedNumber], mapped: Mapping[str, str]) -> Sequence[NamedNumber]:
    """A line's numbers, those that the user has named for one of our columns called so."""
    wanted = {_plain_name(name): column for name, column in mapped.items()}
    names = []
    for number in numbers:
        name = _plain_name("_".join(number.words))
        column = wanted.get(name) or next(
            (ours for theirs, ours in wanted.items() if name.endswith(f"_{theirs}")), None
        )
        known, words = column_named(number.words), number.words
        if column is not None:
            words = (column.removesuffix("_after"),)
        elif known is not None and known[0] in wanted.values():
            words = (f"other {name}",)
        names.append(NamedNumber(words, number.text, number.of))
    return names


@lru_cache(_MOST_NAMES)
def _plain_name(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name).strip("_").lower()


def is_figure(name: str, texts: Sequence[str]) -> bool:
    """Whether a name is that of a figure: most texts of it, on a log's lines, are fractions."""
    fractions = sum(1 for text in texts if not text.replace(",", "").lstrip("+-").isdecimal())
    return 2 * fractions > len(texts) and not is_noise(name)


def figures_among(lines: Iterable[Sequence[NamedNumber]]) -> frozenset[str]:
    """The names of a log's figures, parts of its loss above all, whatever they are called."""
    texts: dict[tuple[str, ...], list[str]] = {}
    for numbers in lines:
        for number in numbers:
            if number.of is None:
                texts.setdefault(number.words, []).append(number.text)
    return frozenset(
        "_".join(words) for words, told in texts.items()
        if words and column_named(words) is None and is_figure("_".join(words), told)
    )  # fmt: skip


def figures_in(line: str) -> dict[str, float]:
    """The figures of a framework's line of statistics by which it has no column."""
    numbers = numbers_in(line)
    return metrics_of(numbers, figures_among([numbers]))


def metrics_of(
    numbers: Sequence[NamedNumber], figures: Collection[str] = (), *, of_validation: bool = False
) -> dict[str, float]:
    """A plain line's numbers whose names say what they measure, and are none of our columns.

    `figures` are other names that measure something.
    """
    metrics: dict[str, float] = {}
    for number in numbers:
        name = "_".join(number.words)  # `SmoothL1` is two words, `ACC` is one
        name = name.lower() if is_metric(name.lower()) else name
        if of_validation and not is_of_validation(name):
            name = f"val_{name}"
        counts = not number.words or number.of is not None or step_named(number.words) is not None
        counts |= number.text.isdecimal() and _plain_name(name) in _COUNTED
        if counts or column_in_text(name) is not None or not (is_metric(name) or name in figures):
            continue
        value = _value(number.text)
        if value is not None:
            metrics.setdefault(name, value)
    return metrics


def numbers_in(line: str, *, of_other_lines: bool = False) -> Sequence[NamedNumber]:
    """The named numbers of a plain line; none if the line is not about a step."""
    numbers: list[NamedNumber] = []
    words: list[str] = []
    slash, last, end = False, "", 0
    for token in _TOKEN.finditer(line):
        kind = token.lastgroup or ""
        text = token[kind]
        if kind == "word":
            is_other = text.lower() in _OTHER_LINES and not any(number.words for number in numbers)
            if is_other and not of_other_lines:
                return ()
            if text.lower() in _VERBS:
                continue
            goes_on = last == "word" and _WIDE.search(line, end, token.start()) is None
            before = words[1 - _MOST_WORDS :] if goes_on else []
            words = before if slash or text in _LEVELS else [*before, text]
        elif kind == "number" and slash and numbers and numbers[-1].of is None:
            numbers[-1] = NamedNumber(numbers[-1].words, numbers[-1].text, text)
            words = []
        elif kind == "number":
            numbers.append(NamedNumber(tuple(words), text))
            words = []
        elif text not in _BETWEEN:
            words = []
        end = token.end()
        slash, last = text == "/", "" if slash else kind  # after a slash: a unit
    if len(numbers) == 1 and not numbers[0].words and _LOSS.search(line):  # `loss (): 0.27`
        return [NamedNumber(("loss",), numbers[0].text)]
    return numbers


def values_of(numbers: Sequence[NamedNumber]) -> dict[str, float]:
    """A plain line's numbers by our column; of two names for a column, the surer one."""
    texts: dict[str, tuple[int, str]] = {}
    for number in numbers:
        told = column_named(number.words)
        if told and told[0] not in ("step", "(skips)") and number.of is None:
            column, distance = told
            if column == "lr" and _ROUNDED_AWAY.fullmatch(number.text):
                continue
            if column not in texts or distance < texts[column][0]:
                texts[column] = distance, number.text
    read = {column: _value(text) for column, (_, text) in texts.items()}
    return {column: value for column, value in read.items() if value is not None}


@lru_cache(_MOST_NAMES)
def column_named(words: tuple[str, ...]) -> tuple[str, int] | None:
    """The column that the last words before a number mean; the longest name counts."""
    for count in range(len(words), 0, -1):
        column = column_in_text("_".join(words[-count:]))
        if column is not None:
            return column if {word.lower() for word in words[:-count]} <= _LOSS_WORDS else None
    first = column_in_text("_".join(words[:-1])) if words else None  # `learning rate backbone`
    return first if first is not None and first[0] == "lr" else None


@lru_cache(_MOST_NAMES)
def step_named(words: tuple[str, ...]) -> tuple[str, int] | None:
    """The step that the words before a number mean; None if they make it a setting."""
    if len(words) > 1 and words[-1].lower() in _INDEX_WORDS:  # `batch i: 3`
        words = words[:-1]
    column = column_in_text(words[-1]) if words else None
    if column and (column_named(words) or column)[0] != column[0]:  # `skipped steps`
        return None
    said = {word.lower() for word in words}
    said.update(*(word.lower().split("/")[:-1] for word in words[-1:] if _TIMES[0] in word))
    is_length = bool({word.lower() for word in words[:-1]} & _PARTS_OF_WORK)  # `episode steps`
    if column is None or column[0] != "step" or said & _NO_STEP_WORDS or is_length:
        return None
    return column if not any("global" in word for word in said) else ("step", -1)


def has_decimal_commas(lines: Iterable[Sequence[NamedNumber]]) -> bool:
    """Whether a comma is the decimal mark of a log, by numbers that can be nothing else."""
    texts = [number.text for numbers in lines for number in numbers if column_named(number.words)]
    commas = [text for text in texts if "," in text]
    is_certain = any(text.count(",") == 1 and not _GROUPED.fullmatch(text) for text in commas)
    return is_certain and not any("." in text for text in commas)


def _value(text: str) -> float | None:
    """A plain line's number; None if its commas do not group thousands."""
    if "," in text and not _GROUPED.fullmatch(text):
        return None
    return float(text.replace(",", ""))


def whole(text: str | None) -> int | None:
    """A count in a plain line: `10`, `00010` or `9.000`."""
    value = None if text is None else _value(text)
    is_count = value is not None and value.is_integer() and 0 <= value < 1e12
    return int(value) if value is not None and is_count else None
