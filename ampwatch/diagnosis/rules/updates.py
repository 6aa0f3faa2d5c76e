"""AMP410, AMP411, AMP413 and AMP417: gradients and updates that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.ledger import NO_GRADIENTS, NO_GRAPH
from ampwatch.diagnosis.registry import Page, Seen, rule
from ampwatch.diagnosis.words import count_text, share_text


@rule(
    "AMP410",
    "no-gradients",
    Severity.ERROR,
    Page(
        meaning="The optimizer stepped and none of its parameters had a gradient, or the loss "
        "hangs on none of them.",
        looks="torch's error that no inf checks were recorded for this optimizer, or that the loss "
        "does not require grad.",
        not_to_confuse="Gradients that are zero; parameters that are frozen on purpose beside "
        "others that learn.",
        do="Check that the optimizer was given this model's parameters, that they require "
        "gradients, that the loss is not detached (re-entrant checkpointing detaches what no input "
        "with a gradient enters), and that zero_grad() does not stand between backward() and "
        "step().",
        example="the optimizer was made before the model was replaced by its compiled copy.",
    ),
)
def no_gradients(case: Case) -> Iterator[Seen]:
    """The scaler found no gradient to check, or the backward pass nothing to begin with."""
    raised = case.ledger.raised
    text = next((text for text in (NO_GRAPH, NO_GRADIENTS) if text in raised), None)
    if text is None:
        return
    event = raised[text]
    yield Seen(
        severity=Severity.ERROR,
        first_step=event.step,
        last_step=event.step,
        ranks=(event.rank,),
        summary="The optimizer's parameters have no gradients."
        if text is NO_GRADIENTS
        else "The loss hangs on no parameter that learns.",
        cause=f"{event.exception}: {text}.",
        action="Check the optimizer's parameters, requires_grad, and where zero_grad() stands."
        if text is NO_GRADIENTS
        else "Check requires_grad, detach() and no_grad() on the way to the loss; checkpoint(..., "
        "use_reentrant=False).",
        evidence=(Evidence("exception", event.step, event.exception),),
    )


@rule(
    "AMP411",
    "scheduler-on-skipped-step",
    Severity.INFO,
    Page(
        meaning="The learning-rate scheduler also moves when the scaler skipped the step, so the "
        "schedule runs ahead of the updates.",
        looks="After nearly every skip the rate has changed, though no update was made.",
        not_to_confuse="A schedule by epochs, whose change meets a skip by chance.",
        do="Step the scheduler only if the step was not skipped: compare scaler.get_scale() "
        "before and after update().",
        example="OneCycleLR with 20 start-up skips: the warm-up is 20 steps short.",
    ),
)
def scheduler_on_skipped_step(case: Case) -> Iterator[Seen]:
    """A rate that moves where nothing was learnt."""
    loop = case.loop
    moved = loop.moved_on_skips
    if moved.count < policy.DRIFT_SKIPS or moved.count < policy.DRIFT_SHARE * loop.skips:
        return
    yield Seen(
        severity=Severity.INFO,
        first_step=moved.first_step,
        last_step=moved.last_step,
        summary=f"The scheduler moved on {count_text(moved.count, 'skipped step')}.",
        cause=f"Of {count_text(loop.skips, 'skip')} whose rate is recorded, {moved.count:,} were "
        "followed by another rate; the schedule is that far ahead of the updates.",
        action="Call scheduler.step() only when the scale did not fall in scaler.update().",
        evidence=(Evidence("lr", moved.last_step, float(moved.count), float(loop.skips)),),
    )


@rule(
    "AMP413",
    "shared-scaler",
    Severity.WARNING,
    Page(
        meaning="Several optimizers share one scaler. Only the one whose gradients are not finite "
        "skips, but the scale falls for all, and the others lose their small gradients.",
        looks="Steps of which one optimizer skipped and another did not, again and again.",
        not_to_confuse="A shared loss or shared parameters: then all skip together.",
        do="Give each loss a GradScaler of its own, or see why this loss overflows.",
        example="a GAN whose discriminator overflows at 2^12 while the generator needs 2^16.",
    ),
)
def shared_scaler(case: Case) -> Iterator[Seen]:
    """One optimizer's overflows lower everyone's scale."""
    part = case.loop.skipped_in_part
    if case.is_searching or part.count < policy.SHARED_SKIPS:
        return
    grown = case.scale.steps / case.scale.scaler.growth_interval
    allowed = case.scale.startup_skips + policy.STORM_FREE_SKIPS + grown
    if part.count <= allowed:
        return
    yield Seen(
        severity=Severity.WARNING if case.stands(part) else Severity.INFO,
        first_step=part.first_step,
        last_step=part.last_step,
        summary="One optimizer's overflows lower the loss scale of the others.",
        cause=f"In {count_text(part.count, 'step')} one optimizer skipped and another did not; "
        "the scale fell for both.",
        action="Give each loss its own GradScaler, or find why this one overflows.",
        evidence=(Evidence("skipped", part.last_step, float(part.count), allowed),),
    )


@rule(
    "AMP417",
    "silent-skip",
    Severity.ERROR,
    Page(
        meaning="Steps count as taken, their gradients are finite and not zero, the rate is above "
        "zero, and the weights do not move: the update is lost on the way.",
        looks="An update of exactly zero at accepted steps, in most of the record.",
        not_to_confuse="A skipped step, which says so; a rate of zero at the start of a warm-up; "
        "frozen parameters, which have no gradient.",
        do="See whether the optimizer holds this model's parameters and not a copy, and whether "
        "the update is below the weights' precision (float16 weights, a tiny rate).",
        example="bf16 weights at a rate of 1e-6: every update rounds to nothing.",
    ),
)
def silent_skip(case: Case) -> Iterator[Seen]:
    """Accepted steps that move nothing."""
    still, moved = case.loop.still, case.loop.moved
    total = still.count + moved
    if still.count < policy.SILENT_STEPS or still.count < policy.SILENT_SHARE * total:
        return
    if not case.stands(still):
        return
    yield Seen(
        severity=Severity.ERROR,
        first_step=still.first_step,
        last_step=still.last_step,
        summary="Steps are taken and the weights do not move.",
        cause=f"In {share_text(still.count, total)} of the accepted steps with a gradient and a "
        "rate above zero the update was exactly zero.",
        action="Check that the optimizer holds the model's own parameters, in float32.",
        evidence=(Evidence("update_norm", still.last_step, 0.0),),
    )
