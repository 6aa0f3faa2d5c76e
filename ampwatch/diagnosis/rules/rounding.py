"""AMP418: half-precision weights that lose most of each update to rounding."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rounding_history import KeptUpdates, RoundingSample
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text

# Most weights do not move, and most of the requested movement is lost. A smaller loss has the
# effect of a lower rate.
_UNMOVED_SHARE, _KEPT_SHARE = 0.5, 0.5
# The later half of the samples, because the rate may have been large enough at first; at least
# three.
_LATER_PART, _LEAST_SAMPLES = 2, 3
# At least 256 weights are read, and 26 or more of them should have moved in these samples: then
# stochastic rounding does not leave half of them unmoved by chance.
_ASKED_SHARES = 0.1
# ... with a margin of this many standard errors of the mean: 2 false alarms in 1,000 runs of a tiny
# model.
_ERRORS = 2.0


@rule("AMP418", "updates-rounded-away", Severity.WARNING)
def updates_rounded_away(case: Case) -> Iterator[Seen]:
    """Half-precision weights that lose most of each update to rounding."""
    known = case.rounding.samples
    later = known[-max(_LEAST_SAMPLES, len(known) // _LATER_PART) :]
    asked = case.rounding.every * sum(one.asked_share for one in later)
    if len(later) < _LEAST_SAMPLES or asked < _ASKED_SHARES:
        return
    unmoved, kept = statistics.median(one.unmoved_share for one in later), KeptUpdates.of(later)
    if unmoved <= _UNMOVED_SHARE or kept.share + _ERRORS * kept.error >= _KEPT_SHARE:
        return
    last = later[-1]
    yield Seen(
        first_step=_first_step(known),
        last_step=last.step,
        summary=f"A step leaves {100 * unmoved:.3g} % of the half-precision weights unmoved.",
        cause=f"Over {count_text(len(later), 'sampled step')} the weights moved "
        f"{max(0.0, 100 * kept.share):.2g} % of what the rate and the optimizer's state ask "
        "for: the rest is too small for their format and is rounded away.",
        evidence=(
            Evidence("unmoved_share", last.step, unmoved, _UNMOVED_SHARE, "threshold"),
            Evidence("update_kept_share", last.step, kept.share, _KEPT_SHARE, "threshold"),
        ),
    )


def _first_step(samples: tuple[RoundingSample, ...]) -> int:
    """The first sampled step in which rounding left most weights unmoved."""
    return next(one.step for one in samples if one.unmoved_share > _UNMOVED_SHARE)
