"""What happened in a run, in order and in words: attempts, findings, skips, checkpoints, changes.

Many of a kind that lie close together become one entry, which says how many they are.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ampwatch.diagnosis import RULES, Advice, Diagnosis, Finding, Severity
from ampwatch.diagnosis.column_arrays import Integers, steps_of, texts
from ampwatch.diagnosis.record import Event, detail_of
from ampwatch.diagnosis.value_text import count_text, duration_text, scale_text
from ampwatch.printable_text import cut
from ampwatch.report.overview_chart import is_change
from ampwatch.report.settings import flat
from ampwatch.report.thinning import Rug, close_parts, merged
from ampwatch.rows import EventKind, Table
from ampwatch.store import Run
from ampwatch.store.rank_log import RankRows

# --- attempts: each start of the run, its steps, and how it ended ---------------------------------

_MARKS = (EventKind.STARTED.value, EventKind.ENDED.value, EventKind.EXCEPTION.value)
_EXCEPTION_LETTERS = 160  # of an exception's message
STOPPED_BY_HAND = "stopped by Ctrl-C"
# What may differ in a later attempt; run.json has the values of the first.
_SETTINGS = {"config": "config", "scaler": "scaler", "origin": "code"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a run, as recorded by one of its ranks."""

    number: int  # from 1
    first_step: int | None = None  # None if it took none
    last_step: int | None = None
    started_ns: int | None = None
    last_ns: int | None = None  # of its last step or event
    ending: str = ""  # in words; empty if its source records no end
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """The settings recorded by each attempt, by dotted name; long ones are cut."""
        sections = {section: self.detail.get(name) for name, section in _SETTINGS.items()}
        return {name: text for name, text in flat("", sections) if text and text != "null"}


def attempts_of(run: Run, rank: int, *, goes_on: bool) -> tuple[Attempt, ...]:
    """The attempts of one rank, the first one first; `goes_on`: the last one is live."""
    log = next((log for log in run.logs if log.rank == rank), None)
    if log is None:
        return ()
    names = ("step", "time_ns", "kind", "detail")
    rows = [row for row in run.read(Table.EVENTS, names, rank).to_pylist() if row["kind"] in _MARKS]
    parts = list(_by_start(rows)) or [[]]
    begins = [_first_row(log, number) for number in range(len(parts))]
    ends = [*begins[1:], log.rows(Table.STEPS)]
    spans = zip(parts, begins, ends, strict=True)
    return tuple(
        _attempt_of(run, rank, number, part, (begin, end), goes_on=goes_on and number == len(parts))
        for number, (part, begin, end) in enumerate(spans, 1)
    )


def _first_row(log: RankRows, attempt: int) -> int:
    """The number of the first row of an attempt, from 0, or of one after it."""
    low, high = 0, log.rows(Table.STEPS) if attempt else 0
    while low < high:
        middle = (low + high) // 2
        is_before = log.attempts(Table.STEPS, middle, middle + 1)[0] < attempt
        low, high = (middle + 1, high) if is_before else (low, middle)
    return low


def _by_start(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    for row in rows:
        if row["kind"] == EventKind.STARTED.value and part:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _attempt_of(
    run: Run,
    rank: int,
    number: int,
    marks: Sequence[dict[str, Any]],
    rows: tuple[int, int],
    *,
    goes_on: bool,
) -> Attempt:
    begin, end = rows
    steps = [_row(run, rank, at) for at in (begin, end - 1)] if end > begin else []
    start = next((row for row in marks if row["kind"] == EventKind.STARTED.value), None)
    times = [row["time_ns"] for row in (*steps, *marks) if row["time_ns"]]
    return Attempt(
        number=number,
        first_step=steps[0]["step"] if steps else None,
        last_step=steps[1]["step"] if steps else None,
        started_ns=start["time_ns"] if start else None,
        last_ns=max(times, default=None),
        ending="goes on" if goes_on else _ending(run, marks),
        detail=detail_of(start["detail"]) if start else {},
    )


def _row(run: Run, rank: int, at: int) -> dict[str, Any]:
    row: dict[str, Any] = run.logged(Table.STEPS, ("step", "time_ns"), rank, at, 1).to_pylist()[0]
    return row


def _ending(run: Run, marks: Sequence[dict[str, Any]]) -> str:
    kinds = {row["kind"] for row in marks}
    for row in reversed(marks):
        event = Event(0, 0, row["kind"], detail_of(row["detail"]))
        if event.kind == EventKind.EXCEPTION.value and event.detail.get("fatal", True):
            message = str(event.detail.get("message") or "")[:_EXCEPTION_LETTERS]
            return f"ended by {event.exception}{f': {message}' if message else ''}"
        if event.exception == KeyboardInterrupt.__name__:
            return STOPPED_BY_HAND
    if EventKind.ENDED.value in kinds:
        return "ended with its end mark"
    return "cut off: it has no end mark" if run.info.source == "ampwatch" else ""


# --- the timeline ---------------------------------------------------------------------------------

MOST_ENTRIES = 40  # of one kind: more than a reader takes in; the charts and the log have each
_MOST_TOLD = 3  # of the events in one entry, each in words; of more the first and the last
_MOST_LETTERS = 240
_RULES = {rule.code: rule for rule in RULES}


class Kind(str, enum.Enum):
    """What a reader chooses from, in the order in which it is shown."""

    ATTEMPT = "attempts"
    FINDING = "findings"
    SKIP = "skips and overflows"
    CHECKPOINT = "checkpoints"
    CHANGE = "changes"
    GUARD = "the guard"
    ERROR = "errors"
    GAP = "gaps"


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened, or several of one kind close together."""

    kind: Kind
    first: int  # step
    last: int
    title: str
    words: str
    mark: str = ""  # a finding's severity; of a checkpoint clean, suspect or poisoned
    time_ns: int | None = None  # of the first
    count: int = 1


@dataclass(frozen=True, slots=True)
class Timeline:
    """All of it: the entries by their first step, and where single events stand, by kind."""

    entries: tuple[Entry, ...]
    ticks: Mapping[Kind, Rug]


def timeline_of(
    events: pa.Table,
    skips: Rug,
    attempts: Sequence[Attempt],
    diagnosis: Diagnosis | None,
    ends: tuple[int, int],
) -> Timeline:
    """The timeline of a run; `events` has step, time_ns, rank, kind and detail, `ends` the axis."""
    rows = _EventRows.of(events)
    entries = chain(
        (_attempt_entry(one, ends) for one in attempts),
        () if diagnosis is None else (_finding(one, ends) for one in diagnosis.findings),
        _skips(skips, rows),
        _checkpoints(rows, diagnosis),
        *(_events(rows, kind) for kind in sorted(rows.kinds - _OTHER_ENTRIES)),
    )
    order = list(Kind)
    ordered = sorted(entries, key=lambda one: (one.first, order.index(one.kind), one.last))
    return Timeline(tuple(ordered), {Kind.SKIP: skips, **_ticks(rows, ends)})


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _EventRows:
    """The events, their kinds and steps as arrays: only details that are shown are read."""

    rows: pa.Table
    step: Integers
    names: tuple[str, ...]
    number: Integers  # of each event's kind

    @classmethod
    def of(cls, rows: pa.Table) -> _EventRows:
        names, number = texts(rows, "kind")
        return cls(rows, steps_of(rows), names, number)

    @property
    def kinds(self) -> set[str]:
        return set(self.names)

    def places(self, kind: str) -> Integers:
        """Where the events of a kind are, by their steps."""
        if kind not in self.names:
            return np.zeros(0, np.int64)
        at = np.flatnonzero(self.number == self.names.index(kind))
        return at[np.argsort(self.step[at], kind="stable")]

    def event(self, at: int) -> Event:
        row = {name: self.rows.column(name)[int(at)].as_py() for name in ("kind", "detail", "rank")}
        return Event(
            int(self.step[at]), row["rank"] or 0, str(row["kind"]), detail_of(row["detail"])
        )

    def time_ns(self, at: int) -> int | None:
        stamp: int | None = self.rows.column("time_ns")[int(at)].as_py()
        return stamp


_OTHER_ENTRIES = {
    EventKind.STARTED.value, EventKind.ENDED.value, EventKind.OVERFLOW.value,
    EventKind.STATE_SAVED.value,
}  # fmt: skip


def _events(events: _EventRows, kind: str) -> Iterator[Entry]:
    """The events of one kind, those of one step or close together as one entry."""
    places = events.places(kind)
    step = events.step[places]
    for part in _joined(step):
        at = places[part]
        some = [events.event(one) for one in (at if len(at) <= _MOST_TOLD else at[[0, -1]])]
        title, words = _SHOWN.get(kind, (kind, _unknown))
        lines = list(dict.fromkeys(words(event.detail) for event in some))
        text = "; ".join(line for line in lines if line)
        code = str(some[0].detail.get("code")) if kind == EventKind.MISUSE.value else ""
        name = f"{code} {_RULES[code].name}" if code in _RULES else title
        text = _RULES[code].page.meaning if code in _RULES else text
        ranks = {event.rank for event in some}
        count = len(np.unique(step[part])) if len(ranks) > 1 else len(at)
        if len(at) > len(some):
            which = "; the first and the last" if len(lines) > 1 else ""
            text = f"{count:,} times{which}: {text}"
        first, last = int(step[part][0]), int(step[part][-1])
        yield Entry(
            _kind_of(kind), first, last, name, cut(text, _MOST_LETTERS),
            time_ns=events.time_ns(at[0]), count=count,
        )  # fmt: skip


def _joined(step: Integers) -> list[slice]:
    """Events of one step are one entry; of many the close ones too."""
    if len(np.unique(step)) > MOST_ENTRIES:
        return close_parts(step, step, MOST_ENTRIES)
    edges = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist(), len(step)]
    return [slice(a, b) for a, b in pairwise(edges) if b > a]


def _ticks(events: _EventRows, ends: tuple[int, int]) -> dict[Kind, Rug]:
    """Where single events stand, merged to what an axis can show."""
    names = sorted(events.kinds - _OTHER_ENTRIES, key=_kind_of)
    ticks = {}
    for kind, several in groupby(names, _kind_of):
        places = np.concatenate([events.places(name) for name in several])
        step = np.unique(np.clip(events.step[places], *ends))
        ticks[kind] = merged(step, *ends)
    return ticks


_KINDS = {
    EventKind.STATE_LOADED.value: Kind.CHECKPOINT,
    EventKind.MISUSE.value: Kind.ERROR,
    EventKind.EXCEPTION.value: Kind.ERROR,
    EventKind.GAP.value: Kind.GAP,
    EventKind.GUARD.value: Kind.GUARD,
}


def _kind_of(name: str) -> Kind:
    return _KINDS.get(name, Kind.CHANGE)


# --- events in words ------------------------------------------------------------------------------

_MOST_RATES = 3


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def _from_to(detail: Mapping[str, Any]) -> str:
    return f"from {_number(detail.get('from'))} to {_number(detail.get('to'))}"


def _rate(detail: Mapping[str, Any]) -> str:
    names = [f"{name} {detail[name]}" for name in ("optimizer", "group") if detail.get(name)]
    which = f" of {' '.join(names)}" if names else ""  # unless it is the first
    return f"the learning rate{which} rose {_from_to(detail)}"


def _batch_size(detail: Mapping[str, Any]) -> str:
    return f"the batch went {_from_to(detail)} samples"


def _optimizer(detail: Mapping[str, Any]) -> str:
    groups = detail.get("groups")
    count = count_text(len(groups), "group") if isinstance(groups, list) else "unknown groups"
    rates = [g.get("lr") for g in groups if isinstance(g, dict)] if isinstance(groups, list) else []
    numbers = [_number(rate) for rate in dict.fromkeys(rates) if rate is not None]
    told = f", learning rate {', '.join(numbers[:_MOST_RATES])}" if numbers else ""
    return f"{detail.get('class', 'an optimizer')} with {count}{told}"


def _scaler(detail: Mapping[str, Any]) -> str:
    scale = detail.get("init_scale")
    initial = f", initial scale {scale_text(scale)}" if isinstance(scale, (int, float)) else ""
    return f"the loop goes on with another {detail.get('class', 'scaler')}{initial}"


def _loaded(detail: Mapping[str, Any]) -> str:
    scale = detail.get("scale")
    with_scale = f" with scale {scale_text(scale)}" if isinstance(scale, (int, float)) else ""
    return f"a saved state was loaded into the {detail.get('of', 'scaler')}{with_scale}"


def _exception(detail: Mapping[str, Any]) -> str:
    name = Event(0, 0, EventKind.EXCEPTION.value, detail).exception
    caught = "" if detail.get("fatal", True) else " (training went on)"
    layer = f" in {detail['layer']}" if detail.get("layer") else ""
    return f"{name}{layer}: {detail.get('message') or 'without a message'}{caught}"


def _control(detail: Mapping[str, Any]) -> str:
    if "offers" in detail:
        return f"a page may ask for: {', '.join(map(str, detail['offers']))}"
    return _own_words(detail)


def _own_words(detail: Mapping[str, Any]) -> str:
    return str(detail.get("told") or "")


def _misuse(detail: Mapping[str, Any]) -> str:
    return "" if detail.get("code") else _unknown(detail)


def _gap(detail: Mapping[str, Any]) -> str:
    lost = detail.get("lost_rows")
    count = count_text(lost, "row") if isinstance(lost, int) else "rows"
    return f"{count} of the log are missing: {detail.get('reason') or 'the reason is not known'}"


def _unknown(detail: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in detail.items())


# The title of each kind of event, and the text beside it; one of a later version has none.
_SHOWN: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    EventKind.OPTIMIZER.value: ("optimizer", _optimizer),
    EventKind.OPTIMIZER_REPLACED.value: ("optimizer replaced", _optimizer),
    EventKind.SCALER_REPLACED.value: ("scaler replaced", _scaler),
    EventKind.STATE_LOADED.value: ("state loaded", _loaded),
    EventKind.LR_CHANGED.value: ("learning rate", _rate),
    EventKind.BATCH_SIZE_CHANGED.value: ("batch size", _batch_size),
    EventKind.SCALE_SET.value: ("loss scale", lambda _: "the program itself set the loss scale"),
    EventKind.MISUSE.value: ("misuse", _misuse),
    EventKind.EXCEPTION.value: ("exception", _exception),
    EventKind.GAP.value: ("gap", _gap),
    EventKind.CONTROL.value: ("control", _control),
    EventKind.GUARD.value: ("guard", _own_words),
}  # fmt: skip


# --- attempts and findings ------------------------------------------------------------------------


def _attempt_entry(one: Attempt, ends: tuple[int, int]) -> Entry:
    first = ends[0] if one.first_step is None else one.first_step
    last = first if one.last_step is None else max(first, one.last_step)
    return Entry(
        Kind.ATTEMPT, first, last, f"attempt {one.number}", ", ".join(_of_attempt(one)),
        time_ns=one.started_ns,
    )  # fmt: skip


def _of_attempt(one: Attempt) -> Iterator[str]:
    detail = one.detail
    if detail.get("host"):
        yield f"on {detail['host']}"
    if detail.get("pid"):
        yield f"process {detail['pid']}"
    origin = detail.get("origin")
    if isinstance(origin, dict) and origin.get("commit"):
        changed = " with uncommitted changes" if origin.get("uncommitted changes") == "yes" else ""
        yield f"commit {str(origin['commit'])[:10]}{changed}"
    if one.first_step is None:
        yield "without a step"
    if one.started_ns and one.last_ns and one.last_ns > one.started_ns:
        yield f"for {duration_text((one.last_ns - one.started_ns) / 1e6)}"
    if one.ending:
        yield one.ending


def _finding(one: Finding, ends: tuple[int, int]) -> Entry:
    """One that names no step is about the whole run."""
    first = ends[0] if one.first_step is None else one.first_step
    last = ends[1] if one.first_step is None else one.last_in(ends[1])
    return Entry(
        Kind.FINDING, first, max(first, last), f"{one.code} {one.name}", one.summary,
        mark=one.severity.value,
    )  # fmt: skip


# --- skipped steps --------------------------------------------------------------------------------


def _skips(skips: Rug, events: _EventRows) -> Iterator[Entry]:
    """Skipped steps by stretches, with what the overflows in them say; and the other overflows."""
    places = events.places(EventKind.OVERFLOW.value)
    steps = events.step[places]
    free = np.ones(len(steps), np.bool_)
    for part in close_parts(skips.first, skips.last, MOST_ENTRIES):
        first, last = int(skips.first[part][0]), int(skips.last[part].max())
        count = int(skips.count[part].sum())
        low, high = np.searchsorted(steps, [first, last + 1]).tolist()
        free[low:high] = False
        yield _stretch(events, places[low:high], first, last, count)
    rest = places[free]
    for part in close_parts(events.step[rest], events.step[rest], MOST_ENTRIES):
        at = rest[part]
        count = len(np.unique(events.step[at]))
        text = ", ".join(
            [f"values overflowed in {count_text(count, 'step')}", *_traced(events, at)]
        )
        first, last = int(events.step[at[0]]), int(events.step[at[-1]])
        yield Entry(
            Kind.SKIP, first, last, "overflow", text, time_ns=events.time_ns(at[0]), count=count
        )


def _stretch(events: _EventRows, at: Integers, first: int, last: int, count: int) -> Entry:
    length = last - first + 1
    if count == 1:
        text = "the step was skipped"
    elif count == length:
        text = f"{count:,} steps in a row were skipped"
    else:
        text = f"{count:,} of {length:,} steps were skipped"
    words = ", ".join([text, *_scales(events, at), *_traced(events, at)])
    time_ns = events.time_ns(at[0]) if len(at) else None
    return Entry(Kind.SKIP, first, last, "skipped", words, time_ns=time_ns, count=count)


def _scales(events: _EventRows, at: Integers) -> Iterator[str]:
    scales = [events.event(one).detail.get("scale") for one in _ends_of(at)]
    numbers = [scale for scale in scales if isinstance(scale, (int, float))]
    if len(numbers) == 2 and numbers[0] != numbers[1]:
        yield f"at a loss scale of {scale_text(numbers[0])} down to {scale_text(numbers[1])}"
    elif numbers:
        yield f"at a loss scale of {scale_text(numbers[0])}"


def _traced(events: _EventRows, at: Integers) -> Iterator[str]:
    """To which layers, by the first and the last of these overflows."""
    layers = dict.fromkeys(events.event(one).layer for one in _ends_of(at))
    names = [layer for layer in layers if layer]
    if names:
        yield f"traced to layer {' and '.join(names)}"


def _ends_of(at: Integers) -> list[int]:
    return [int(at[0]), int(at[-1])] if len(at) > 1 else at.tolist()


# --- checkpoints ----------------------------------------------------------------------------------

_WEIGHTS = "AMP207"
# Memory, speed and the record itself say nothing about the weights.
_NOT_OF_WEIGHTS = ("AMP5", "AMP9")
CLEAN, SUSPECT, POISONED = "clean", "suspect", "poisoned"


def last_sound_step(advice: Advice) -> int | None:
    """The last step whose save, made before its update, is still sound; None if not known."""
    if advice.leapt_at_step is not None:
        return advice.leapt_at_step
    return advice.restart_from_step


def condition_of(step: int, diagnosis: Diagnosis | None) -> tuple[str, str]:
    """The mark of a checkpoint saved before this step, and its reason."""
    if diagnosis is None:
        return "", "it is not judged yet"
    before = step - 1
    covering = [
        one for one in diagnosis.findings
        if one.first_step is not None and one.first_step <= before
        and (one.last_step is None or one.last_step >= before)
    ]  # fmt: skip
    broken = next((one for one in covering if one.code == _WEIGHTS), None)
    if broken is not None:
        return POISONED, f"the weights are not finite since step {broken.first_step:,}"
    for one in covering:
        if one.severity is Severity.ERROR and not one.code.startswith(_NOT_OF_WEIGHTS):
            return SUSPECT, f"during {one.code} {one.name}, since step {one.first_step:,}"
    advice = diagnosis.learning_rate
    good = last_sound_step(advice)
    if is_change(advice) and good is not None and step > good:
        return SUSPECT, f"later than step {good:,}, the last good one"
    return CLEAN, "no error found before this checkpoint"


def _path_of(events: _EventRows, saves: Integers) -> str | None:
    """Where one of these saves was written, if it says so."""
    paths = (events.event(int(one)).detail.get("path") for one in saves)
    return next((str(path) for path in paths if path), None)


def _checkpoints(events: _EventRows, diagnosis: Diagnosis | None) -> Iterator[Entry]:
    """The saves that the record tells; what they held by what is known of the steps before."""
    saves = events.places(EventKind.STATE_SAVED.value)
    _, at = np.unique(events.step[saves], return_index=True)  # every rank saves its own
    places = saves[at]
    restart = None if diagnosis is None else diagnosis.learning_rate.restart_checkpoint_step
    judged = [(*condition_of(int(events.step[one]), diagnosis), int(one)) for one in places]
    for mark in dict.fromkeys(mark for mark, _, _ in judged):
        mine = [(words, one) for found, words, one in judged if found == mark]
        steps = events.step[[one for _, one in mine]]
        for part in _joined(steps):
            (words, one), several = mine[part][0], {words for words, _ in mine[part]}
            first, last = int(steps[part][0]), int(steps[part][-1])
            count = len(steps[part])
            which = ", the first" if len(several) > 1 else ""
            text = words if count == 1 else f"{count:,} saves{which}: {words}"
            if count == 1 and (path := _path_of(events, saves[events.step[saves] == first])):
                text += f"; written to {path}"
            if restart is not None and restart in steps[part]:
                text += f"; step {restart:,} is the one to restart from"
            yield Entry(
                Kind.CHECKPOINT, first, last, f"saved{f', {mark}' if mark else ''}", text, mark,
                events.time_ns(one), count,
            )  # fmt: skip
