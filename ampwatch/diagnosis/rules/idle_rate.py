"""AMP308: a learning rate that never left the start of its warm-up."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.number_course import DEAD_RATE
from ampwatch.diagnosis.registry import Page, Seen, Ties, always, rule
from ampwatch.diagnosis.words import count_text

# A log all of whose rates are no numbers to train with: three lines agree, or twenty do.
DEAD_LINES, DEAD_MANY = 3, policy.NO_ACCIDENT_STEPS
# Many warm-ups begin below a hundredth of the base rate; a decay ends at that or at a tenth.
FIRST_SHARE = 0.01
# A schedule may be stepped once an epoch. A run that is over and had no second one is no longer
# than this; while a run goes on, its first epoch may not be over (5,000 steps in ImageNet's).
STUCK_STEPS, STUCK_RUNNING = 300, 10_000


@rule(
    "AMP308",
    "rate-never-rose",
    Severity.WARNING,
    Page(
        meaning="The learning rate stayed at the start of its warm-up, at zero or next to it, so "
        "nothing is learnt. A scheduler that waits for accepted steps has seen none, or nothing "
        "steps it.",
        looks="Another program's log whose every line tells a rate of at most "
        f"{DEAD_RATE:g}: {DEAD_LINES} lines at least; an error from "
        f"{DEAD_MANY} lines on, for no warm-up begins so long. Or the rate is one and the same in "
        f"the whole record, from the run's first step, below {100 * FIRST_SHARE:g} % of its base "
        f"rate: {STUCK_STEPS:,} steps at least, {STUCK_RUNNING:,} while the run goes on.",
        not_to_confuse="A warm-up that has just begun: its rate rises from line to line. A "
        "constant rate without a schedule: it is its own base. A group of parameters that has a "
        "small rate on purpose, beside others that do not; a resume late in a schedule. AMP417, "
        "where ampwatch itself saw that no step moved the weights.",
        do="See whether steps are skipped (print the loss scale), and whether scheduler.step() is "
        "ever called.",
        example="a log of 39 lines with 'learning_rate': 0.0 and 'grad_norm': inf.",
    ),
    Ties(excludes_rate=always),
)
def rate_never_rose(case: Case) -> Iterator[Seen]:
    """A rate that is zero throughout, or stands where its warm-up began."""
    if is_stuck(case):
        yield _stuck(case)
        return
    numbers, scale = case.numbers, case.scale
    known_to_search = scale.has_scaler and case.is_searching
    if case.observed.loop or numbers.any_rate or known_to_search:
        return
    # One that prints a rate now and then is believed only where it did so often.
    if numbers.rates < DEAD_LINES or numbers.rates < min(DEAD_MANY, scale.entries):
        return
    yield Seen(
        severity=Severity.ERROR if numbers.rates >= DEAD_MANY else Severity.WARNING,
        at=scale,
        summary="Nothing is learnt: the learning rate never left its start in "
        f"{count_text(numbers.rates, 'line')}.",
        cause="A scheduler that waits for accepted steps has seen none, or nothing steps it.",
        evidence=(Evidence("lr", scale.last_step, 0.0, DEAD_RATE),),
    )


def is_stuck(case: Case) -> bool:
    """Whether a schedule's rate has not moved from a start far below its base rate."""
    setup, first = case.setup, case.setup.first_rate
    if first.rate is None or first.moved or first.share >= FIRST_SHARE:
        return False
    if setup.begin or setup.loaded_at_start or setup.loads or setup.optimizers > 1:
        return False  # what came before may have brought it down
    over = case.record.clean_end or not case.observed.loop
    enough = first.accepted >= (STUCK_STEPS if over else STUCK_RUNNING)
    return enough and setup.begins_below(FIRST_SHARE)


def _stuck(case: Case) -> Seen:
    first = case.setup.first_rate
    assert first.rate is not None, "a rate that stands is told"
    return Seen(
        at=case.scale,
        summary=f"The learning rate never rose: it stood at {first.rate:.3g} in all "
        f"{count_text(first.steps, 'step')}, {100 * first.share:.2g} % of its base rate.",
        cause="The schedule begins there and nothing steps it, so next to nothing is learnt.",
        action="Call scheduler.step() after each optimizer.step(), or once an epoch where its "
        "lengths are in epochs.",
        evidence=(Evidence("lr", case.scale.last_step, first.rate, first.base),),
    )
