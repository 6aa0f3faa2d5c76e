"""AMP405, AMP406, AMP414, AMP502: which layers compute and keep weights in half precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event_history import FLOAT16_PARAMETERS
from ampwatch.diagnosis.findings import Evidence, Severity
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
        evidence=(Evidence("output_dtype", case.scale.last_step, dtypes, "float16", "expected"),),
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
        evidence=(Evidence("param_dtype", event.step, "float16", "float32", "expected"),),
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
                evidence=(
                    Evidence(
                        "eps", event.step, tiny[0], FLOAT16_TINY, "half of float16's smallest"
                    ),
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
        evidence=(Evidence("half_flops", case.scale.last_step, half, total, "in all"),),
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
