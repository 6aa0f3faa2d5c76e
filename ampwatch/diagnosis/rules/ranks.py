"""AMP601 to AMP605: ranks that differ, overflow alone, fall silent, or do the same work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import FindingStatus, Severity
from ampwatch.diagnosis.rule import RuleHit, counted, rule
from ampwatch.diagnosis.value_text import Evidence, count_text, list_text, scale_text

# One step may be logged in the middle of an update; if two steps differ, the weights do.
RANKS_DIFFER = 2
# What occurs by chance every hundred steps is not over after two hundred steps without it: one such
# gap in e^2 = 7 is longer than twice the usual, one in e^4 = 55 longer than four times.
RECURRING_GAPS = 4.0
# A checkpoint or an evaluation on one rank takes less than this, or is within some steps' time.
SILENT_RANK_S, SILENT_RANK_STEPS = 60.0, thresholds.NEAR_STEPS
# Bit-identical by chance once is possible with a saturated loss, time after time it is not.
SAME_LOSSES = thresholds.NO_ACCIDENT_STEPS


@rule("AMP601", "ranks-disagree", Severity.ERROR)
def ranks_disagree(case: Case) -> Iterator[RuleHit]:
    """Ranks whose loss scales or skips differ."""
    differ, ranks = case.ranks.differ, case.ranks.differing
    if differ.count < RANKS_DIFFER:
        return
    starts = _different_starts(case)
    if starts:
        yield _started_apart(case, starts)
        return
    yield RuleHit(
        at=differ,
        ranks=ranks,
        summary=f"Ranks disagree on the loss scale or on skips, from step {differ.first_step}.",
        cause=f"In {count_text(differ.count, 'step')} rank {ranks[0]} and the lowest rank had "
        "different scales, or only one of them skipped.",
        action="Share the overflow flag between ranks before scaler.step.",
        evidence=counted("differing_steps", differ, 0.0, "expected"),
    )


def _different_starts(case: Case) -> dict[int, float]:
    """The scale of each rank at its first step, if they differ; else nothing."""
    first = {rank: facts.first_scales for rank, facts in case.ranks.others.items()}
    starts = {rank: scales for rank, scales in first.items() if scales is not None}
    if all(lowest == own for lowest, own in starts.values()):
        return {}
    lowest_rank = min(case.record.ranks, default=0)
    lowest = next(scales[0] for scales in starts.values())
    return {lowest_rank: lowest} | {rank: own for rank, (_, own) in sorted(starts.items())}


def _started_apart(case: Case, starts: dict[int, float]) -> RuleHit:
    """Ranks whose scalers began with different scales."""
    differ = case.ranks.differ
    scales = list_text([scale_text(scale) for scale in sorted(set(starts.values()))])
    each = list_text([f"rank {rank} at {scale_text(scale)}" for rank, scale in starts.items()], 8)
    return RuleHit(
        at=differ,
        ranks=case.ranks.differing,
        summary=f"The ranks started with different loss scales: {scales}.",
        cause=f"At the first step they began with {each}. Each rank multiplies its loss by its own "
        "scale, and the reduction adds up gradients of different scales.",
        action="Restore the same scaler state on all ranks: load the one checkpoint's "
        "scaler.state_dict() on each of them, or create GradScaler with the same init_scale.",
        evidence=counted("differing_steps", differ, 0.0, "expected"),
    )


@rule("AMP602", "one-rank-overflows", Severity.WARNING)
def one_rank_overflows(case: Case) -> Iterator[RuleHit]:
    """A rank that alone causes overflows, for which all ranks skip."""
    joint = case.scale.culprits.joint
    for rank, overflows in sorted(joint.alone.items()):
        times = overflows.times
        certain = overflows.before_scale >= thresholds.BACKWARD_OVERFLOWS
        often = times.count >= thresholds.BACKWARD_OVERFLOWS and not joint.is_chance(times.count)
        if not (certain or often or overflows.before_scale):
            continue
        standing = _standing(case, times)
        count = f"{times.count} of {count_text(joint.judged, 'overflow')}"
        where = f", {'in or beside' if overflows.bounds else 'first in'} layer {overflows.layer}"
        # The first overflow is often seen from afar, so most of them decide.
        own = "activations" if 2 * overflows.before_scale > times.count else "gradients"
        yield RuleHit(
            severity=None if certain or often else Severity.INFO,
            standing=standing,
            at=times,
            layer=overflows.layer or None,
            ranks=(rank,),
            summary=f"Rank {rank} alone overflows, in {count}{where if overflows.layer else ''}"
            f"{standing.ending}.",
            cause=f"Only this rank has inf or NaN in its loss or its {own}. The ranks add up their "
            "gradients, so all of them skip the step.",
            action=f"Check the batches of rank {rank} in the steps in which it overflows. If they "
            f"look valid, give them to another rank and run again. If rank {rank} overflows "
            "again, its GPU is at fault. If the other rank overflows instead, the batches are "
            "at fault.",
            evidence=counted("overflows", times, joint.judged, "that all ranks tell of"),
        )


@rule("AMP603", "rank-silent", Severity.ERROR)
def rank_silent(case: Case) -> Iterator[RuleHit]:
    """A rank whose rows stop while other ranks go on."""
    course = case.ranks
    if not course.others or math.isnan(course.last_time_ns):
        return
    signs = _signs_of_life(case)
    step_ns = (course.last_time_ns - course.first_time_ns) / max(1, course.rows - 1)
    patience = max(SILENT_RANK_S * 1e9, SILENT_RANK_STEPS * step_ns)
    newest_step, newest = max(sign.step_ns for sign in signs), max(sign.any_ns for sign in signs)
    ages = {sign.rank: max(newest_step - sign.step_ns, newest - sign.any_ns) for sign in signs}
    silent = [
        sign for sign in signs if ages[sign.rank] > patience and not course.is_gone(sign.rank)
    ]
    if not silent:
        yield from _disappeared(case, signs)
        return
    sign = silent[0]
    seconds = ages[sign.rank] / 1e9
    lives = newest - sign.any_ns <= patience
    yield RuleHit(
        first_step=sign.step,
        last_step=max(sign.step for sign in signs),
        ranks=tuple(sign.rank for sign in silent),
        summary=f"Rank {sign.rank} has been silent since step {sign.step}.",
        cause=f"Its last row is {seconds:.0f} s older than another rank's."
        + " Its devices are still sampled, so its process lives." * lives,
        evidence=Evidence("silence_s", sign.step, seconds, patience / 1e9, "threshold"),
    )


# How gloo, NCCL and torch say that the other side is gone.
_LOST_PEER = (
    "Connection reset by peer", "Connection closed by peer", "remote process exited",
    "Socket Timeout", "Timed out waiting", "Broken pipe",
)  # fmt: skip


def _disappeared(case: Case, signs: Sequence[_Sign]) -> Iterator[RuleHit]:
    """Ranks that recorded neither an end nor an error before another lost its connection."""
    course, fatal = case.ranks, case.events.fatal
    lost = [e for e in fatal if any(w in str(e.detail.get("message", "")) for w in _LOST_PEER)]
    ranks_with_error = {event.rank for event in fatal}
    gone = [s for s in signs if not course.is_gone(s.rank) and s.rank not in ranks_with_error]
    if not lost or not gone or len(gone) == len(signs):
        return
    sign, after = gone[0], lost[-1]
    yield RuleHit(
        first_step=sign.step,
        last_step=after.step,
        ranks=tuple(sign.rank for sign in gone),
        summary=f"Rank {sign.rank} disappeared after step {sign.step}.",
        cause=f"It recorded neither an end nor an error, and rank {after.rank} then lost its "
        "connection: the process was killed.",
        action="Check that machine's log for what killed it: the out-of-memory killer, the "
        "scheduler, a hardware fault.",
        evidence=Evidence("exception", after.step, after.exception),
    )


@dataclass(frozen=True, slots=True)
class _Sign:
    """When a rank was last heard from, by the lowest rank's clock."""

    rank: int
    step: int
    step_ns: int  # its last step
    any_ns: int  # its last row of any kind


def _signs_of_life(case: Case) -> list[_Sign]:
    course, heard = case.ranks, case.devices.last_times_ns()
    ends = {min(case.record.ranks, default=0): (course.last_step, int(course.last_time_ns), 0)}
    for rank, facts in course.others.items():
        if facts.last_time_ns:
            ends[rank] = (facts.last_step, facts.last_time_ns, facts.ahead_ns or 0)
    return [
        _Sign(rank, step, time_ns - ahead_ns, max(time_ns, heard.get(rank, 0)) - ahead_ns)
        for rank, (step, time_ns, ahead_ns) in sorted(ends.items())
    ]


@rule("AMP604", "reduction-overflow", Severity.ERROR)
def reduction_overflow(case: Case) -> Iterator[RuleHit]:
    """Finite gradients on all ranks whose sum overflows."""
    joint, times = case.scale.culprits.joint, case.scale.culprits.joint.joining
    # The scale may still come to where the sum fits.
    searching = case.is_searching and case.scale.startup_skips < thresholds.STARTUP_BLIND_SKIPS
    if times.count < thresholds.BACKWARD_OVERFLOWS or searching:
        return
    standing = _standing(case, times)
    yield RuleHit(
        standing=standing,
        at=times,
        summary=f"The ranks' gradients are finite and their sum is not, "
        f"{count_text(times.count, 'time')}{standing.ending}.",
        cause="Before the reduction every gradient was finite on every rank: the sum, or the "
        "format in which it is made, overflows.",
        evidence=counted("overflows", times, joint.judged, "that all ranks tell of"),
    )


def _standing(case: Case, times: Times) -> FindingStatus:
    """How the trouble of a rank stands; it goes on if its usual gaps are longer than the last."""
    standing = case.standing(times)
    if standing is FindingStatus.STANDS or times.first_step is None or times.last_step is None:
        return standing
    gap = (times.last_step - times.first_step) / max(1, times.count - 1)
    since = (case.scale.last_step or 0) - times.last_step
    return FindingStatus.STANDS if since <= RECURRING_GAPS * gap else standing


@rule("AMP605", "ranks-see-same-data", Severity.WARNING)
def ranks_see_same_data(case: Case) -> Iterator[RuleHit]:
    """Ranks whose losses are identical to the bit: they see the same data."""
    others = case.ranks.others.values()
    compared = min((facts.compared for facts in others), default=0)
    differ = any(facts.same_losses < facts.compared for facts in others)
    if compared < SAME_LOSSES or differ or not case.ranks.losses_vary:
        return
    yield RuleHit(
        at=case.scale,
        summary=f"All {len(others) + 1} ranks compute the same losses.",
        cause=f"In {count_text(compared, 'step')} they are bit-identical: each rank sees the same "
        "batches.",
        evidence=Evidence(
            "equal_losses", case.scale.last_step, float(compared), float(compared), "compared"
        ),
    )
