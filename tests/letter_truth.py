"""Whether every number of a letter is true: each is computed again from the run's public tables.

Nothing here is shared with the diagnosis or the report: what a reading means is written a second
time, from its documented meaning, over the rows of `run.steps`, `run.layers` and `run.events`.
Only the letter's own dataclasses are imported, to walk through it, and the rules' pages, in which
the numbers of a remedy stand.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

import ampwatch
from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.rules import RULES
from ampwatch.diagnosis.value_text import evidence_text
from ampwatch.report.letter import letter_of
from ampwatch.report.letter_facts import Fact, Holds, Name, Reading, Remedy
from ampwatch.report.terminal_report import LetterView
from ampwatch.rows import Table

_RELATIVE = 1e-5

# Numbers of remedies that are in no page of their rule, each looked at by a person: none is needed.
REVIEWED_NUMBERS: dict[str, str] = {}

# --- rows -----------------------------------------------------------------------------------------


class Truth:
    """The rows of a run as Python values, from its public tables."""

    def __init__(self, run: Any, body: Mapping[str, Any]) -> None:
        self.run, self.body = run, body
        self._tables = {Table.STEPS: run.steps, Table.LAYERS: run.layers}
        self._columns: dict[tuple[Table, str], list[Any]] = {}
        self.events = [
            {**row, "detail": json.loads(row["detail"] or "{}")} for row in run.events.to_pylist()
        ]

    def column(self, table: Table, name: str) -> list[Any]:
        """A column of all rows, in order; no such column: all null."""
        rows = self._tables[table]
        if name not in rows.column_names:
            return [None] * rows.num_rows
        if (table, name) not in self._columns:
            self._columns[table, name] = rows.column(name).to_pylist()
        return self._columns[table, name]

    @property
    def ranks(self) -> set[int]:
        """The ranks that have rows of steps or events."""
        return {*self.column(Table.STEPS, "rank"), *(row["rank"] for row in self.events)} - {None}

    def _optimizer(self, fact: Fact) -> int | None:
        if fact.optimizer is not None:
            return fact.optimizer
        rank, number = (self.column(Table.STEPS, name) for name in ("rank", "optimizer"))
        pairs = zip(rank, number, strict=True)
        return next((one for of, one in pairs if of == fact.rank and one is not None), None)

    def entries(self, fact: Fact, name: str | None = None) -> dict[int, float]:
        """Step by step the known value of the fact's column, within its span."""
        table, name = fact.table, name or fact.column
        if table is Table.EVENTS:
            return {step: float(step) for step in self._event_steps(fact)}
        wanted = self._optimizer(fact) if table is Table.STEPS else None
        who = self.column(table, "optimizer" if table is Table.STEPS else "layer")
        key = wanted if table is Table.STEPS else fact.layer
        rows = zip(
            self.column(table, "step"), self.column(table, "rank"), who, self.column(table, name),
            strict=True,
        )  # fmt: skip
        found: dict[int, float] = {}
        for step, rank, of, value in rows:
            if rank != fact.rank or value is None or not _inside(step, fact):
                continue
            if key is not None and of != key and not (of is None and table is Table.STEPS):
                continue
            number = float(value)
            if table is Table.LAYERS and fact.layer is None:
                if math.isfinite(number):
                    found[step] = max(number, found.get(step, -math.inf))
            else:
                found[step] = number
        return dict(sorted(found.items()))

    def _event_steps(self, fact: Fact) -> list[int]:
        steps = set()
        for row in self.events:
            detail = row["detail"]
            if row["kind"] != fact.column or row["rank"] != fact.rank or row["step"] is None:
                continue
            if not _inside(row["step"], fact):
                continue
            if fact.holds is Holds.OF_CODE and detail.get("code") != fact.code:
                continue
            named = detail.get("layer"), detail.get("direction")
            if fact.holds is Holds.OF_LAYER and named != (fact.layer, fact.direction):
                continue
            steps.add(row["step"])
        return sorted(steps)


def _inside(step: int, fact: Fact) -> bool:
    low = -math.inf if fact.first is None else fact.first
    return low <= step <= (math.inf if fact.last is None else fact.last)


# --- readings -------------------------------------------------------------------------------------


def _holds(fact: Fact, value: float) -> bool:
    match fact.holds:
        case Holds.TRUE:
            return value == 1
        case Holds.NOT_FINITE:
            return not math.isfinite(value)
        case Holds.ZERO:
            return value == 0
        case Holds.ABOVE:
            assert fact.line is not None
            return not math.isfinite(value) or value > fact.line
        case Holds.PRESENT | Holds.OF_CODE | Holds.OF_LAYER:
            return True
    raise ValueError(f"the fact does not say what holds: {fact}")


def _since(fact: Fact, entries: Mapping[int, float]) -> float:
    begin = math.nan
    for step, value in reversed(entries.items()):
        if not _holds(fact, value):
            break
        begin = step
    return begin


_OF_FINITE: dict[Reading, Callable[[Mapping[int, float]], float]] = {
    Reading.FIRST: lambda of: next(iter(of.values())),
    Reading.LAST: lambda of: list(of.values())[-1],
    Reading.HIGHEST: lambda of: max(of.values()),
    Reading.LOWEST: lambda of: min(of.values()),
    Reading.MEDIAN: lambda of: statistics.median(of.values()),
    Reading.STEP_OF_HIGHEST: lambda of: max(of, key=lambda step: (of[step], -step)),
    Reading.STEP_OF_LOWEST: lambda of: min(of, key=lambda step: (of[step], step)),
}


def recompute(fact: Fact, run: Any, body: Mapping[str, Any]) -> float:
    """The fact's number, computed again; NaN where the rows do not have it."""
    return _recomputed(fact, Truth(run, body))


def _recomputed(fact: Fact, truth: Truth) -> float:
    if fact.reading is Reading.ESTIMATE:
        return _outside_rows(fact, truth)
    entries = truth.entries(fact)
    if fact.reading in _OF_FINITE:
        finite = {step: value for step, value in entries.items() if math.isfinite(value)}
        return _OF_FINITE[fact.reading](finite) if finite else math.nan
    match fact.reading:
        case Reading.VALUE:
            return math.nan if fact.first is None else entries.get(fact.first, math.nan)
        case Reading.STEPS:
            return len(entries)
        case Reading.SINCE:
            return _since(fact, entries)
    return _of_holding(fact, [step for step, value in entries.items() if _holds(fact, value)])


def _of_holding(fact: Fact, holding: Sequence[int]) -> float:
    """A count or a step of the steps in which something holds."""
    if fact.reading is Reading.COUNT:
        return len(holding)
    if fact.reading is Reading.STEP:
        return fact.first if fact.first is not None and fact.first in holding else math.nan
    at = {Reading.FIRST_STEP: 0, Reading.LAST_STEP: -1}[fact.reading]
    return holding[at] if holding else math.nan


def _outside_rows(fact: Fact, truth: Truth) -> float:
    """An estimate of `report --json`."""
    value = truth.body["learning_rate"].get(fact.column)
    return math.nan if value is None else float(value)


# --- texts of numbers -----------------------------------------------------------------------------

_EXACT = frozenset(
    (
        Reading.COUNT, Reading.STEPS, Reading.STEP, Reading.STEP_OF_HIGHEST, Reading.STEP_OF_LOWEST,
        Reading.FIRST_STEP, Reading.LAST_STEP, Reading.SINCE,
    )
)  # fmt: skip
_NUMBER = re.compile(
    r"(?P<sign>-?)(?P<whole>\d[\d,]*)(?:\.(?P<part>\d+))?(?:e(?P<power>[+-]?\d+))?"
)
_UNITS = {"%": 0.01, "octaves": 1.0, "": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_GROUPED = re.compile(r"\d{1,3}(,\d{3})*|\d+")


def is_rounded(text: str, value: float, *, exact: bool = False) -> bool:
    """Whether a text is a correct rounding of a value, by half a unit of its last digit."""
    if text in {"NaN", "unknown"}:
        return math.isnan(value)
    if text in {"inf", "-inf"}:
        return value == float(text)
    match = _NUMBER.match(text)
    if match is None or not math.isfinite(value) or not _GROUPED.fullmatch(match["whole"]):
        return False
    size = _UNITS.get(text[match.end() :].strip())
    if size is None:
        return False
    printed = float(match[0].replace(",", "")) * size
    if exact:
        return printed == value
    unit = _last_digit(match) * 10.0 ** int(match["power"] or 0) * size
    return abs(printed - value) <= 0.5 * unit * (1 + 1e-6) + 1e-9 * abs(value)


def _last_digit(match: re.Match[str]) -> float:
    """The worth of the last digit that says something: 29,000 says two, 100 says two."""
    if match["part"]:
        return float(10.0 ** -len(match["part"]))
    whole = match["whole"].replace(",", "")
    telling = max(2, len(whole.rstrip("0")))
    return float(10.0 ** max(0, len(whole) - telling))


def _same(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=_RELATIVE)


# --- a letter -------------------------------------------------------------------------------------


def untrue_numbers(letter: Any, run: Any, body: Mapping[str, Any], printed: str) -> list[str]:
    """What is untrue in a letter, in words; empty if all of it can be computed again."""
    truth = Truth(run, body)
    return [
        *_untrue_facts(letter, truth),
        *_loose_numbers(letter, truth, printed),
        *_untrue_words(letter, truth, printed),
    ]


def facts_of(letter: Any) -> list[Fact]:
    """Every fact of a letter."""
    return [fact for sentence in letter.sentences for fact in sentence.facts]


def _untrue_facts(letter: Any, truth: Truth) -> Iterator[str]:
    for sentence in letter.sentences:
        for fact in sentence.facts:
            true = _recomputed(fact, truth)
            what = f"{fact.text!r} ({fact.reading.value} of {fact.column!r}) in {str(sentence)!r}"
            if math.isnan(true) and fact.reading is not Reading.VALUE:
                yield f"{what} is in no row"
            elif not _same(fact.value, true):
                yield f"{what} is {true!r}, not {fact.value!r}"
            elif not is_rounded(fact.text, true, exact=fact.reading in _EXACT):
                yield f"{what} is no rounding of {true!r}"


# --- numbers among the words ----------------------------------------------------------------------

_FORMATS = re.compile(
    r"\b(?:fp|bf|tf|float|bfloat|int|uint)\d+(?:_\w+)?\b|\bE\dM\d(?:FN)?\b", re.IGNORECASE
)
_CODE = re.compile(r"\bAMP\d{3}\b")
_WITH_DIGIT = re.compile(r"[^\s()\[\];:\"'`=/]*\d[^\s()\[\];:\"'`=/]*")
_ITEM = re.compile(r"^  (\d+)\. ", re.MULTILINE)


def numbers_in(text: str) -> list[str]:
    """The words of a text that have a digit, without the marks around them; not `float32`."""
    found = (word.strip(".,;:!?") for word in _WITH_DIGIT.findall(text))
    return [word for word in found if not (word[0].isalpha() or word[0] == "_")]


def _loose_numbers(letter: Any, truth: Truth, printed: str) -> Iterator[str]:
    """Numbers in the print that no fact accounts for."""
    items = [int(found) for found in _ITEM.findall(printed)]
    if items != list(range(1, len(letter.to_do) + 1)):
        yield f"the items of What to do are numbered {items}"
    text = _without_names(_flat(_ITEM.sub(" ", printed)), letter, truth)
    allowed = Counter(
        token for fact in facts_of(letter) for token in numbers_in(fact.text)
    )  # as often as it is told
    allowed += _numbers_left_over(letter)
    pages = _page_of(letter)
    for remedy in _parts(letter, Remedy):
        computed = _computed_in(remedy.text, truth)
        for token in numbers_in(_without_names(_flat(remedy.text), letter, truth)):
            if token in pages or token in computed or token in REVIEWED_NUMBERS:
                allowed[token] += 1
            else:
                yield f"{token!r} in the remedy {remedy.text!r} is in no page of its rule"
    for token, times in Counter(numbers_in(text)).items():
        if times > allowed[token]:
            yield f"{token!r} is printed {times} times and told by {allowed[token]} facts"
    for sentence in letter.sentences:
        for part in sentence.parts:
            if isinstance(part, str) and numbers_in(_without_names(part, letter, truth)):
                yield f"a literal number among the words {part!r}"


_GROWTH = re.compile(r"From (\S+) it needs ([\d,]+) accepted steps to get there by growth")
_TARGET = re.compile(r"init_scale=2\.0\*\*(\d+)")
_OUTLIER = re.compile(r"at step (\d+) the input was ([\d,]+) times as large")


def _computed_in(text: str, truth: Truth) -> set[str]:
    """The numbers of a remedy that it takes from the run, and that are so in its rows."""
    found: set[str] = set()
    growth = _GROWTH.search(text)
    if growth:
        actions = " ".join(one["action"] or "" for one in truth.body["findings"])
        aims = [2.0 ** int(power) for power in _TARGET.findall(actions)]
        now = truth.body["run"]["final_scale"]
        interval = truth.run.info.scaler["growth_interval"]
        needed = {interval * math.ceil(math.log2(aim / now)) for aim in aims}
        if is_rounded(growth[1], now) and int(growth[2].replace(",", "")) in needed:
            found |= {*growth.groups(), *_TARGET.findall(actions)}
    outlier = _OUTLIER.search(text)
    if outlier:
        rows = zip(
            truth.column(Table.STEPS, "step"), truth.column(Table.STEPS, "input_amax"), strict=True
        )
        sizes = {step: size for step, size in rows if size is not None and math.isfinite(size)}
        at = int(outlier[1])
        before = [size for step, size in sizes.items() if step < at]
        if at in sizes and before:
            times = sizes[at] / statistics.median(before)
            if math.isclose(times, float(outlier[2].replace(",", "")), rel_tol=0.1):
                found |= set(outlier.groups())  # what is usual before has more than one measure
    return found


def _numbers_left_over(letter: Any) -> Counter[str]:
    """The counts of findings that the letter does not name: `and 2 more`."""
    counts = [len({one.text for one in listed}) - 5 for listed in (letter.follows, letter.separate)]
    return Counter(str(count) for count in counts if count > 0)


def _page_of(letter: Any) -> set[str]:
    """The numbers in the page of the rule of the letter's main finding."""
    rules = [rule for rule in RULES if rule.code in letter.codes]
    texts = [text for rule in rules for text in dataclasses.asdict(rule.page).values()]
    return {token for text in texts for token in numbers_in(_FORMATS.sub("", _flat(text)))}


def _parts(letter: Any, kind: type[Any]) -> Iterator[Any]:
    for sentence in letter.sentences:
        yield from (part for part in sentence.parts if isinstance(part, kind))


def _flat(text: str) -> str:
    return " ".join(text.split())


def _without_names(text: str, letter: Any, truth: Truth) -> str:
    """The text without what is data: names, commands, codes, number formats."""
    commands = [command for command, _ in letter.next]
    spoken = [part.text for part in _parts(letter, Name)]
    layers = {finding["layer"] for finding in truth.body["findings"] if finding["layer"]}
    layers |= set(truth.column(Table.LAYERS, "layer")) - {None}
    layers |= {str(row["detail"]["layer"]) for row in truth.events if row["detail"].get("layer")}
    layers |= {str(rank) for rank in truth.ranks}
    short = letter.name if len(letter.name) <= 60 else f"{letter.name[:59]}…"
    for name in sorted({letter.name, short, *commands, *spoken, *layers}, key=len, reverse=True):
        flat = _flat(name)
        if not any(letter_.isdigit() for letter_ in flat):
            continue
        before = (
            r"(?:(?<=[Ll]ayer )|(?<=[Rr]ank )|(?<=optimizer )|(?<=in )|(?<=of )|(?<=run )|(?<=\"))"
        )
        lead = before if re.fullmatch(r"[\d.]+", flat) else r"(?<![\w.])"
        text = re.sub(rf"{lead}{re.escape(flat)}(?!\w|[.,]\d)", " ", text)
    return _FORMATS.sub(" ", _CODE.sub(" ", text))


# --- words ----------------------------------------------------------------------------------------

_COLUMNS = {
    "loss": ("loss",), "gradient norm": ("grad_norm",), "learning rate": ("lr",),
    "loss scale": ("scale", "scale_after"), "updates": ("update_norm", "max_update_ratio"),
}  # fmt: skip
_ABSENT = re.compile(r"Not (?:recorded|in this log): ([^.]*)\.")
_RATE_CALL = re.compile(r"set_learning_rate\(optimizer, ([^,]+), scheduler\)")


def _untrue_words(letter: Any, truth: Truth, printed: str) -> Iterator[str]:
    """Words that claim what rows can contradict."""
    text = _flat(printed)
    codes = {finding["code"] for finding in truth.body["findings"]}
    codes |= {code for part in _parts(letter, Remedy) for code in _CODE.findall(part.text)}
    yield from (
        f"{code} is no finding" for code in _CODE.findall(text)
        if code not in codes and code not in letter.name
    )  # fmt: skip
    yield from _untrue_absence(truth, text)
    yield from _untrue_names(letter, truth)
    yield from _untrue_ends(letter, truth)
    if "inf or NaN in the inputs" in text:
        finite = truth.column(Table.STEPS, "input_finite")
        if not finite or not all(one is True for one in finite):
            yield "inputs are called finite, and not every row says so"
    kinds = [row["kind"] for row in truth.events if row["rank"] == min(truth.ranks, default=0)]
    resumed = {"state-loaded", "scaler-replaced"} & {*kinds} or kinds.count("started") > 1
    if "scaler state lost on resume" in text and not resumed:
        yield "a resume is called harmless, and there was none"
    saves = [row["step"] for row in truth.events if row["kind"] == "state-saved"]
    if "No recorded checkpoint" in text and not saves:
        yield "no recorded checkpoint is said to be early enough, and none is recorded"
    begins = [
        finding["first_step"] for finding in truth.body["findings"]
        if finding["code"] in letter.codes and finding["first_step"] is not None
    ]  # fmt: skip
    if "No recorded checkpoint" in text and begins and min(saves, default=0) <= min(begins):
        yield f"a checkpoint of step {min(saves, default=0)} is from before step {min(begins)}"
    now = truth.body["learning_rate"].get("current")
    if any(fact.column == "current" for fact in facts_of(letter)) and not _is_a_rate(now, truth):
        yield f"the learning rate is said to be {now} now, and no row or event has it"
    if "the only one" in text and sum(map(bool, truth.column(Table.STEPS, "skipped"))) != 1:
        yield "a skipped step is called the only one"
    layer = next(
        (one["layer"] for one in truth.body["findings"] if one["code"] in letter.codes), None
    )
    if layer and layer in letter.title and layer not in _known_layers(truth):
        yield f"the title's layer {layer!r} is in no row"
    rank = re.search(r"\b[Rr]ank (\d+)", letter.title)
    if rank and int(rank[1]) not in truth.ranks:
        yield f"the title's rank {rank[1]} has no rows"


def _is_a_rate(value: float, truth: Truth) -> bool:
    """Whether a learning rate was in use, or is the one that a schedule starts from."""
    rates = {*truth.column(Table.STEPS, "lr"), *truth.column(Table.STEPS, "lr_base")}
    for name in ("lrs", "lr_bases"):
        rates |= {rate for groups in truth.column(Table.STEPS, name) for rate in groups or ()}
    return any(_same(value, rate) for rate in rates - {None})


def _known_layers(truth: Truth) -> set[str]:
    named = {
        value for row in truth.events for value in row["detail"].values() if isinstance(value, str)
    }
    infos = (
        truth.run.layer_info.column("layer").to_pylist() if hasattr(truth.run, "layer_info") else []
    )
    return named | set(truth.column(Table.LAYERS, "layer")) | set(infos)


def _untrue_absence(truth: Truth, text: str) -> Iterator[str]:
    for words in _ABSENT.findall(text):
        for word in words.split(", "):
            if word == "layers":
                absent = not any(one is not None for one in truth.column(Table.LAYERS, "step"))
            elif word in _COLUMNS:
                absent = all(
                    value is None
                    for name in _COLUMNS[word] for value in truth.column(Table.STEPS, name)
                )  # fmt: skip
            else:
                yield f"{word!r} is called absent, and nobody can check it"
                continue
            if not absent:
                yield f"{word!r} is called absent, and rows have it"


def _untrue_names(letter: Any, truth: Truth) -> Iterator[str]:
    """Names that hold numbers: ranks, optimizers, a learning rate in a call."""
    advised = truth.body["learning_rate"].get("recommended")
    for sentence in letter.sentences:
        for at, part in enumerate(sentence.parts):
            if not isinstance(part, Name):
                continue
            ranks = re.fullmatch(r"(\d+) ranks", part.text)
            if ranks and int(ranks[1]) != len(truth.ranks):
                yield f"{part.text} are {len(truth.ranks)}"
            before = str(sentence.parts[at - 1]) if at else ""
            if before.endswith("rank ") and int(part.text) not in truth.ranks:
                yield f"rank {part.text} has no rows"
            if before.endswith("optimizer "):
                numbers = truth.column(Table.STEPS, "optimizer")
                if part.text not in {str(number) for number in numbers}:
                    yield f"optimizer {part.text} has no rows"
            call = _RATE_CALL.search(part.text)
            if call and not is_rounded(call[1], advised or math.nan):
                yield f"{part.text} does not set the advised {advised}"
            if before.endswith("The command: "):
                yield from _untrue_command(letter, part.text)


def _untrue_command(letter: Any, command: str) -> Iterator[str]:
    rates = [fact.text for fact in facts_of(letter) if fact.column == "recommended"]
    words = re.split(r"[\s=]", command)
    if not any(rate in words for rate in rates):
        yield f"{command} does not have the advised rate {rates}"


_TO_THE_END: dict[str, tuple[str, Callable[[float], bool]]] = {
    "the loss is NaN and never finite": ("loss", lambda value: not math.isfinite(value)),
    "the loss is inf and never finite": ("loss", lambda value: not math.isfinite(value)),
    "the log shows a loss of zero to the end": ("loss", lambda value: value == 0),
    "the gradient norm is NaN or inf to the end": (
        "grad_norm",
        lambda value: not math.isfinite(value),
    ),
}


def _untrue_ends(letter: Any, truth: Truth) -> Iterator[str]:
    """Lines that say what holds to the end of the run, and that the scale fell."""
    for one in letter.happened:
        words = str(one.words)
        if "The loss scale fell" in words:
            high, low = (fact.value for fact in one.words.facts)
            if not high > low:
                yield f"{words!r} is no fall"
        for claim in _TO_THE_END:
            if claim in words:
                yield from _untrue_end(claim, one.step, truth)
        if "does not come back" in words:
            yield from _untrue_stay(one.step, one.words.facts, truth)
        if "from here to the end" in words:
            yield from _untrue_stretch(one.step, one.words.facts)


def _untrue_end(claim: str, step: Fact | None, truth: Truth) -> Iterator[str]:
    column, holds = _TO_THE_END[claim]
    if step is None or step.column != column:
        yield f"{claim!r} has no step of its column"
        return
    span = dataclasses.replace(step, first=int(step.value), last=None)
    values = list(truth.entries(span).values())
    if not values or not all(map(holds, values)):
        yield f"{claim!r} is not so to the end"
    elif ("is NaN and" in claim) != math.isnan(values[0]) and "and never" in claim:
        yield f"{claim!r}: the first such loss is {values[0]}"


def _untrue_stay(step: Fact | None, facts: Sequence[Fact], truth: Truth) -> Iterator[str]:
    level, peak = facts
    if step is None or step.column != "loss":
        yield "a loss that does not come back has no step"
        return
    values = list(truth.entries(dataclasses.replace(peak, first=int(step.value))).values())
    if not values or not all(value > level.value for value in values if not math.isnan(value)):
        yield f"the loss comes back to {level.value}"


def _untrue_stretch(step: Fact | None, facts: Sequence[Fact]) -> Iterator[str]:
    for fact in facts:
        if step is None or fact.first != step.value or fact.last is not None:
            yield f"{fact.text!r} is said to be counted from here to the end, and is not"


# --- print ----------------------------------------------------------------------------------------


def printed(letter: Any, width: int = 80) -> str:
    """The letter as a terminal of this width shows it."""
    out = io.StringIO()
    Console(file=out, width=width).print(LetterView(letter))
    return out.getvalue()


def problems_of(run: Any) -> list[str]:
    """What is untrue or too long in the letter on a run."""
    diagnosis = ampwatch.diagnose(run)
    letter = letter_of(run.info.name, run, diagnosis)
    narrow = beyond_limits(printed(letter, 60), lines=60, width=60)
    return [
        *untrue_numbers(letter, run, diagnosis.to_json(), printed(letter)),
        *beyond_limits(printed(letter)),
        *(one for one in narrow if "blanks" not in one),  # the first line, where rich wraps it
    ]


def beyond_limits(
    printed: str, lines: int = 40, words: int = 300, width: int = 80
) -> Iterable[str]:
    """What of a printed letter is too long: lines, words, one line, blanks at its end."""
    found = printed.rstrip("\n").split("\n")
    if len(found) > lines:
        yield f"{len(found)} lines"
    if len(printed.split()) > words:
        yield f"{len(printed.split())} words"
    for line in found:
        if line != line.rstrip():
            yield f"blanks at the end of {line!r}"
        unbreakable = len(line.split()) == 1
        if len(line) > width and not unbreakable:
            yield f"{len(line)} columns: {line!r}"


def is_numbered_by_line(run: Any) -> bool:
    """Whether the steps are places of lines: every number from the first to the last, each once."""
    steps = set(run.steps.column("step").to_pylist())
    return not steps or len(steps) == max(steps) - min(steps) + 1


# --- evidence -------------------------------------------------------------------------------------

_SIGNS = {
    "gradient norm": "grad_norm", "loss since then": "loss", "loss at the end": "loss",
    "loss until then": "loss",
}  # fmt: skip
_EVIDENCE_COLUMNS = frozenset(("grad_norm", "loss", "scale"))
_NEAR_ROWS = 32  # on both sides: of a long record the engine keeps medians of so many


def _numbers(rows: Any, column: str) -> Any:
    return np.array([np.nan if v is None else v for v in rows[column].to_pylist()])


def _scales(rows: Any) -> Any:
    """The loss scale at each row: the last one that was recorded, before the step or after it."""
    before, after = _numbers(rows, "scale"), _numbers(rows, "scale_after")
    scale = np.where(np.isfinite(after), after, before)
    at = np.maximum.accumulate(np.where(np.isfinite(scale), np.arange(len(scale)), 0))
    return scale[at]


def untrue_evidence(run: Any) -> Iterator[str]:
    """Evidence of a run's findings that names a step at which the rows hold another value."""
    rows = run.read("steps", ["step", *_EVIDENCE_COLUMNS, "scale_after"])
    steps = np.asarray(rows["step"].to_pylist())
    pieces = [piece for finding in diagnose(run).findings for piece in finding.evidence]
    for piece in pieces:
        column = _SIGNS.get(piece.signal, piece.signal)
        if column not in _EVIDENCE_COLUMNS or piece.step is None:
            continue
        if not isinstance(piece.value, float) or not math.isfinite(piece.value):
            continue
        values = _scales(rows) if column == "scale" else _numbers(rows, column)
        here = values[(abs(steps - piece.step) <= _NEAR_ROWS) & np.isfinite(values)]
        if not len(here):
            yield f"{evidence_text(piece)}: the rows there hold nothing"
            continue
        # It falls after a step; a log that prints it after a step does not say what it was before.
        low, high = here.min() / (2 if column == "scale" else 1), here.max()
        if column == "scale" and not np.isfinite(_numbers(rows, "scale")).any():
            high *= 2
        if not low * (1 - 1e-3) <= piece.value <= high * (1 + 1e-3):
            yield f"{evidence_text(piece)}: the rows there hold {low:.4g} to {high:.4g}"
