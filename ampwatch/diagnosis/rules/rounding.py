"""AMP418: weights in half precision that take up little of what they are asked to move."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.precision_course import Kept, RoundingSample
from ampwatch.diagnosis.registry import Page, Seen, Ties, always, rule
from ampwatch.diagnosis.words import count_text

# Most weights stand still, and most of what they were asked to move is lost: below that, what is
# lost is a lower rate's worth.
_UNMOVED_SHARE, _KEPT_SHARE = 0.5, 0.5
# The later half of the samples, for a rate that was large enough at first; three at the least.
_LATER_PART, _LEAST_SAMPLES = 2, 3
# Of the 256 weights that are read at the least, 26 or more should have moved in these samples: by
# then chance alone, which stochastic rounding throws, does not leave half of them where they were.
_ASKED_SHARES = 0.1
# ... nor does it with this many errors of the mean to spare: 2 in 1,000 of a tiny model's runs.
_ERRORS = 2.0


@rule(
    "AMP418",
    "updates-rounded-away",
    Severity.WARNING,
    Page(
        meaning="The weights are kept in bf16 or fp16, and most of an update is smaller than half "
        "the distance to the next number they can hold: rounding throws it away. The run learns "
        "by few of its weights, slower than its rate says, and weight decay may not apply at all.",
        looks="Over the sampled steps of the later half, more than "
        f"{100 * _UNMOVED_SHARE:.0f} % of the weights that have a gradient are unchanged to the "
        "bit after a step (`unmoved_share`), and the weights move less than "
        f"{100 * _KEPT_SHARE:.0f} % of what the rate and the optimizer's state ask "
        "(`update_kept_share`).",
        not_to_confuse="Stochastic rounding, Kahan summation and float32 masters: there, too, most "
        "weights stand still in one step, but together they move as far as they should. Autocast, "
        "which leaves the weights in float32. AMP201, where the gradient itself is lost.",
        do="Keep the weights in float32 and run the forward pass under torch.autocast. Where there "
        "is no memory for that: an optimizer that rounds stochastically or keeps a Kahan sum. "
        "A higher rate is no cure: it moves a few weights too far before it moves the rest.",
        example="model.to(torch.bfloat16) and AdamW at 3e-5: 98 % of the weights do not move.",
    ),
    Ties(excludes_rate=always),
)
def updates_rounded_away(case: Case) -> Iterator[Seen]:
    """Most of the weights stand still, and most of the update is lost."""
    known = case.rounding.samples
    later = known[-max(_LEAST_SAMPLES, len(known) // _LATER_PART) :]
    asked = case.rounding.every * sum(one.asked_share for one in later)
    if len(later) < _LEAST_SAMPLES or asked < _ASKED_SHARES:
        return
    unmoved, kept = statistics.median(one.unmoved_share for one in later), Kept.of(later)
    if unmoved <= _UNMOVED_SHARE or kept.share + _ERRORS * kept.error >= _KEPT_SHARE:
        return
    last = later[-1]
    yield Seen(
        first_step=_first_step(known),
        last_step=last.step,
        summary=f"A step leaves {100 * unmoved:.3g} % of the half-precision weights unmoved.",
        cause=f"Over {count_text(len(later), 'sampled step')} the weights moved "
        f"{max(0.0, 100 * kept.share):.2g} % of what the rate and the optimizer's state ask: the "
        "rest is less than their format can add, and is rounded away.",
        evidence=(
            Evidence("unmoved_share", last.step, unmoved, _UNMOVED_SHARE),
            Evidence("update_kept_share", last.step, kept.share, _KEPT_SHARE),
        ),
    )


def _first_step(samples: tuple[RoundingSample, ...]) -> int:
    """The first sample in which most weights stood still."""
    return next(one.step for one in samples if one.unmoved_share > _UNMOVED_SHARE)
