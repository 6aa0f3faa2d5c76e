"""AMP411, AMP413 and AMP417: schedules, scales and updates that do not follow the gradients."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.gradient_history import STARVED
from ampwatch.diagnosis.layer_history import innermost_layers
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.rules.no_gradients import is_without_gradients
from ampwatch.diagnosis.value_text import count_text, list_text, share_text

# A scheduler that also advances on skipped steps does so every time; one change of the rate that
# coincides with a skip is chance. From this many skips, and nearly all of them.
DRIFT_SKIPS = 3
DRIFT_SHARE = 0.9
# Steps that one optimizer skipped and another did not: growth alone causes a few.
SHARED_SKIPS = 3
# Accepted steps that moved nothing: at a tiny rate an update may round to nothing now and then.
SILENT_STEPS = thresholds.NO_ACCIDENT_STEPS
# A warm-up may begin at a rate of zero, for a few steps. More steps are reported; many more, as a
# warning.
STILL_STEPS, STILL_LONG_STEPS = 100, 1000
SILENT_SHARE = 0.5


@rule("AMP411", "scheduler-on-skipped-step", Severity.INFO)
def scheduler_on_skipped_step(case: Case) -> Iterator[Seen]:
    """A schedule that advances on skipped steps too."""
    loop = case.loop
    moved = loop.moved_on_skips
    if moved.count < DRIFT_SKIPS or moved.count < DRIFT_SHARE * loop.skips:
        return
    yield Seen(
        at=moved,
        summary=f"The scheduler advanced on {count_text(moved.count, 'skipped step')}.",
        cause=f"Of {count_text(loop.skips, 'skip')} whose rate is recorded, {moved.count:,} "
        "were followed by a different rate; the schedule is that far ahead of the updates.",
        evidence=Evidence(
            "lr_moved", moved.last_step, float(moved.count), float(loop.skips), "skips"
        ),
    )


@rule("AMP413", "shared-scaler", Severity.WARNING)
def shared_scaler(case: Case) -> Iterator[Seen]:
    """A scaler shared by several optimizers, of which one's overflows lower the scale for all."""
    part = case.loop.skipped_in_part
    if case.is_searching or part.count < SHARED_SKIPS:
        return
    grown = case.scale.steps / case.scale.scaler.growth_interval
    allowed = case.scale.startup_skips + thresholds.STORM_FREE_SKIPS + grown
    if part.count <= allowed:
        return
    yield Seen(
        standing=case.standing(part),
        at=part,
        summary="One optimizer's overflows lower the loss scale of the others.",
        cause=f"In {count_text(part.count, 'step')} one optimizer skipped and another did not; "
        "the scale fell for both.",
        evidence=Evidence(
            "skipped_apart", part.last_step, float(part.count), allowed, "explained by growth"
        ),
    )


@rule("AMP417", "silent-skip", Severity.ERROR)
def silent_skip(case: Case) -> Iterator[Seen]:
    """Accepted steps whose updates do not move the weights."""
    if _stands_still(case):
        yield _without_a_rate(case)
        return
    if is_without_gradients(case):
        return  # AMP410
    if _is_most(case, case.loop.starved):
        yield _starved(case)
        return
    seen = _without_optimizer(case) or _most_without_gradient(case)
    if seen is not None:
        yield seen
        return
    still = case.loop.still
    if not _is_most(case, still) or case.has_converged:
        return
    yield Seen(
        at=still,
        summary="Steps are taken and the weights do not move.",
        cause=f"In {share_text(still.count, case.loop.pushed)} of the accepted steps with a "
        "gradient and a rate above zero the update was exactly zero.",
        evidence=Evidence("update_norm", still.last_step, 0.0),
    )


def _without_optimizer(case: Case) -> Seen | None:
    """Layers that have gradients, and whose weights no optimizer was given."""
    names = case.layers.without_optimizer
    if not names:
        return None
    # Who trains a head alone may well leave the gradients of all other layers on.
    few = len(names) <= len(case.layers.trained)
    one = len(names) == 1
    return Seen(
        severity=Severity.WARNING if few else Severity.INFO,
        at=case.scale,
        layer=names[0] if one else None,
        summary=f"No optimizer has the weights of {'layer' if one else 'layers'} "
        f"{list_text(names)}: {'it has' if one else 'they have'} gradients and never "
        f"{'moves' if one else 'move'}.",
        cause="These weights have gradients, and belong to no parameter group of an optimizer.",
        action="Make the optimizer after the last change to the model, or give it these parameters "
        "with add_param_group(). If they are to stay as they are, set requires_grad to False.",
        evidence=Evidence("layers_without_optimizer", case.scale.last_step, float(len(names))),
    )


def _most_without_gradient(case: Case) -> Seen | None:
    """More layers that no gradient reaches than layers that learn: a part of it is cut off."""
    names, learning = case.layers.without_gradient, case.layers.trained
    if len(names) <= len(innermost_layers(learning)):  # a few may be for another task
        return None
    return Seen(
        severity=Severity.WARNING,
        at=case.scale,
        summary=f"No gradient reaches {count_text(len(names), 'layer')} of "
        f"{len(names) + len(learning)} that should learn: {list_text(names)}.",
        cause="An optimizer has their weights, and in no sampled step did they have a gradient: "
        "the graph is cut between them and the loss.",
        action="If activations are checkpointed, call checkpoint(..., use_reentrant=False), or "
        "model.enable_input_require_grads(). Look for detach(), .data and torch.no_grad() between "
        "these layers and the loss.",
        evidence=Evidence("layers_without_gradient", case.scale.last_step, float(len(names))),
    )


def _is_most(case: Case, times: Times) -> bool:
    """Whether these were most of the steps that should have moved the weights, up to the end."""
    least = max(SILENT_STEPS, SILENT_SHARE * case.loop.pushed)
    return times.count >= least and case.stands(times)


def _starved(case: Case) -> Seen:
    loop = case.loop
    starved = loop.starved
    if 2 * loop.divided_twice > starved.count:
        cause = "exactly the gradient divided by the loss scale once more"
        action = "Remove that division: scaler.unscale_ or scaler.step has done it already."
    else:
        cause = f"{loop.starved_share:.1g} of it in the last one"
        action = (
            "Check what changes the gradients between scaler.unscale_ and the optimizer's step: "
            "a max_norm far too small, or a division."
        )
    return Seen(
        at=starved,
        summary="Steps are taken and the weights hardly move: the gradients are lost before the "
        "optimizer.",
        cause=f"In {share_text(starved.count, loop.pushed)} of the accepted steps the optimizer "
        f"received almost nothing of a finite gradient: {cause}.",
        action=action,
        evidence=Evidence(
                "grad_norm_applied / grad_norm", starved.last_step, loop.starved_share,
                STARVED[0][0], "threshold",
            ),
    )  # fmt: skip


def _stands_still(case: Case) -> bool:
    """Whether no update moved the weights because the schedule's rate was always zero."""
    if case.numbers.any_rate or case.loop.updates:
        return False
    return min(case.numbers.rates, case.loop.unmoved) > STILL_STEPS


def _without_a_rate(case: Case) -> Seen:
    scale, long = case.scale, case.loop.unmoved > STILL_LONG_STEPS
    return Seen(
        severity=Severity.WARNING if long else Severity.INFO,
        at=scale,
        summary="The learning rate is zero in every step, and the weights do not move.",
        cause=f"In {count_text(case.numbers.rates, 'step')} neither the rate nor any update was "
        "above zero.",
        action="Check which rate the scheduler sets, and whether scheduler.step() is ever called.",
        evidence=Evidence("lr", scale.last_step, 0.0),
    )
