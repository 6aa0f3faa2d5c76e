"""AMP601, AMP603 and AMP605: ranks that differ, fall silent, or do the same work."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import Page, Seen, rule
from ampwatch.diagnosis.words import count_text


@rule(
    "AMP601",
    "ranks-disagree",
    Severity.ERROR,
    Page(
        meaning="The ranks of one run have different loss scales, or one skips a step that "
        "another takes: their weights part, and nothing brings them together again.",
        looks="At the same step another scale or another skip on some rank.",
        not_to_confuse="Ranks that log at different times: only equal steps are compared.",
        do="Make found_inf common: use the sharded scaler with FSDP, or all-reduce the overflow "
        "flag before scaler.step; do not unscale parameters that only one rank has.",
        example="a plain GradScaler with FSDP: rank 3 skips step 812, the others do not.",
    ),
)
def ranks_disagree(case: Case) -> Iterator[Seen]:
    """Scales or skips that differ between ranks."""
    differ, ranks = case.ranks.differ, case.ranks.differing
    if differ.count < policy.RANKS_DIFFER:
        return
    yield Seen(
        severity=Severity.ERROR,
        first_step=differ.first_step,
        last_step=differ.last_step,
        ranks=ranks,
        summary=f"Ranks disagree on the loss scale or on skips, from step {differ.first_step}.",
        cause=f"In {count_text(differ.count, 'step')} rank {ranks[0]} and the lowest rank had "
        "different scales, or only one of them skipped.",
        action="Share the overflow flag between ranks before scaler.step; restart from a "
        f"checkpoint before step {differ.first_step}.",
        evidence=(Evidence("scale", differ.first_step, float(differ.count), 0.0),),
    )


@rule(
    "AMP603",
    "rank-silent",
    Severity.ERROR,
    Page(
        meaning="One rank has stopped writing while others went on: its process died, hangs, or "
        "waits for a collective that never comes.",
        looks="A rank's last row is a minute older than another's, and 20 steps' time.",
        not_to_confuse="A run that ended: then all ranks stop at about the same time.",
        do="Look at that rank's process and its output; a rank that died leaves the others "
        "waiting at the next collective.",
        example="rank 2 ends at step 4,100 by an out-of-memory kill, the others at 4,180.",
    ),
)
def rank_silent(case: Case) -> Iterator[Seen]:
    """A rank whose rows stop while others' go on."""
    course, record = case.ranks, case.record
    if not course.others or math.isnan(course.last_time_ns):
        return
    lowest = min(record.ranks, default=0)
    ends = {r: (f.last_time_ns, f.last_step) for r, f in course.others.items() if f.last_time_ns}
    ends[lowest] = (int(course.last_time_ns), course.last_step)
    newest = max(time for time, _ in ends.values())
    step_ns = (course.last_time_ns - course.first_time_ns) / max(1, course.rows - 1)
    patience = max(policy.SILENT_RANK_S * 1e9, policy.SILENT_RANK_STEPS * step_ns)
    silent = sorted(r for r, (time, _) in ends.items() if newest - time > patience)
    if not silent:
        return
    first = silent[0]
    seconds = (newest - ends[first][0]) / 1e9
    yield Seen(
        severity=Severity.ERROR,
        first_step=ends[first][1],
        last_step=max(step for _, step in ends.values()),
        ranks=tuple(silent),
        summary=f"Rank {first} has been silent since step {ends[first][1]}.",
        cause=f"Its last row is {seconds:.0f} s older than another rank's.",
        action="Look at that rank's process: it died, hangs, or waits for the others.",
        evidence=(Evidence("step", ends[first][1], seconds, patience / 1e9),),
    )


@rule(
    "AMP605",
    "ranks-see-same-data",
    Severity.WARNING,
    Page(
        meaning="All ranks compute the very same losses: each sees the same batches, so more "
        "cards do the work of one.",
        looks="Losses that are equal bit for bit on all ranks, step after step, and vary in time.",
        not_to_confuse="A loss that is averaged over ranks before it is logged or scaled; tensor "
        "parallelism, whose ranks share a batch by design.",
        do="Use a DistributedSampler (and set_epoch), or seed the ranks' data differently.",
        example="shuffle=True with the same seed on eight ranks and no sampler.",
    ),
)
def ranks_see_same_data(case: Case) -> Iterator[Seen]:
    """Bit-identical losses on all ranks."""
    course = case.ranks
    if not course.others or not course.losses_vary:
        return
    if any(f.compared < policy.SAME_LOSSES or f.same_losses < f.compared
           for f in course.others.values()):  # fmt: skip
        return
    compared = min(facts.compared for facts in course.others.values())
    yield Seen(
        severity=Severity.WARNING,
        first_step=case.scale.first_step,
        last_step=case.scale.last_step,
        summary=f"All {len(course.others) + 1} ranks compute the same losses.",
        cause=f"In {count_text(compared, 'step')} they are equal bit for bit: each rank sees the "
        "same batches.",
        action="Give each rank its own share of the data: DistributedSampler.",
        evidence=(Evidence("loss", case.scale.last_step, float(compared), float(compared)),),
    )
