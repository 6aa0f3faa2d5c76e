"""The causes of what is wrong: one table of what may explain a finding, and what weighs them.

A finding is the mark of a cause. What the probe saw done, and what no learning rate can bring
about, needs no weight. A trouble that the learning rate may be behind is weighed in the table of
evidence, against the data, an operation that overflows and a change of the objective.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Finding, FindingStatus, Outcome, Severity, WeighedCause
from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.learning_rate.judgement import WEIGHED, Attribution, Cause, chances_of
from ampwatch.diagnosis.rule import title_of
from ampwatch.diagnosis.value_text import evidence_text


def codes(listed: str) -> tuple[str, ...]:
    """The codes of findings listed in a text."""
    return tuple(listed.split())


_RATE = "AMP301 AMP302"
RATE = codes(_RATE)
_NOT_FINITE = "AMP207 AMP203 AMP204"  # weights, activations, the loss: the surest first
# Gradients of several steps are mixed: what is read from gradients then has no basis.
_MIXED = "AMP403 AMP412"
# The optimizer received something else than this step's gradients.
_NOT_ITS_GRADIENTS = f"AMP404 {_MIXED}"
CHANGED = "AMP306"
_DATA = f"AMP209 {CHANGED}"  # what came with the batch
_OF_GRADIENTS = "AMP202 AMP604 AMP602 AMP108 AMP413"  # they overflow again and again


@dataclasses.dataclass(frozen=True, slots=True)
class CauseRow:
    """What may explain a finding, beside what it is groundless, and what may cure it."""

    explained_by: tuple[str, ...] = ()  # the most certain first
    groundless_beside: tuple[str, ...] = ()  # beside one of these it is not reported
    # Changes from outside (`recovery.switches`), the likeliest first; a lower rate is none of them.
    cures: tuple[str, ...] = ()


# A finding; what may explain it; beside what it is groundless; what may cure it.
_ROWS = (
    ("AMP102", "", "", "growth_interval"),
    ("AMP103", f"{_DATA} {_NOT_ITS_GRADIENTS} {_RATE} {_NOT_FINITE} AMP604 AMP602 AMP202 AMP413",
     "", "float32 bfloat16 autocast-off"),
    ("AMP104", f"AMP103 {_DATA} {_RATE} {_NOT_FINITE}"),
    ("AMP105", f"{_DATA} {_NOT_ITS_GRADIENTS} {_RATE} {_NOT_FINITE} {_OF_GRADIENTS} AMP206", "",
     "growth_interval bfloat16"),
    ("AMP106", "AMP410"),
    ("AMP107", "", "", "init_scale"),
    ("AMP108", "AMP416"),
    ("AMP109", "", "AMP201 AMP410"),  # a run that loses its gradients is not healthy
    ("AMP201", "AMP408 AMP401 AMP107 AMP208 AMP413 AMP604 AMP602 AMP103", "",
     "init_scale float32 bfloat16"),
    ("AMP202", f"{CHANGED} {_RATE} AMP602 AMP303", _MIXED, "float32 bfloat16"),
    ("AMP203", f"{_DATA} {_MIXED} {_RATE} AMP207 AMP210", "", "float32 bfloat16 autocast-off"),
    ("AMP204", f"{_DATA} {_MIXED} {_RATE} AMP207 AMP211 AMP210", "", "autocast-off bfloat16"),
    ("AMP205", "AMP210"),
    ("AMP206", "", "", "clip"),
    ("AMP207", f"{_NOT_ITS_GRADIENTS} AMP414 AMP209 AMP211 {_RATE} AMP104", "",
     "clip autocast-off"),
    ("AMP208", _RATE, "", "float32 bfloat16"),
    ("AMP210", _RATE, "", "float32 bfloat16"),
    ("AMP211", f"AMP209 {_MIXED} {_RATE}", "", "autocast-off"),
    ("AMP212", f"AMP209 {_NOT_FINITE} AMP211 AMP206"),
    # Scaled gradients in the update look like far too high a rate; after a jump a good rate is too
    # high.
    ("AMP301", f"AMP404 {_DATA}", _MIXED, "autocast-off"),
    ("AMP302", f"AMP404 {_DATA}", _MIXED, "autocast-off"),
    ("AMP303", "AMP206", "", "clip"),
    ("AMP304", "", "", "clip"),
    # A rate must not be raised while gradients are lost or values diverge.
    ("AMP305", "", "AMP201 AMP205 AMP208 AMP210 AMP211 AMP304 AMP401 AMP408 AMP410 AMP418"),
    ("AMP307", f"{_NOT_ITS_GRADIENTS} {_RATE} {CHANGED}", "", "clip"),
    ("AMP309", "AMP410 AMP417 AMP401 AMP402 AMP211 AMP103 AMP104 AMP105 AMP412", "AMP308"),
    ("AMP311", f"{CHANGED} {_RATE} AMP204 AMP207 AMP209"),
    ("AMP401", "", "AMP410"),  # what was cleared too early was not clipped
    ("AMP410", f"{CHANGED} {_RATE} AMP408 AMP107 AMP103 AMP201"),
    ("AMP414", "AMP406"),  # with float32 weights, eps is not zero
    # With a learning rate or gradients next to zero, or in 16 bits, an update rounds to nothing.
    ("AMP417", "AMP410 AMP308 AMP201 AMP418"),
    ("AMP505", "AMP508"),
    ("AMP506", "AMP503 AMP504"),
    ("AMP602", "AMP209 AMP203 AMP204"),
    ("AMP701", "AMP706 AMP703"),
    ("AMP702", "AMP706"),
    ("AMP703", "AMP706"),
    ("AMP706", f"{_NOT_FINITE} AMP209 AMP211"),
    ("AMP902", "AMP415 AMP506 AMP603 AMP402 AMP403 AMP406 AMP410 AMP212"),
    ("AMP904", f"AMP209 {_NOT_FINITE} AMP211 {_RATE}"),
)  # fmt: skip
CAUSES: Mapping[str, CauseRow] = {code: CauseRow(*map(codes, row)) for code, *row in _ROWS}
_NO_ROW = CauseRow()

# What no learning rate can have caused, and what none can have caused before the first update.
_NEVER_THE_RATE = codes(
    "AMP102 AMP106 AMP107 AMP108 AMP201 AMP209 AMP308 AMP310 AMP313 AMP401 AMP402 AMP403 AMP404 "
    "AMP405 AMP406 AMP408 AMP412 AMP413 AMP414 AMP415 AMP416 AMP417 AMP418 AMP506 AMP509 AMP601 "
    "AMP602 AMP603 AMP604"
)
_NOT_BEFORE_AN_UPDATE = codes(_NOT_FINITE)
_NO_RATES = frozenset(("input_amax", "metric"))  # what else changed: inputs, a logged setting
_DIES = "AMP410"  # too high a rate kills units that had gradients

# Only a sample shows these, which may come after their effects; AMP301 and AMP302 take more steps
# to detect than what is told from the first skip on; a rise of the loss that a bad input cut short
# might have recovered, as most do.
_SHOWN_LATE = codes("AMP204 AMP207 AMP604")
# A goal (AMP311) is smoothed over its own entries: it is not known to the step when it fell.
_BEFORE_THE_RATE = codes("AMP103 AMP104 AMP105 AMP202 AMP208 AMP311")
LATE_TO = {"AMP209": RATE} | dict.fromkeys(RATE, _BEFORE_THE_RATE)
# What comes before a trouble and is none itself: once there is one, that is the headline.
_FORETELLS = codes("AMP304 AMP314")
# Over with its batch each time, however often it comes back: the skips that it costs add up.
_PASSES = codes("AMP209")
_ENDS_THE_RUN = "AMP902"  # its cause was still there then
# What stands beside these may be cause or effect, so the first is the cause; what only loses steps
# cannot be what made weights not finite.
_IN_STRICT_ORDER, _SPARES_WEIGHTS = codes("AMP207 AMP211"), codes("AMP103 AMP105")

# A fall of the loss scale that began with gradients goes on by the forward pass.
# Where it went on without the forward pass for longer than a fifth, that is no cause.
_FORWARD, _OF_THE_SCALE, _NEARLY_ALL = codes("AMP203"), codes("AMP103 AMP104 AMP105"), 0.8

_LEAST = 0.05  # a cause less likely than this is not listed
_MOST_SIGNS = 4
_LEAST_SIGNS = 2  # a single one may be a first step like any
_OTHERS = frozenset(WEIGHED) - {Cause.RATE}


def row_of(code: str) -> CauseRow:
    """The row of a finding in the table of causes; an empty one if it has none."""
    return CAUSES.get(code, _NO_ROW)


_FIRST_STEPS = 1  # with which a log of a whole training begins


def excludes_rate(case: Case, finding: Finding) -> bool:
    """Whether no learning rate could have caused a finding."""
    if finding.code == _DIES:
        return not case.zeros.has_died
    if finding.code in _NOT_BEFORE_AN_UPDATE:
        first = case.scale.first_accepted_step
        # A log may begin long after its training: what is lost from its first line on, was before.
        is_whole = case.observed.loop or (case.scale.first_step or 0) <= _FIRST_STEPS
        before = first is None or (finding.first_step or 0) <= first
        return finding.first_step is not None and before and is_whole
    by_hand = any(piece.signal in _NO_RATES for piece in finding.evidence)
    return finding.code in _NEVER_THE_RATE or (finding.code == CHANGED and by_hand)


def link_causes(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Drop baseless findings, link each consequence to its cause, and put the headline first."""
    rows = {f.code: row_of(f.code) for f in findings}
    sound = [f for f in findings if not _first_of(rows[f.code].groundless_beside, f, findings)]
    causes = [_first_of(rows[f.code].explained_by, f, sound) for f in sound]
    linked = [dataclasses.replace(f, because_of=why) for f, why in zip(sound, causes, strict=True)]
    weighed = tuple(_weighing_as_their_effects(linked))
    return tuple(sorted(weighed, key=lambda finding: _rank(finding, weighed)))


def _weighing_as_their_effects(findings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings, of which a passing one weighs as much as what came with it each time."""
    for finding in findings:
        effects = [f.severity for f in findings if f.because_of == finding.code]
        gravest = max(effects, key=lambda severity: severity.weight, default=Severity.INFO)
        is_aside = finding.severity is Severity.INFO
        yield dataclasses.replace(finding, severity=gravest) if is_aside else finding


def _first_of(codes: Sequence[str], effect: Finding, findings: Sequence[Finding]) -> str | None:
    """The first of these codes whose finding can have caused the effect; None if none can."""
    present = {f.code for f in findings if f.code in codes and _explains(f, effect)}
    return next((code for code in codes if code in present), None)


def _explains(cause: Finding, effect: Finding) -> bool:
    is_aside = cause.severity is Severity.INFO
    if effect.severity is not Severity.INFO and is_aside and not _came_each_time(cause, effect):
        return False
    if cause.first_step is None or effect.first_step is None:
        return True
    if effect.code == _ENDS_THE_RUN and cause.last_step is not None:
        return cause.last_step + thresholds.DELAY_STEPS >= effect.first_step
    ordered = {cause.code, effect.code} & {*_IN_STRICT_ORDER}
    if ordered and effect.code not in _SPARES_WEIGHTS:
        return cause.first_step <= effect.first_step or _was_seen_before(cause, effect.first_step)
    late = cause.code in _SHOWN_LATE or effect.code in LATE_TO.get(cause.code, ())
    delay = thresholds.SAMPLING_DELAY_STEPS if late else thresholds.DELAY_STEPS
    return cause.first_step <= effect.first_step + delay or _lasts_nearly_all_of(cause, effect)


def _lasts_nearly_all_of(cause: Finding, effect: Finding) -> bool:
    """Whether the forward pass, which no loss scale reaches, overflows for nearly all of a fall."""
    if cause.code not in _FORWARD or effect.code not in _OF_THE_SCALE:
        return False
    steps = (cause.first_step, cause.last_step, effect.first_step, effect.last_step)
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return False
    first, last, begins, ends = known
    return first >= begins and min(last, ends) - first >= _NEARLY_ALL * (ends - begins)


def _was_seen_before(cause: Finding, step: int) -> bool:
    """Whether two signs of too high a learning rate came before this step.

    It is told from the first step whose loss is not finite; gradients are so one step before.
    """
    before = sum(piece.step is not None and piece.step < step for piece in cause.evidence)
    return cause.code in RATE and before >= _LEAST_SIGNS


def _came_each_time(cause: Finding, effect: Finding) -> bool:
    """Whether what passes by itself each time began with the effect, and was there at its last."""
    begins, ends = effect.first_step, effect.last_step
    if cause.code not in _PASSES or cause.first_step is None or cause.last_step is None:
        return False
    if begins is None or ends is None:
        return False
    return cause.first_step <= begins and cause.last_step + thresholds.DELAY_STEPS >= ends


def _gravest_weight(finding: Finding, findings: Sequence[Finding], deep: int = 3) -> int:
    """The weight of a finding or of the gravest one that follows from it, if that weighs more."""
    follow = (f for f in findings if f.because_of == finding.code and deep)
    weights = (_gravest_weight(one, findings, deep - 1) for one in follow)
    return max(finding.severity.weight, *weights, 0)


def _rank(
    finding: Finding, findings: Sequence[Finding]
) -> tuple[bool, bool, int, bool, float, str]:
    began = float("inf") if finding.first_step is None else finding.first_step
    explained = finding.because_of is not None
    is_aside = finding.severity is Severity.INFO  # below all that counts, explained or not
    weight = finding.severity.weight if explained else _gravest_weight(finding, findings)
    end = max((one.last_step or 0) for one in findings)
    is_most = finding.last_step is not None and 2 * (finding.last_step - began) > end
    # Though not what it has led to; what filled most of the record is the record's trouble.
    is_over = finding.standing in {FindingStatus.HEALS, FindingStatus.PAUSED} and not is_most
    is_second = is_over or finding.code in _FORETELLS
    return (is_aside, explained, -weight, is_second, began, finding.code)


def causes_of(
    case: Case, findings: Sequence[Finding], outcome: Outcome, advice: Advice
) -> tuple[WeighedCause, ...]:
    """The causes of what is wrong, the likeliest first; none for a run without trouble."""
    roots = [f for f in findings if f.because_of is None and f.severity is not Severity.INFO]
    # What is certain beside a learning rate that is to be lowered is another trouble.
    is_rate = advice.action is Action.LOWER
    sure = [f for f in roots if excludes_rate(case, f) and not is_rate]
    causes = [_certain(finding) for finding in sure]
    if roots and not sure:
        attribution = case.judgement.attribution
        # What announced a bad outcome decides where the table of evidence does not.
        by_outcome = is_rate and advice.probability is None and not outcome.grew_apart
        if outcome.sign is not None and (by_outcome or (outcome.grew_apart and not is_rate)):
            sign = outcome.sign
            causes.append(WeighedCause(sign.cause, None, sign.probability, (sign.words,)))
        elif attribution is not None:
            causes += _weighed(attribution, roots)
    return tuple(sorted(causes, key=lambda cause: -cause.probability))


def _certain(finding: Finding) -> WeighedCause:
    signs = tuple(evidence_text(piece) for piece in finding.evidence)
    return WeighedCause(title_of(finding), finding.code, 1.0, signs[:_MOST_SIGNS])


def _weighed(attribution: Attribution, roots: Sequence[Finding]) -> Iterator[WeighedCause]:
    """The causes of the table of evidence, with the signs that speak for each and against it."""
    if attribution.fact:
        yield WeighedCause(Cause.STATIC.value, None, 1.0, (attribution.fact,))
        return
    code = next((finding.code for finding in roots if finding.code in RATE), None)
    chances = dict(zip(WEIGHED, chances_of(attribution.table), strict=True))
    if attribution.cause in _OTHERS:  # nothing by which a rate acts was seen: it is out
        del chances[Cause.RATE]
    total = sum(chances.values())
    for cause, share in chances.items():
        chance = share / total
        if chance < _LEAST:
            continue
        signs = [(row.speaks_for(cause), row.told) for row in attribution.table]
        yield WeighedCause(
            cause.value,
            code if cause is Cause.RATE else None,
            round(min(max(chance, 0.01), 0.99), 2),
            tuple(sign for says, sign in sorted(signs, reverse=True) if says > 0)[:_MOST_SIGNS],
            tuple(sign for says, sign in sorted(signs) if says < 0)[:_MOST_SIGNS],
        )
