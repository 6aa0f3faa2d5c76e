"""AMP405, AMP406, AMP414, AMP418, AMP502: layers and weights in half precision."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event_history import FLOAT16_PARAMETERS
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.precision_history import KeptUpdates, RoundingSample
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text, list_text

# Half of 2^-24: an eps below it is zero in float16.
FLOAT16_TINY = 2.0**-25
# A minority of the work in half precision: the speed-up is hardly worth it.
HALF_WORK_SHARE = 0.5
PRECISION_SAMPLES = 3

_FLOAT16 = "float16"


@rule("AMP405", "autocast-not-active", Severity.WARNING)
def autocast_not_active(case: Case) -> Iterator[Seen]:
    """A loss scale although no layer runs in half precision."""
    products = case.precision.products
    if not case.scale.has_scaler or not products or _seen_too_seldom(case):
        return
    if any(one.runs_half for one in case.precision.layers.values()):
        return
    dtypes = " or ".join(sorted({one.output_dtype for one in products.values()}))
    yield Seen(
        at=case.scale,
        summary="The loss is scaled, and no layer runs in half precision.",
        cause=f"The output of {count_text(len(products), 'matrix product')} is {dtypes}.",
        evidence=Evidence("output_dtype", case.scale.last_step, dtypes, "float16", "expected"),
    )


@rule("AMP406", "fp16-parameters", Severity.ERROR)
def fp16_parameters(case: Case) -> Iterator[Seen]:
    """Weights kept in float16, whose gradients the scaler cannot unscale."""
    event = case.events.raised.get(FLOAT16_PARAMETERS)
    if event is None:
        return
    named = [name for name, one in case.precision.layers.items() if one.keeps_float16]
    yield Seen(
        first_step=event.step,
        last_step=event.step,
        layer=named[0] if len(named) == 1 else None,
        ranks=(event.rank,),
        summary="The parameters are float16, and the scaler cannot unscale their gradients.",
        cause=f"{event.exception}: {FLOAT16_PARAMETERS}."
        + (f" Among them {list_text(named)}." if named else ""),
        evidence=Evidence("param_dtype", event.step, "float16", "float32", "expected"),
    )


@rule("AMP414", "eps-underflow", Severity.ERROR)
def eps_underflow(case: Case) -> Iterator[Seen]:
    """An optimizer's eps that is zero in the half precision of the weights."""
    kept = [name for name, one in case.precision.layers.items() if one.keeps_float16]
    for event in case.events.optimizers:
        tiny = [eps for eps in _each_eps_in_float16(event.detail) if 0 < eps < FLOAT16_TINY]
        if kept and tiny:
            yield Seen(
                first_step=event.step,
                last_step=case.scale.last_step,
                layer=kept[0] if len(kept) == 1 else None,
                summary=f"The optimizer's eps of {tiny[0]:g} is zero in float16.",
                cause=f"{count_text(len(kept), 'layer')} of float16 weights are trained, among "
                f"them {list_text(kept)}; float16 rounds what is below 2^-25 to zero.",
                evidence=Evidence(
                    "eps", event.step, tiny[0], FLOAT16_TINY, "half of float16's smallest"
                ),
            )
            return


@rule("AMP502", "autocast-not-helping", Severity.INFO)
def autocast_not_helping(case: Case) -> Iterator[Seen]:
    """Less than half of the arithmetic in half precision, although autocast is on."""
    products = case.precision.products
    half = sum(one.flops or 0.0 for one in products.values() if one.runs_half)
    total = sum(one.flops or 0.0 for one in products.values())
    if not 0 < half < HALF_WORK_SHARE * total or _seen_too_seldom(case):
        return
    wide = sorted((n for n, o in products.items() if not o.runs_half),
                  key=lambda name: -(products[name].flops or 0.0))  # fmt: skip
    share = 100 * half / total
    yield Seen(
        at=case.scale,
        layer=wide[0],
        summary=f"Only {share:.0f} % of the arithmetic runs in half precision.",
        cause=f"The largest layers in float32 are {list_text(wide)}.",
        evidence=Evidence("half_flops", case.scale.last_step, half, total, "in all"),
    )


def _seen_too_seldom(case: Case) -> bool:
    return case.precision.sampled_steps < PRECISION_SAMPLES


def _each_eps_in_float16(detail: Mapping[str, Any]) -> Iterator[float]:
    """Each eps that may divide float16 parameters; older records do not say what it divides."""
    groups = detail.get("groups")
    for group in groups if isinstance(groups, list) else []:
        holds = group.get("dtype", _FLOAT16) if isinstance(group, dict) else ""
        eps = group.get("eps") if _FLOAT16 in str(holds).split("/") else None
        if isinstance(eps, (int, float)) and not isinstance(eps, bool):
            yield float(eps)


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
