"""AMP405, AMP406, AMP414, AMP502: which layers compute and keep weights in half precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event_history import FLOAT16_PARAMETERS
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Page, Seen, rule
from ampwatch.diagnosis.value_text import count_text, list_text, scale_text

# Half of 2^-24: an eps below it is zero in float16.
FLOAT16_TINY = 2.0**-25
# A minority of the work in half precision: the speed-up is hardly worth it.
HALF_WORK_SHARE = 0.5
PRECISION_SAMPLES = 3

_FLOAT16 = "float16"


@rule(
    "AMP405",
    "autocast-not-active",
    Severity.WARNING,
    Page(
        meaning="The loss is scaled, but no layer runs in half precision: the scaler costs "
        "steps and nothing gets faster.",
        looks=f"No matrix product with an fp16 or bf16 output or operands in fp8 or fp4, in "
        f"{PRECISION_SAMPLES} samples or more.",
        not_to_confuse="AMP502, where some layers do. A scaler that is disabled on purpose.",
        do="Put the forward pass and the loss into `with torch.autocast(device, "
        "torch.float16)`. With DataParallel, use autocast inside the model's forward(): its "
        "state belongs to one thread.",
        example="with torch.autocast(...) around the optimizer's part of the loop only.",
    ),
)
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


@rule(
    "AMP406",
    "fp16-parameters",
    Severity.ERROR,
    Page(
        meaning="The parameters themselves are float16. GradScaler refuses to unscale their "
        "gradients, and small updates to such weights round to nothing.",
        looks="torch's error about unscaling FP16 gradients.",
        not_to_confuse="Autocast, which casts temporarily and keeps the weights in float32. "
        "Frozen float16 weights do no harm.",
        do="Load or keep the model in float32 (no model.half()) and let autocast cast; or train in "
        "bf16.",
        example="model.half(), or from_pretrained(..., torch_dtype=torch.float16).",
    ),
)
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


@rule(
    "AMP414",
    "eps-underflow",
    Severity.ERROR,
    Page(
        meaning="The optimizer's eps rounds to zero in the format of the weights, so its division "
        "can be 0 / 0: weights become nan within a few steps, although the gradients are finite.",
        looks=f"float16 weights that are trained, and an eps below {scale_text(FLOAT16_TINY)}.",
        not_to_confuse="A normalisation layer's eps, which this finding does not check. A loop "
        "whose optimizer holds float32 copies of float16 weights.",
        do="Keep the weights in float32; or set eps to 1e-4 or so.",
        example="model.half() with Adam, whose eps is 1e-8.",
    ),
)
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


@rule(
    "AMP502",
    "autocast-not-helping",
    Severity.INFO,
    Page(
        meaning="Most of the arithmetic runs in float32, so mixed precision saves little.",
        looks=f"Of all operations in matrix products, less than {100 * HALF_WORK_SHARE:.0f} % "
        "have an fp16 or bf16 output, or operands in fp8 or fp4.",
        not_to_confuse="AMP405, where none does.",
        do="Run the large layers under autocast; keep in float32 only what needs it.",
        example="autocast(enabled=False) around the whole encoder.",
    ),
)
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
