"""Whether every number in a letter is true: recomputed from the public tables with plain numpy.

Nothing here comes from ampwatch's diagnosis or report but the shape of a fact, which says what to
recompute. `untrue_numbers` walks the letter's facts, then the printed text, in which every number
has to be one of them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from ampwatch.report.letter_facts import Fact, Holds, Name, Reading, Remedy

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")
_FORMATS = re.compile(r"\b(?:fp|bf|float|bfloat|int|uint)\d+\w*|\bE\dM\d\w*|\bAMP\d+\b|\bT5\b")
# Numbers of remedies that are no part of the finding's page, each looked at by a person.
REVIEWED = {"2000": "PyTorch's growth_interval", "1e-9": "-1e9, a mask constant"}


# --- rows -----------------------------------------------------------------------------------------


def rows_of(run: Any, fact: Fact) -> list[dict[str, Any]]:
    """The rows that a fact is about, in their order."""
    table = {"steps": run.steps, "layers": run.layers, "events": run.events}[fact.table.value]
    rows = [row for row in table.to_pylist() if (row.get("rank") or 0) == fact.rank]
    if fact.table.value == "steps":
        numbers = [row["optimizer"] for row in rows if row.get("optimizer") is not None]
        if numbers:
            wanted = numbers[0] if fact.optimizer is None else fact.optimizer
            rows = [row for row in rows if row.get("optimizer") in (wanted, None)]
    if fact.layer is not None and fact.table.value == "layers":
        rows = [row for row in rows if row["layer"] == fact.layer]
    if fact.table.value == "events":
        rows = [row | _detail(row["detail"]) for row in rows if row["kind"] == fact.column]
    return [row for row in rows if row["step"] is not None]


def _detail(text: str | None) -> dict[str, Any]:
    told = json.loads(text) if text else {}
    return {key: value for key, value in told.items() if key not in ("step", "rank", "kind")}


def within(rows: list[dict[str, Any]], fact: Fact) -> list[dict[str, Any]]:
    """Those of the fact's span of steps."""
    low = -math.inf if fact.first is None else fact.first
    high = math.inf if fact.last is None else fact.last
    return [row for row in rows if low <= row["step"] <= high]


def values_of(rows: list[dict[str, Any]], fact: Fact) -> dict[int, float]:
    """By step, in order, the column's value: the last row counts; of layers the highest finite."""
    found: dict[int, float] = {}
    for row in rows:
        value = row.get(fact.column)
        if value is None:
            continue
        value, step = float(value), row["step"]
        if fact.table.value == "layers" and fact.layer is None:
            if math.isfinite(value):
                found[step] = max(value, found.get(step, -math.inf))
        else:
            found[step] = value
    return dict(sorted(found.items()))


def holds(fact: Fact, value: float) -> bool:
    """What the fact says of a value."""
    match fact.holds:
        case Holds.TRUE:
            return value > 0
        case Holds.NOT_FINITE:
            return not math.isfinite(value)
        case Holds.ZERO:
            return value == 0
        case Holds.ABOVE:
            return math.isnan(value) or value > fact.line
    return True


def is_meant(fact: Fact, row: dict[str, Any]) -> bool:
    """Whether an event is one of those that the fact is about."""
    match fact.holds:
        case Holds.OF_LAYER:
            return row.get("layer") == fact.layer and row.get("direction") == fact.direction
        case Holds.OF_CODE:
            return row.get("code") == fact.code
    return True


# --- recomputing ----------------------------------------------------------------------------------


def recompute(fact: Fact, run: Any, body: dict[str, Any]) -> float:
    """The fact's number, read from the rows anew."""
    if fact.reading is Reading.ESTIMATE:
        return _estimate(fact, body["learning_rate"])
    rows = rows_of(run, fact)
    if fact.table.value == "events":
        steps = sorted({row["step"] for row in within(rows, fact) if is_meant(fact, row)})
        return _of_steps(fact, steps)
    if fact.column == "step":
        return _of_steps(fact, sorted({row["step"] for row in within(rows, fact)}))
    values = values_of(rows, fact)
    inside = {row["step"] for row in within(rows, fact)}
    values = {step: value for step, value in values.items() if step in inside}
    if fact.reading is Reading.SINCE:
        return _since(fact, values)
    if fact.holds is not None:
        return _of_steps(fact, [step for step, value in values.items() if holds(fact, value)])
    if fact.reading is Reading.VALUE:
        return values[fact.first]
    return _of_finite(fact, {step: one for step, one in values.items() if math.isfinite(one)})


def _estimate(fact: Fact, told: dict[str, Any]) -> float:
    """What the JSON says that the diagnosis estimates."""
    if fact.column == "proved_steps":  # not among the JSON's numbers: in its sentence
        return float(re.search(r"for ([\d,]+) steps", told["because"])[1].replace(",", ""))
    return float(told[fact.column])


def _since(fact: Fact, values: dict[int, float]) -> float:
    since = math.nan
    for step, value in values.items():
        if not holds(fact, value):
            since = math.nan
        elif math.isnan(since):
            since = float(step)
    return since


def _of_finite(fact: Fact, finite: dict[int, float]) -> float:
    array = np.array(list(finite.values()))
    match fact.reading:
        case Reading.FIRST:
            return float(array[0])
        case Reading.LAST:
            return float(array[-1])
        case Reading.HIGHEST:
            return float(array.max())
        case Reading.LOWEST:
            return float(array.min())
        case Reading.MEDIAN:
            return float(np.median(array))
        case Reading.STEP_OF_HIGHEST:
            return float(list(finite)[int(array.argmax())])
    raise AssertionError(f"{fact.reading} of {fact.column} is not known here")


def _of_steps(fact: Fact, steps: list[int]) -> float:
    if fact.reading in (Reading.COUNT, Reading.STEPS):
        return float(len(steps))
    if not steps:
        return math.nan
    if fact.reading is Reading.VALUE:
        return float(steps[0])
    return float(steps[-1] if fact.reading is Reading.LAST_STEP else steps[0])


def is_rounding_of(text: str, value: float) -> bool:
    """Whether a printed number is this value, to the digit that was printed last."""
    plain = text.replace(",", "").split()[0]
    if plain in {"NaN", "inf", "-inf"}:
        return float(plain) == value or (plain == "NaN" and math.isnan(value))
    value = 100 * value if text.endswith("%") else value
    mantissa, _, exponent = plain.partition("e")
    power = int(exponent or 0)
    places = len(mantissa.partition(".")[2])
    unit = 10.0 ** (power - places)
    if not exponent and places == 0 and float(plain):  # its zeros at the end may be rounded
        unit = 10.0 ** (len(plain) - len(plain.rstrip("0")))
    return abs(float(plain) - value) <= 0.5000001 * unit


# --- the letter -----------------------------------------------------------------------------------


def untrue_numbers(letter: Any, run: Any, body: dict[str, Any], printed: str) -> list[str]:
    """What is wrong with the letter's numbers, a sentence each; empty if all are true."""
    wrong = []
    for sentence in letter.sentences:
        for part in sentence.parts:
            if isinstance(part, Fact):
                wrong += _untrue(part, run, body, str(sentence))
            elif not isinstance(part, (Name, Remedy)) and _numbers_in(part):
                wrong.append(f"a number among the words: {part!r}")
    return [*wrong, *_unaccounted(letter, printed), *_false_words(letter, run)]


def _untrue(fact: Fact, run: Any, body: dict[str, Any], sentence: str) -> list[str]:
    try:
        value = recompute(fact, run, body)
    except (KeyError, IndexError, TypeError) as error:
        return [f"{fact.text} in {sentence!r} cannot be recomputed ({error!r})"]
    same = math.isclose(value, fact.value, rel_tol=1e-5) or (
        math.isnan(value) and math.isnan(fact.value)
    )
    if not same:
        return [f"{fact.text} in {sentence!r} is {value:g} by the rows ({fact.reading.value})"]
    if not is_rounding_of(fact.text, value):
        return [f"{fact.text} in {sentence!r} is no rounding of {value:g}"]
    return []


def _numbers_in(text: str) -> list[str]:
    return _NUMBER.findall(_FORMATS.sub(" ", text))


def _without(text: str, names: list[str]) -> str:
    """The text without these names, each as a whole word."""
    for name in sorted({" ".join(name.split()) for name in names if name}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\d)", " ", text)
    return text


def _unaccounted(letter: Any, printed: str) -> list[str]:
    """Numbers of the printed text that are neither facts nor data nor part of a remedy."""
    text = " ".join(printed.split())
    names = [letter.name, *(command for command, _ in letter.next)]
    findings = [one.finding for one in (*letter.follows, *letter.separate)]
    names += [finding.layer or "" for finding in findings]
    allowed: list[str] = [f"{at}" for at in range(1, len(letter.to_do) + 1)]  # "1.", "2."
    title = letter.title
    for sentence in letter.sentences:
        for part in sentence.parts:
            if isinstance(part, Name):
                names.append(part.text)
            elif isinstance(part, Fact):
                allowed += [*_numbers_in(part.text), part.text]
            elif isinstance(part, Remedy):
                names.append(" ".join(part.text.split()))
    text = _without(text, [*names, title])
    text = re.sub(r"; and \d+ more\.", " ", text)
    return [f"{one} is no fact" for one in _numbers_in(text) if one not in allowed]


def remedies(letter: Any) -> list[str]:
    """The remedies' own numbers: those that are neither the layer's nor the rank's name."""
    return [
        part.text
        for sentence in letter.to_do
        for part in sentence.parts
        if isinstance(part, Remedy)
    ]


def unexplained_remedy_numbers(letter: Any, page: str, names: list[str]) -> list[str]:
    """Numbers of the remedies that stand neither in the finding's page nor in `REVIEWED`."""
    wrong = []
    for text in remedies(letter):
        text = _without(text, names)
        known = set(_numbers_in(page)) | set(REVIEWED)
        wrong += [f"{one} in {text!r}" for one in _numbers_in(text) if one not in known]
    return wrong


def _false_words(letter: Any, run: Any) -> list[str]:
    """Claims in words that the rows contradict."""
    columns = {"loss": ["loss"], "gradient norm": ["grad_norm"], "learning rate": ["lr"],
               "loss scale": ["scale", "scale_after"]}  # fmt: skip
    said = " ".join(str(one) for one in (*letter.unseen, *letter.how_sure))
    wrong = []
    listed = re.search(r"Not (?:in this log|recorded): ([^.]*)\.", said)
    for words, names in columns.items():
        absent = all(run.steps.column(name).null_count == run.steps.num_rows for name in names)
        if listed and words in listed[1].split(", ") and not absent and len(run.ranks) < 2:
            wrong.append(f"{words} is recorded")
    if "inf or NaN in the inputs" in said:
        finite = run.steps.column("input_finite").drop_null().to_pylist()
        if not finite or not all(finite):
            wrong.append("an input was not finite, or none was recorded")
    kinds = run.events.column("kind").to_pylist()
    to_do = " ".join(str(one) for one in letter.to_do)
    if "No recorded checkpoint" in to_do and "state-saved" not in kinds:
        wrong.append("no checkpoint was recorded at all")
    return wrong
