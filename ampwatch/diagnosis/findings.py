"""The parts of a diagnosis: evidence, findings, advice, a verdict. Frozen, with one form as JSON.

`Diagnosis.to_json()` is the object that `ampwatch report --json` prints; its keys are a public
contract. A number that JSON does not have (inf, nan) is given as a string.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ampwatch.diagnosis.learning_rate.advice import Advice
from ampwatch.diagnosis.learning_rate.judgement import Cause
from ampwatch.diagnosis.value_text import Evidence as Evidence  # noqa: PLC0414 - a part of findings
from ampwatch.diagnosis.value_text import count_text, evidence_text

SCHEMA = 1


class Severity(str, enum.Enum):
    """How bad a finding is at the end of the record."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def weight(self) -> int:
        """The severity as a number, by which findings sort: 0 info, 1 warning, 2 error."""
        return list(Severity).index(self)


class State(str, enum.Enum):
    """How a training stands at the end of its record."""

    LEARNING = "learning"
    FLAT = "flat: not shown to learn"
    TOO_LITTLE = "too little to say"
    STANDS_STILL = "no progress from the start"
    HARDLY_FALLS = "hardly any progress from the start"
    OVERFITS = "better in training, worse on other data"
    GOAL_STILL = "a goal stands still while the loss falls"
    GOAL_FALLS = "a goal falls back"
    GOAL_LOST = "a goal is lost"
    ADVERSARY_WON = "one of two adversaries has won"
    RATE_LEAPT = "worse since the learning rate leapt"
    RATE_CLIMBS = "worse while the learning rate climbed again"
    LOST_BY_LEAP = "much worse since the learning rate leapt, and not coming back"
    WITHOUT_END = "falls without end"
    SETTLED = "settled at once, and its gradients vanished"
    WIDER = "swings about zero, ever wider"
    ANOTHER_LEVEL = "another level, cannot tell"
    NOT_BACK = "worse, and not back yet"
    WORSE = "worse, and not coming back"
    NOT_FINITE = "not finite"
    NO_STEPS = "no steps taken"
    NOTHING_LEARNS = "nothing reaches the weights"
    EXCEPTION = "ended by an exception"


_BAD = {
    State.STANDS_STILL, State.WORSE, State.LOST_BY_LEAP, State.NOT_FINITE, State.NO_STEPS,
    State.NOTHING_LEARNS, State.GOAL_LOST, State.ADVERSARY_WON, State.EXCEPTION,
}  # fmt: skip
_DOUBTFUL = {
    State.ANOTHER_LEVEL, State.RATE_LEAPT, State.RATE_CLIMBS, State.NOT_BACK, State.HARDLY_FALLS,
    State.OVERFITS, State.GOAL_FALLS, State.GOAL_STILL, State.WITHOUT_END, State.WIDER,
    State.SETTLED,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Sign:
    """How the cause of a bad outcome showed itself, as part of a sentence."""

    words: str
    probability: float  # of the cause, where nothing else is known
    cause: str = Cause.RATE.value

    @property
    def sentence(self) -> str:
        """The sign's words as the beginning of a sentence."""
        return self.words[:1].upper() + self.words[1:]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a training, since when, and what of the record shows it."""

    state: State = State.TOO_LITTLE
    since_step: int | None = None
    rests_on: tuple[str, ...] = ()  # columns
    words: str = ""
    # How its cause showed itself, such as too high a learning rate.
    sign: Sign | None = dataclasses.field(default=None, metadata={"json": False})
    evidence: tuple[Evidence, ...] = dataclasses.field(default=(), metadata={"json": False})
    # The loss was at its best until then, and nothing announced it.
    came_at_once: bool = dataclasses.field(default=False, metadata={"json": False})
    # Other metrics explain that the loss rose.
    is_explained: bool = dataclasses.field(default=False, metadata={"json": False})

    @property
    def severity(self) -> Severity:
        """How bad the state is for the training, whatever its cause."""
        if self.state in _BAD:
            return Severity.ERROR
        return Severity.WARNING if self.state in _DOUBTFUL else Severity.INFO

    @property
    def rate_went_up(self) -> bool:
        """Whether the learning rate went back up as the loss rose."""
        return self.state in {State.RATE_LEAPT, State.RATE_CLIMBS, State.LOST_BY_LEAP}

    @property
    def grew_apart(self) -> bool:
        """Whether rollout and training grew apart before it."""
        return self.sign is not None and self.sign.cause != Cause.RATE.value

    @property
    def is_good(self) -> bool:
        """Whether the training is shown to learn, with its steps taken and its numbers finite."""
        return self.state is State.LEARNING


class FindingStatus(enum.Enum):
    """How a finding stands at the end: it goes on, is over but left damage, or is all over.

    What came and went by itself, such as a spike, paused: it is over, as its name says.
    """

    STANDS = "stands"
    PAUSED = "paused"
    HEALS = "heals"
    HEALED = "healed"

    @property
    def weighs(self) -> bool:
        """Whether the run still suffers from the finding."""
        return self is not FindingStatus.HEALED

    @property
    def ending(self) -> str:
        """How a finding's sentence ends: empty while it stands, else that it is over."""
        is_over = self in {FindingStatus.HEALS, FindingStatus.HEALED}
        return ", but no longer at the end" if is_over else ""


class Verdict(str, enum.Enum):
    """The verdict on a run in one word."""

    HEALTHY = "healthy"
    WARNING = "warning"
    FAILING = "failing"
    INCOMPLETE = "incomplete"
    CUT_OFF = "cut off"  # calm until its process was gone, without an end mark


CALM = frozenset((Verdict.INCOMPLETE, Verdict.HEALTHY, Verdict.CUT_OFF))
_NORMAL_SKIPS = {
    "AMP101": "the first loss scale is too high on purpose",
    "AMP102": "the scaler tries a higher loss scale now and then",
}
# What is no trouble and yet plain to see: rises of the loss, slower steps, memory that grows.
_NOTICED = frozenset(("AMP206", "AMP303", "AMP503", "AMP509"))
LIVE, ENDED, CUT_OFF = "live", "ended", "cut off"  # how a run stands, in words
_UNCLEAN_END = "AMP902"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What a rule saw. `because_of` is the code of the finding that caused this one."""

    code: str
    name: str
    severity: Severity
    first_step: int | None
    last_step: int | None
    ranks: tuple[int, ...]
    layer: str | None
    summary: str
    cause: str
    action: str
    because_of: str | None = None
    evidence: tuple[Evidence, ...] = ()
    steps: tuple[int, ...] = ()  # where single steps count, not all between first and last
    muted: str | None = None  # why somebody muted it: then it does not weigh
    former_names: tuple[str, ...] = ()
    # In some steps, with others between or after them that are as they should be.
    comes_and_goes: bool = dataclasses.field(default=False, metadata={"json": False})
    standing: FindingStatus = dataclasses.field(
        default=FindingStatus.STANDS, metadata={"json": False}
    )

    @property
    def goes_on(self) -> bool:
        """Whether the finding holds to the record's end.

        Its last step is then only the last at which it was looked for, such as a layer's sample.
        """
        stands = self.standing is FindingStatus.STANDS and self.severity.weight > 0
        return stands and not self.steps

    def last_in(self, end: int) -> int:
        """The step up to which the finding holds in a record that ends at this step."""
        return end if self.goes_on or self.last_step is None else self.last_step


@dataclasses.dataclass(frozen=True, slots=True)
class WeighedCause:
    """A possible cause of what is wrong, how likely it is, and the signs that say so."""

    cause: str
    code: str | None  # of the finding that names it
    probability: float
    signs_for: tuple[str, ...] = dataclasses.field(default=(), metadata={"name": "for"})
    signs_against: tuple[str, ...] = dataclasses.field(default=(), metadata={"name": "against"})


@dataclasses.dataclass(frozen=True, slots=True)
class RunFacts:
    """Basic facts about a run, as the report and its JSON print them.

    `state` is live, ended or cut off; null if nobody looked whether the run is still written, or if
    its source writes no end marks. `exception` is the one that ended it.
    """

    id: str
    source: str
    ranks: tuple[int, ...]
    steps: int
    started: str | None
    ended: str | None
    clean_end: bool
    first_scale: float | None
    final_scale: float | None
    overflows: int
    skipped: int
    state: str | None = None
    exception: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """A run's facts, its verdict, its findings (the headline first) and the advice.

    `little_seen` is the first sentence if the record allows little judgement.
    """

    run: RunFacts
    verdict: Verdict
    findings: tuple[Finding, ...]
    learning_rate: Advice
    outcome: Outcome = Outcome()
    causes: tuple[WeighedCause, ...] = ()
    # Not in the JSON: the verdict and the advice's reason say it there.
    little_seen: str | None = dataclasses.field(default=None, metadata={"json": False})
    # What rules and rate said before the outcome was weighed: a proof asks for more than a loss
    # that falls.
    fails_by_rules: bool = dataclasses.field(default=False, metadata={"json": False})
    rate_by_rules: Advice | None = dataclasses.field(default=None, metadata={"json": False})

    @property
    def headline(self) -> Finding | None:
        """The most severe finding that no other finding explains."""
        return self.findings[0] if self.findings else None

    @property
    def suspect(self) -> Finding | None:
        """The finding that names a layer: the headline, or the most severe one that it explains."""
        chain = [f for f in self.findings if f is self.headline or f.code in self.effects]
        return next((f for f in chain if f.layer), None)

    @property
    def effects(self) -> frozenset[str]:
        """The codes of what follows from the headline, directly or not."""
        head = frozenset(() if self.headline is None else {self.headline.code})
        codes = head
        for _ in self.findings:
            codes |= {finding.code for finding in self.findings if finding.because_of in codes}
        return codes - head

    def is_symptom(self, suspect: Finding) -> bool:
        """Whether the suspect layer's finding only follows from the headline."""
        return suspect is not self.headline

    @property
    def calm(self) -> str | None:
        """The sentence that stands for the findings of a run without trouble; else None."""
        if self.verdict not in CALM:
            return None
        if self.verdict is Verdict.INCOMPLETE and self.little_seen is None:
            return "The log ends before anything could be judged."
        ended = next((f for f in self.findings if f.code == _UNCLEAN_END), None)
        if self.verdict is Verdict.CUT_OFF and self.little_seen is None and ended is not None:
            return f"{ended.summary} No problems found until then."
        if ended is None:
            steps = count_text(self.run.steps, "step")
            text = self.little_seen or f"{self.none_found} {steps}."
            more = (self.skips_text, self.noticed_text, self.muted_text)
            return " ".join(filter(None, (text, *more)))
        first = self.little_seen or "No problems found in its numbers."
        return f"{first} {ended.summary} {ended.cause}"

    @property
    def skips_text(self) -> str:
        """Why the skipped steps of a run without trouble are none; empty if there are none."""
        count = self.run.skipped
        if not count or self.muted_text or self.verdict in {Verdict.INCOMPLETE, Verdict.CUT_OFF}:
            return ""
        told = {f.code: f for f in self.findings if f.code in _NORMAL_SKIPS}
        reasons = [words for code, words in _NORMAL_SKIPS.items() if code in told]
        known = sum(
            int(piece.value)
            for finding in told.values()
            for piece in finding.evidence
            if piece.signal == "skipped" and isinstance(piece.value, float)
        )
        if known < count:
            reasons.append("after the others training went on" if reasons else "training went on")
        text = ", and ".join(reasons)
        return f"{count_text(count, 'step was', 'steps were')} skipped: {text}."

    @property
    def none_found(self) -> str:
        """How the sentence on a run without trouble begins: one may have been there before."""
        return "No problem is left after" if self._noticed(over=True) else "No problems found in"

    @property
    def noticed_text(self) -> str:
        """What a run without trouble has shown besides, as a look at its curves shows it too."""
        past, present = self._noticed(over=True), self._noticed(over=False)
        texts = (
            f"It is over: {past}." * bool(past),
            f"Noticed besides: {present}." * bool(present),
        )
        return " ".join(filter(None, texts))

    @property
    def noticed(self) -> list[Finding]:
        """What is no trouble and yet plain to see."""
        return [f for f in self.findings if f.code in _NOTICED and f.muted is None]

    def _noticed(self, *, over: bool) -> str:
        return ", ".join(
            f"{f.name.replace('-', ' ')} ({f.code})"
            for f in self.noticed
            if (f.standing is not FindingStatus.STANDS) is over
        )

    @property
    def muted_text(self) -> str:
        """The sentence on the findings that somebody muted; empty if there are none."""
        muted = [f"{one.code} ({one.muted})" for one in self.findings if one.muted is not None]
        return f"Muted: {', '.join(muted)}." if muted else ""

    def worst(self) -> Severity | None:
        """The highest severity among the findings; None if there are none."""
        return max((f.severity for f in self.findings), key=lambda s: s.weight, default=None)

    def while_running(self) -> Diagnosis:
        """The diagnosis of a run that goes on: without the finding of a missing end mark."""
        findings = tuple(f for f in self.findings if f.code != _UNCLEAN_END)
        return self._of(LIVE, findings=findings)

    def once_over(self) -> Diagnosis:
        """The diagnosis of a run that has stopped: its missing end mark becomes "cut off"."""
        ended = next((f for f in self.findings if f.code == _UNCLEAN_END), None)
        if ended is None or self.run.clean_end or self.run.exception:
            return self._of(ENDED)
        cut_off = dataclasses.replace(
            ended,
            summary=f"Stopped{_at(ended)} without closing the run.",
            cause="The process was killed or crashed, or its machine or connection was lost.",
            action="Look in the system's log for what killed it, and resume from the last "
            "checkpoint. Every row up to here is readable; the last quarter of a second may be "
            "missing.",
        )
        findings = tuple(cut_off if finding is ended else finding for finding in self.findings)
        if self.verdict not in CALM:
            return self._of(CUT_OFF, findings=findings)
        little_seen = self.little_seen
        if self.verdict is Verdict.INCOMPLETE and little_seen is None:
            little_seen = "The log ends before anything could be judged."
        return self._of(
            CUT_OFF, findings=findings, verdict=Verdict.CUT_OFF, little_seen=little_seen
        )

    def _of(self, state: str, **changed: Any) -> Diagnosis:
        run = dataclasses.replace(self.run, state=state)
        return dataclasses.replace(self, run=run, **changed)

    def _repr_html_(self) -> str:
        """The diagnosis in a notebook."""
        # By name: reports stand above what judges.
        return str(import_module("ampwatch.report.notebook_html").diagnosis_html(self))

    def to_json(self) -> dict[str, Any]:
        """The run's facts, findings and advice as the object that `report --json` prints."""
        body = json_value(self)
        assert isinstance(body, dict)
        for finding, printed in zip(self.findings, body["findings"], strict=True):
            for piece, row in zip(finding.evidence, printed["evidence"], strict=True):
                row["text"] = evidence_text(piece)
        return {"schema": SCHEMA, **body}


def _at(ended: Finding) -> str:
    """The step at which a run was cut off, as part of a finding's sentence."""
    step = ended.first_step
    return " before its first step" if step is None else f" at step {step:,}"


def json_value(value: Any) -> Any:
    """A diagnosis, a finding or any part of one, in JSON's own types."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        printed = [f for f in dataclasses.fields(value) if f.metadata.get("json", True)]
        return {f.metadata.get("name", f.name): json_value(getattr(value, f.name)) for f in printed}
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


# --- findings that somebody muted: "known, and not a problem" -------------------------------------


def with_muted(diagnosis: Diagnosis, reasons: Mapping[str, str]) -> Diagnosis:
    """The diagnosis with these codes muted, each with its reason: they no longer weigh.

    What follows from a muted finding is muted with it. The verdict is that of the other findings.
    """
    findings = tuple(_muted(finding, reasons) for finding in diagnosis.findings)
    if not any(finding.muted for finding in findings):
        return diagnosis
    ordered = sorted(findings, key=lambda finding: finding.muted is not None)
    verdict = diagnosis.verdict
    if verdict not in CALM:
        verdict = _verdict_of(ordered)
    return dataclasses.replace(diagnosis, findings=tuple(ordered), verdict=verdict)


def _muted(finding: Finding, reasons: Mapping[str, str]) -> Finding:
    reason = reasons.get(finding.code)
    cause = finding.because_of
    if reason is None and cause is not None and cause in reasons:
        reason = f"follows from {cause}: {reasons[cause]}"
    if reason is None:
        return finding
    return dataclasses.replace(finding, severity=Severity.INFO, muted=reason)


def _verdict_of(findings: list[Finding]) -> Verdict:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return Verdict.FAILING
    return Verdict.WARNING if Severity.WARNING in severities else Verdict.HEALTHY
