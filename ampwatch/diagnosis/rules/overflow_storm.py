"""AMP105: steps skipped more often than the growth of the loss scale explains."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.scale_segments import RecordEnding
from ampwatch.diagnosis.value_text import count_text, share_text

# A storm that begins late shows in the last part of the record. Over eight growth intervals or
# more, chance does not cause as many skips as growth does.
STORM_INTERVALS = 8
# Most of the last steps are skipped: hardly anything is learnt any more.
STORM_ERROR_SHARE = 0.5


@rule("AMP105", "overflow-storm", Severity.WARNING)
def overflow_storm(case: Case) -> Iterator[Seen]:
    """Steps skipped more often than the growth of the loss scale explains: a storm."""
    scale, loose = case.scale, case.loose
    if scale.first_accepted is None or not loose.skips or case.loop_tells_skips:
        return
    recent = len(scale.recent_skips)
    full = scale.steps - scale.first_accepted >= thresholds.STORM_WINDOW_STEPS
    most = full and recent > STORM_ERROR_SHARE * thresholds.STORM_WINDOW_STEPS
    crowd = _storm_part(case, most=most)
    if crowd is None:
        return
    quiet = max(thresholds.STORM_WINDOW_STEPS, thresholds.RECENT_SHARE * scale.steps)
    calm = full and scale.steps - loose.last_position > quiet and not recent
    wasted, allowed = share_text(scale.skips, scale.steps), _skips_allowed(case, crowd.steps)
    is_late = loose.first_position < scale.steps - crowd.steps
    late = f" in the last {crowd.steps:,} steps" if is_late else ""
    began = (scale.last_step or 0) - crowd.steps + 1 if is_late else loose.first_step
    yield Seen(
        severity=Severity.ERROR if most else Severity.INFO if calm else Severity.WARNING,
        first_step=began,
        last_step=loose.last_step,
        summary=f"{count_text(crowd.loose_skips, 'skip')}{late} that the scale's growth does not "
        "explain" + (", none of them recent." if calm else "."),
        cause=f"Growth explains about {math.floor(allowed)}. In all, {wasted} of the steps were "
        "computed and discarded.",
        evidence=Evidence(
                "skipped", loose.last_step, float(crowd.loose_skips), float(math.floor(allowed)),
                "explained by growth",
            ),
    )  # fmt: skip


def _storm_part(case: Case, *, most: bool) -> RecordEnding | None:
    """The part of the record that is a storm, with more skips than growth explains; or None.

    Bursts do not count: a burst is a spike or a fall, which has a finding of its own.
    """
    scale, loose = case.scale, case.loose
    assert scale.first_accepted is not None, "before that all is a search"
    since = scale.steps - scale.first_accepted
    if 2 * loose.episodes > loose.skips:  # isolated ones are counted from the first of them
        since = scale.steps - loose.first_position
    endings = [RecordEnding(since, loose.skips, loose.lone_skips)]
    if case.standing_fall is None:  # after a fall skips are part of it
        least = STORM_INTERVALS * scale.scaler.growth_interval
        endings += scale.recent_levels.endings(scale.steps, least)
    crowded = [
        one
        for one in endings
        if one.loose_skips > _skips_allowed(case, one.steps)
        and (2 * one.lone_skips > one.loose_skips or most)
    ]
    return max(
        crowded, key=lambda one: one.loose_skips / _skips_allowed(case, one.steps), default=None
    )


def _skips_allowed(case: Case, steps: int) -> float:
    """How many skips in so many steps are no storm: those that growth causes, and a few."""
    growths = case.scale.scaler.skips_by_growth(steps)
    return thresholds.STORM_FREE_SKIPS + growths + case.scale.accumulation_octaves
