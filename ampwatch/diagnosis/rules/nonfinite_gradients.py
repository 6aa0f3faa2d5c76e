"""AMP211: gradients that are not finite in steps that no scaler skips."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import MIXED, RATE, Page, Seen, Ties, rule
from ampwatch.diagnosis.times import Times
from ampwatch.diagnosis.words import count_text

# A scaler that is not recorded skips a step now and then; one line in ten is more than any healthy
# one does.
_SKIPPED_SHARE = 0.1
# A loop that leaves out half of all steps, and more of them than chance explains, does not train.
_MOST_SHARE, _MOST_STEPS = 1 / 2, policy.NO_ACCIDENT_STEPS


@rule(
    "AMP211",
    "gradients-not-finite",
    Severity.ERROR,
    Page(
        meaning="The gradients of a step were nan or inf, the loss was finite, and there was no "
        "scaler to skip the step. An optimizer that takes such a step writes nan into every "
        "weight.",
        looks="A gradient norm of nan or inf at a step that was not skipped. An error while such "
        f"steps continue (in the last {100 * policy.RECENT_SHARE:.0f} % of the record, or "
        f"{policy.RECENT_STEPS} steps) or if the weights were not finite afterwards; a warning "
        "when they are over. Steps that the loop leaves out because of their gradients count if "
        f"they continue and are more than {100 * _MOST_SHARE:.0f} % of all steps since the first.",
        not_to_confuse="A loss that is not finite itself (AMP204), which makes every gradient "
        "so; a step that a scaler skips; an occasional step that the loop itself leaves out "
        "(AMP212), whose update is exactly zero. A scaler that a log does not mention: its "
        "search before the first finite norm, and an occasional norm of inf after which norm "
        f"and loss are finite again (in up to {100 * _SKIPPED_SHARE:.0f} % of the lines): an "
        "optimizer that takes an inf makes the weights nan. If the loop was watched, it is "
        "known whether there is a scaler.",
        do="Restart from a checkpoint before it. Look for an operation whose gradient is not "
        "finite where its value is: sqrt, norm or a division at 0, log near 0, a masked row. "
        "Until then leave such steps out: step only if torch.isfinite(norm).",
        example="x.norm(dim=-1) of a row that is all zeros, in bf16: a loss of 2.1, a gradient of "
        "nan.",
    ),
    Ties(explained_by=("AMP209", *MIXED, *RATE), in_strict_order=True, cures=("autocast-off",)),
)
def gradients_not_finite(case: Case) -> Iterator[Seen]:
    """Gradients that are not finite where nothing skips the step."""
    course, weights = case.unskipped, case.numbers.bad_weights
    if not _may_be_told(case):
        return
    most = _most_left_out(case)
    times = course.bad.joined(course.unmoved_bad) if most else _unskipped(case)
    if not times.count or weights.began_before(times):
        return
    is_nan = times.first_step == course.nans.first_step
    value = "not finite" if most else "nan" if is_nan else "inf"
    stands, spoils = case.stands(times), weights.count > 0
    ending = ", none of them recent." * (not stands)
    if spoils:
        ending = ", and the weights are not finite any more."
    elif most:
        ending = ", and the loop leaves them out: most of its steps are lost."
    where = f"It began in the backward pass of {course.layer}, which received finite ones. "
    yield Seen(
        severity=Severity.ERROR if stands or spoils else Severity.WARNING,
        at=times,
        layer=course.layer,
        summary=f"The gradients are not finite in {count_text(times.count, 'step')} that nothing "
        f"skipped{ending or '.'}",
        cause=where * bool(course.layer)
        + f"At step {times.first_step} the gradient norm was {value}"
        + _aftermath(case, times),
        action=None
        if stands or spoils
        else f"Check the batch of step {times.first_step}, and look for an operation whose "
        "gradient is not finite at 0. Step only if torch.isfinite(norm).",
        evidence=(Evidence("grad_norm", times.first_step, value),),
    )


def _may_be_told(case: Case) -> bool:
    """Whether no scaler can have skipped them, as far as the record shows."""
    if case.has_live_scaler or (case.numbers.skipped_steps and not case.loop_tells_skips):
        return False
    # A scheduler that waits for accepted steps and saw none: a scaler skips them all.
    return not case.numbers.rates or case.numbers.any_rate


def _most_left_out(case: Case) -> bool:
    """Whether the loop leaves out most steps since the first of these, to the end."""
    times, last = case.unskipped.unmoved_bad, case.scale.last_step
    if times.first_step is None or last is None or not case.stands(times):
        return False
    return times.count >= max(_MOST_STEPS, _MOST_SHARE * (last - times.first_step + 1))


def _unskipped(case: Case) -> Times:
    """Those steps, without the ones that an unrecorded scaler may have skipped."""
    course, scale = case.unskipped, case.scale
    if case.observed.loop or scale.has_scaler or not course.found_good:
        return course.bad
    if course.late_infs > _SKIPPED_SHARE * scale.entries:
        return course.bad
    nans = course.nans if course.nans.count > course.early_nans else Times()
    settled = course.bad.count - course.nans.count - course.unsettled.count
    # Whatever skipped the others will have skipped this one too; the lines after it are not written
    # yet.
    is_one_more = settled > 0 and course.unsettled.count <= policy.LOSS_LINES
    return nans if is_one_more else nans.joined(course.unsettled)


def _aftermath(case: Case, times: Times) -> str:
    """What the weights and losses after the last of them show."""
    if case.numbers.bad_weights.count:
        return ", and the weights were not finite after it."
    tail, last = case.rate.tail, times.last_step or 0
    if not np.isfinite(tail.of("loss")[tail.of("step") > last]).any():
        return "."
    return (
        "; the loss is finite after the last of them, so they did not reach the weights, or only "
        "the norm is wrong."
    )
