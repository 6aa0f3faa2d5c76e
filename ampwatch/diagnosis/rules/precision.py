"""AMP405, AMP406, AMP414, AMP418, AMP502, AMP701 to AMP706: number formats of 16 bits and below."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event_history import FLOAT16_PARAMETERS
from ampwatch.diagnosis.findings import Severity
from ampwatch.diagnosis.precision_history import (
    ROLES,
    CastSamples,
    CastScales,
    KeptUpdates,
    LayerPrecision,
    RoundingSample,
)
from ampwatch.diagnosis.rule import RuleHit, rule
from ampwatch.diagnosis.value_text import Evidence, count_text, list_text

# --- half precision -------------------------------------------------------------------------------


# Half of 2^-24: an eps below it is zero in float16.
FLOAT16_TINY = 2.0**-25
# A minority of the work in half precision: the speed-up is hardly worth it.
HALF_WORK_SHARE = 0.5
PRECISION_SAMPLES = 3

_FLOAT16 = "float16"


@rule("AMP405", "autocast-not-active", Severity.WARNING)
def autocast_not_active(case: Case) -> Iterator[RuleHit]:
    """A loss scale although no layer runs in half precision."""
    products = case.precision.products
    if not case.scale.has_scaler or not products or _seen_too_seldom(case):
        return
    if any(layer.runs_half for layer in case.precision.layers.values()):
        return
    dtypes = " or ".join(sorted({layer.output_dtype for layer in products.values()}))
    yield RuleHit(
        at=case.scale,
        summary="The loss is scaled, and no layer runs in half precision.",
        cause=f"The output of {count_text(len(products), 'matrix product')} is {dtypes}.",
        evidence=Evidence("output_dtype", case.scale.last_step, dtypes, "float16", "expected"),
    )


@rule("AMP406", "fp16-parameters", Severity.ERROR)
def fp16_parameters(case: Case) -> Iterator[RuleHit]:
    """Weights kept in float16, whose gradients the scaler cannot unscale."""
    event = case.events.raised.get(FLOAT16_PARAMETERS)
    if event is None:
        return
    named = [name for name, layer in case.precision.layers.items() if layer.keeps_float16]
    yield RuleHit(
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
def eps_underflow(case: Case) -> Iterator[RuleHit]:
    """An optimizer's eps that is zero in the half precision of the weights."""
    float16_layers = [name for name, layer in case.precision.layers.items() if layer.keeps_float16]
    for event in case.events.optimizers:
        tiny = [eps for eps in _each_eps_in_float16(event.detail) if 0 < eps < FLOAT16_TINY]
        if float16_layers and tiny:
            yield RuleHit(
                first_step=event.step,
                last_step=case.scale.last_step,
                layer=float16_layers[0] if len(float16_layers) == 1 else None,
                summary=f"The optimizer's eps of {tiny[0]:g} is zero in float16.",
                cause=f"{count_text(len(float16_layers), 'layer')} of float16 weights are trained, "
                f"among them {list_text(float16_layers)}; float16 rounds what is below 2^-25 to "
                "zero.",
                evidence=Evidence(
                    "eps", event.step, tiny[0], FLOAT16_TINY, "half of float16's smallest"
                ),
            )
            return


@rule("AMP502", "autocast-not-helping", Severity.INFO)
def autocast_not_helping(case: Case) -> Iterator[RuleHit]:
    """Less than half of the arithmetic in half precision, although autocast is on."""
    products = case.precision.products
    half = sum(layer.flops or 0.0 for layer in products.values() if layer.runs_half)
    total = sum(layer.flops or 0.0 for layer in products.values())
    if not 0 < half < HALF_WORK_SHARE * total or _seen_too_seldom(case):
        return
    wide = sorted((n for n, o in products.items() if not o.runs_half),
                  key=lambda name: -(products[name].flops or 0.0))  # fmt: skip
    share = 100 * half / total
    yield RuleHit(
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
def updates_rounded_away(case: Case) -> Iterator[RuleHit]:
    """Half-precision weights that lose most of each update to rounding."""
    samples = case.rounding.samples
    later = samples[-max(_LEAST_SAMPLES, len(samples) // _LATER_PART) :]
    asked = case.rounding.every * sum(sample.asked_share for sample in later)
    if len(later) < _LEAST_SAMPLES or asked < _ASKED_SHARES:
        return
    unmoved, updates = (
        statistics.median(sample.unmoved_share for sample in later),
        KeptUpdates.of(later),
    )
    if unmoved <= _UNMOVED_SHARE or updates.share + _ERRORS * updates.error >= _KEPT_SHARE:
        return
    last = later[-1]
    yield RuleHit(
        first_step=_first_step(samples),
        last_step=last.step,
        summary=f"A step leaves {100 * unmoved:.3g} % of the half-precision weights unmoved.",
        cause=f"Over {count_text(len(later), 'sampled step')} the weights moved "
        f"{max(0.0, 100 * updates.share):.2g} % of what the learning rate and the optimizer's "
        "state ask for: the rest is too small for their format and is rounded away.",
        evidence=(
            Evidence("unmoved_share", last.step, unmoved, _UNMOVED_SHARE, "threshold"),
            Evidence("update_kept_share", last.step, updates.share, _KEPT_SHARE, "threshold"),
        ),
    )


def _first_step(samples: tuple[RoundingSample, ...]) -> int:
    """The first sampled step in which rounding left most weights unmoved."""
    return next(sample.step for sample in samples if sample.unmoved_share > _UNMOVED_SHARE)


# --- layers below sixteen bits --------------------------------------------------------------------


# Names under which models keep the layer that makes the logits.
_HEADS = frozenset(
    {"lm_head", "head", "heads", "output_layer", "classifier", "score", "logits", "unembed",
     "embed_out"}
)  # fmt: skip
_ROUTERS = frozenset({"router", "gate", "gating"})
# A router chooses among a few experts; what a GLU calls its gate is as wide as its input.
_ROUTER_NARROWS = 2
# Options by which training scripts ask for formats below 16 bits, and values that do not.
_OPTIONS = frozenset(
    {"fp8", "float8", "fp4", "nvfp4", "mxfp8", "use_fp8", "use_float8", "enable_fp8",
     "enable_float8", "enable_float8_linear", "fp8_training", "float8_training"}
)  # fmt: skip
_PRECISIONS = frozenset({"precision", "mixed_precision", "amp_dtype", "autocast_dtype"})
_OFF = frozenset({"", "0", "false", "none", "no", "off", "null", "disabled", "bf16", "fp16"})
_NARROW = re.compile(r"fp8|float8|fp4|float4")


@rule("AMP704", "sensitive-layer-quantised", Severity.WARNING)
def sensitive_layer_quantised(case: Case) -> Iterator[RuleHit]:
    """A head, first layer, router or embedding that runs below 16 bits."""
    layers = case.precision.layers
    sensitive = {name: why for name, why in _sensitive(layers).items() if layers[name].is_quantised}
    if not sensitive:
        return
    first = next(iter(sensitive))
    quantised = [name for name, layer in layers.items() if layer.is_quantised]
    reasons = "; ".join(f"{name} is {why}" for name, why in list(sensitive.items())[:_MOST_TOLD])
    form = _format_of(layers[first])
    yield RuleHit(
        at=case.scale,
        layer=first,
        summary=f"{first} is {sensitive[first]}, and multiplies in {form}.",
        cause=f"Of {count_text(len(quantised), 'quantised layer')} "
        f"{count_text(len(sensitive), 'is one', 'are some')} that is usually kept in bf16: "
        f"{reasons}.",
        action=leave_out(layers, list(sensitive)),
        evidence=Evidence("input_format", case.scale.last_step, form, "bfloat16", "usual"),
    )


_MOST_TOLD = 3
_MOST_LEFT_OUT = 10  # layers that an action names


def _sensitive(layers: Mapping[str, LayerPrecision]) -> dict[str, str]:
    """The layers that should not be quantised, and what each is; the head first."""
    ran = sorted(
        (n for n, layer in layers.items() if layer.order >= 0), key=lambda n: layers[n].order
    )
    products = [name for name in ran if layers[name].flops or layers[name].is_quantised]
    sensitive: dict[str, str] = {}
    if products and not _ends_block(products[-1], products, layers):
        sensitive[products[-1]] = "the last matrix product of the model, its head"
    # A foreign log has no order of layers, and only the quantised ones.
    named = [
        *products,
        *(n for n, layer in layers.items() if layer.order < 0 and layer.is_quantised),
    ]
    sensitive |= {n: "a head by its name" for n in named if _is_head(n) and n not in sensitive}
    sensitive |= {n: "a router by its name" for n in products if _is_router(n, layers)}
    embeds = [name for name in ran if "Embedding" in layers[name].kind]
    sensitive |= {name: "an embedding" for name in embeds if name not in sensitive}
    if products and products[0] not in sensitive and not _is_in_row(products[0], products):
        early = any(layers[name].order < layers[products[0]].order for name in embeds)
        if not early:
            sensitive[products[0]] = "the first layer of the model"
    return sensitive


def _is_in_row(name: str, products: list[str]) -> bool:
    """Whether a layer is in a repeated block (`blocks.11.mlp.fc2`) and so fit to be quantised."""
    parts = name.split(".")
    for at, part in enumerate(parts[:-1]):
        if part.isdigit():
            before, after = ".".join(parts[:at]), ".".join(parts[at + 1 :])
            like = re.compile(rf"{re.escape(before)}\.?\d+\.{re.escape(after)}")
            if any(other != name and like.fullmatch(other) for other in products):
                return True
    return False


def _ends_block(name: str, products: list[str], layers: Mapping[str, LayerPrecision]) -> bool:
    """Whether the last matrix product ends a block: then it is no head and may be quantised.

    Blocks may differ, such as attention and a feed-forward part. But then the output of the last
    product is as wide as other layers' inputs; a head's output is as wide as the number of classes.
    """
    return _is_in_row(name, products) or (
        _is_of_numbered(name, products)
        and layers[name].sides[:1] in [layers[other].sides[1:2] for other in products[:-1]]
    )


def _is_of_numbered(name: str, products: list[str]) -> bool:
    """Whether a layer is in a numbered module (`layers.3.down`) and so fit to be quantised."""
    parts = name.split(".")
    for at, part in enumerate(parts[:-1]):
        before = "".join(f"{path}." for path in parts[:at])
        other = re.compile(rf"{re.escape(before)}(?!{part}\.)\d+\.")
        if part.isdigit() and any(other.match(path) for path in products):
            return True
    return False


def _is_head(name: str) -> bool:
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if part in _HEADS), None)
    return at is not None and not any(part.isdigit() for part in parts[:at])


def _is_router(name: str, layers: Mapping[str, LayerPrecision]) -> bool:
    """Whether a layer is a router, not to be quantised: narrow, or with experts beside it."""
    *parents, last = name.split(".")
    outputs, inputs = layers[name].sides[:2] or (1, 0)
    experts = ".".join([*parents, "experts"])
    is_narrow = _ROUTER_NARROWS * outputs <= inputs
    return last in _ROUTERS and (
        is_narrow or any(f"{layer}.".startswith(f"{experts}.") for layer in layers)
    )


def _format_of(layer: LayerPrecision) -> str:
    return next(text for text in layer.formats if text)


def leave_out(layers: Mapping[str, LayerPrecision], names: list[str]) -> str:
    """The action that leaves layers out of a quantisation, in the words of their library."""
    kinds = {layers[name].kind for name in names}
    excluded = list_text(names, _MOST_LEFT_OUT)
    if any("Float8Linear" in kind for kind in kinds):
        return (
            f"Leave {excluded} in bf16: have the module_filter_fn of convert_to_float8_training "
            "return False for them, by their full names."
        )
    if any("Linear" in kind and "TE" not in kind for kind in kinds):
        return (
            f"Leave {excluded} in bf16: have the filter_fn of quantize_ return False for them, by "
            "their full names."
        )
    return (
        f"Run {excluded} outside the low-precision autocast, or exclude them from the recipe by "
        "their full names."
    )


@rule("AMP705", "quantisation-matched-nothing", Severity.WARNING)
def quantisation_matched_nothing(case: Case) -> Iterator[RuleHit]:
    """A format below 16 bits was asked for, and no layer is quantised."""
    products = case.precision.products
    if not products or any(layer.is_quantised for layer in case.precision.layers.values()):
        return
    if case.precision.sampled_steps < PRECISION_SAMPLES:
        return
    asked = _asked(case)
    if asked is None:
        return
    dtypes = " or ".join(sorted({layer.output_dtype for layer in products.values()}))
    yield RuleHit(
        at=case.scale,
        summary=f"{asked}, and no layer runs below 16 bits.",
        cause=f"{count_text(len(products), 'matrix product')} were seen, and none of their "
        f"operands is cast; their outputs are {dtypes}.",
        evidence=Evidence("output_dtype", case.scale.last_step, dtypes),
    )


def _asked(case: Case) -> str | None:
    """What asked for a quantisation, as the beginning of a sentence; None if nothing did."""
    detail = {} if case.events.started is None else case.events.started.detail
    conversions = detail.get("conversions")
    if isinstance(conversions, list) and conversions:
        return f"{conversions[0]} was called"
    config = detail.get("config")
    for name, value in (config if isinstance(config, dict) else {}).items():
        key, text = str(name).lower().replace("-", "_"), str(value).strip().lower()
        if key in _OPTIONS and text not in _OFF:
            return f"The settings say {name}={value}"
        if key in _PRECISIONS and _NARROW.search(text):
            return f"The settings say {name}={value}"
    return None


# --- what casts lose, and delayed scales ----------------------------------------------------------


# In most of a layer's last samples, and in at least so many: one batch may be an outlier.
LEAST_SAMPLES = 3
# A scale computed from the tensor or the row cuts nothing off, so one value in a thousand is not
# chance. Healthy MX runs with scales rounded down cut off about one in two hundred.
CUT_SHARE, CUT_SHARE_OF_BLOCKS = 0.001, 0.02
# In a normal distribution the smallest fifth has less than a hundredth of the squared norm. If a
# fifth is flushed, most of the rest is subnormal, with one or two digits. NVFP4 has so few numbers
# that it flushes six to ten per cent of a normally distributed tensor.
FLUSHED_SHARE, FLUSHED_SHARE_OF_FP4 = 0.2, 0.4


def most_cut(form: str) -> float:
    """The share of values that casts to this format may cut off in a healthy run."""
    return CUT_SHARE_OF_BLOCKS if "block" in form else CUT_SHARE


def most_flushed(form: str) -> float:
    """The share of values that casts to this format may flush to zero in a healthy run."""
    return FLUSHED_SHARE_OF_FP4 if "fp4" in form else FLUSHED_SHARE


_ROLE_NAMES = {"input": "input", "weight": "weight", "grad": "output gradient"}


@rule("AMP701", "fp8-saturation", Severity.WARNING)
def fp8_saturation(case: Case) -> Iterator[RuleHit]:
    """Operands whose cast below 16 bits cuts off their largest values."""
    worst = _worst(case, lambda samples: samples.cut, most_cut)
    if worst is None:
        return
    share = f"{100 * worst.share:.2g} %"
    yield RuleHit(
        first_step=worst.first_step,
        last_step=worst.last_step,
        layer=worst.layer,
        summary=f"{worst.form} cuts off {share} of the {worst.what} of {worst.layer}.",
        cause=f"In {worst.over} of its last {count_text(worst.samples, 'sample')} these values "
        f"were beyond the largest number at the scale in use.{worst.others_text}",
        evidence=Evidence("saturated_share", worst.last_step, worst.last, worst.limit, "threshold"),
    )


@rule("AMP702", "fp8-underflow", Severity.WARNING)
def fp8_underflow(case: Case) -> Iterator[RuleHit]:
    """Operands whose cast below 16 bits flushes a large share to zero."""
    worst = _worst(case, lambda samples: samples.flushed, most_flushed)
    if worst is None:
        return
    yield RuleHit(
        first_step=worst.first_step,
        last_step=worst.last_step,
        layer=worst.layer,
        summary=f"{worst.form} flushes {100 * worst.share:.0f} % of the {worst.what} of "
        f"{worst.layer} to zero.",
        cause=f"In {worst.over} of its last {count_text(worst.samples, 'sample')} these values "
        f"were below half of the smallest number at the scale in use.{worst.others_text}",
        action="Use one scale per row or block for it, or keep it in bf16. "
        + leave_out(case.precision.layers, worst.layers),
        evidence=Evidence("flushed_share", worst.last_step, worst.last, worst.limit, "threshold"),
    )


class _WorstCast:
    """The operand that loses most in its casts, and the other layers that lose too much."""

    def __init__(self, case: Case, key: tuple[str, str], values: Sequence[float], limit: float):
        samples = case.casts.operands[key]
        self.layer, role = key
        self.what = _ROLE_NAMES[role]
        self.form = _cast_format(case, *key)
        self.limit = limit
        over = [step for step, share in zip(samples.steps, values, strict=True) if share > limit]
        self.over, self.samples = len(over), len(samples.steps)
        self.first_step, self.last_step = over[0], samples.steps[-1]
        self.share, self.last = statistics.median(values), values[-1]
        self.layers: list[str] = [self.layer]

    @property
    def others_text(self) -> str:
        """A sentence on other layers whose casts lose too much."""
        others = self.layers[1:]
        return f" The same holds for {list_text(others)}." if others else ""


def _worst(
    case: Case,
    values_of: Callable[[CastSamples], tuple[float, ...]],
    limit_of: Callable[[str], float],
) -> _WorstCast | None:
    losing = {}
    for key, samples in case.casts.operands.items():
        limit = limit_of(_cast_format(case, *key))
        values = values_of(samples)
        if is_lasting([share > limit for share in values]):
            losing[key] = statistics.median(values) / limit
    if not losing:
        return None
    ranked = sorted(losing, key=lambda key: -losing[key])
    first = ranked[0]
    worst = _WorstCast(
        case, first, values_of(case.casts.operands[first]), limit_of(_cast_format(case, *first))
    )
    worst.layers = list(dict.fromkeys(layer for layer, _ in ranked))
    return worst


def is_lasting(over: Sequence[bool]) -> bool:
    """Whether casts went wrong in most of the samples, in enough of them, and in the last."""
    count = sum(over)
    return count >= LEAST_SAMPLES and 2 * count > len(over) and over[-1]


def _cast_format(case: Case, layer: str, role: str) -> str:
    """The format to which casts bring a layer's operand, by its latest sample."""
    precision = case.precision.layers.get(layer)
    return (None if precision is None else precision.formats[ROLES.index(role)]) or "its format"


# Maxima of healthy runs vary by a factor of two from batch to batch.
STALE_FACTOR = 2.0
# Reduced maxima give equal scales to the bit; a foreign log may have rounded them.
APART = 1.001
# Transformer Engine's before the first maximum; later they are 448 or 57344 over a maximum.
FIRST_SCALE = 1.0


@rule("AMP703", "stale-scale", Severity.WARNING)
def stale_scale(case: Case) -> Iterator[RuleHit]:
    """Delayed scales that are too small, that a resume lost, or that differ between ranks."""
    yield from _outgrown(case)
    yield from _lost_at_resume(case)
    yield from _apart(case)


def _outgrown(case: Case) -> Iterator[RuleHit]:
    """Delayed scales that the newest maximum has outgrown."""
    outgrown = {
        name: values
        for name, (_, values) in case.casts.staleness.items()
        if is_lasting([STALE_FACTOR < value < math.inf for value in values])
    }
    if not outgrown:
        return
    worst = max(outgrown, key=lambda name: statistics.median(outgrown[name]))
    steps, values = case.casts.staleness[worst]
    over = [step for step, value in zip(steps, values, strict=True) if value > STALE_FACTOR]
    yield RuleHit(
        first_step=over[0],
        last_step=steps[-1],
        layer=worst,
        summary=f"The newest maximum of {worst} is {statistics.median(values):.2g} times what its "
        "scale can hold.",
        cause=f"In {len(over)} of its last {count_text(len(steps), 'sample')} the scale came from "
        "older, smaller maxima.",
        evidence=Evidence("amax_staleness", steps[-1], values[-1], STALE_FACTOR, "threshold"),
    )


def _lost_at_resume(case: Case) -> Iterator[RuleHit]:
    """Delayed scales that began anew when the training was resumed."""
    renewed = {
        name: (first, case.casts.scales[name][-1])
        for name, first in case.casts.after_resume.items()
        if _is_new(first) and name in case.casts.scales and not _is_new(case.casts.scales[name][-1])
    }
    if not renewed:
        return
    layer, (first, last) = next(iter(renewed.items()))
    of_all = len(case.casts.after_resume)
    yield RuleHit(
        first_step=first.step,
        last_step=first.step,
        layer=layer,
        summary=f"The delayed scales of {count_text(len(renewed), 'layer')} of {of_all} started "
        f"again when the run was resumed at step {first.step}.",
        cause=f"There every scale of {list_text(list(renewed))} is {FIRST_SCALE:.0f}, as before "
        "the first maximum: the checkpoint's scales and maxima were not loaded. Small values, "
        "mostly gradients, became zero in that step, and large ones were cut off.",
        action="Save the whole `model.state_dict()` and load all of it: the scales and maxima "
        "stand under keys that end in `_extra_state`, which `strict=False` or a filter may drop.",
        evidence=tuple(
            Evidence(f"{role}_scale", first.step, then, later, "later")
            for role, then, later in zip(ROLES, first.least, last.least, strict=True)
            if not (math.isnan(then) or math.isnan(later))
        ),
    )


def _is_new(scales: CastScales) -> bool:
    """Whether these delayed scales are those of a layer that has seen no maximum yet."""
    recorded = [scale for scale in (*scales.least, *scales.largest) if not math.isnan(scale)]
    return bool(recorded) and all(scale == FIRST_SCALE for scale in recorded)


def _apart(case: Case) -> Iterator[RuleHit]:
    """Delayed scales that differ between ranks for one layer."""
    apart = {
        name: max(map(_times_apart, samples))
        for name, samples in case.casts.scales.items()
        if is_lasting([_times_apart(scales) > APART for scales in samples])
    }
    if not apart:
        return
    worst = max(apart, key=lambda name: apart[name])
    samples = [scales for scales in case.casts.scales[worst] if _times_apart(scales) > APART]
    last = samples[-1]
    at = max(range(len(ROLES)), key=lambda at: _ratio(last, at))
    yield RuleHit(
        first_step=samples[0].step,
        last_step=last.step,
        layer=worst,
        severity=Severity.INFO,
        summary=f"The ranks use different delayed scales in {count_text(len(apart), 'layer')}.",
        cause=f"Those of {worst} lie {_times_apart(last):.3g} times apart: the maxima are not "
        "reduced over these ranks.",
        action="Nothing, if each rank casts for itself. If a tensor is cast and then gathered "
        "(tensor or sequence parallel, an all-gather in fp8), or if training is to go on the same "
        "with other ranks, reduce the maxima over all ranks that share the layer (`fp8_group`, "
        "`reduce_amax=True`).",
        evidence=Evidence(
            f"{ROLES[at]}_scale", last.step, last.largest[at], last.least[at], "of another rank"
        ),
    )


def _times_apart(scales: CastScales) -> float:
    return max(_ratio(scales, at) for at in range(len(ROLES)))


def _ratio(scales: CastScales, at: int) -> float:
    """The largest delayed scale of the ranks over the least; 1 where an operand has none."""
    least, largest = scales.least[at], scales.largest[at]
    return largest / least if least > 0 and math.isfinite(largest) else 1.0


@rule("AMP706", "scale-frozen", Severity.ERROR)
def scale_frozen(case: Case) -> Iterator[RuleHit]:
    """Delayed scales that stay as they are because the newest maximum is not finite."""
    frozen = [
        name
        for name, (_, values) in case.casts.staleness.items()
        if is_lasting([math.isinf(value) for value in values])
    ]
    if not frozen:
        return
    steps, values = case.casts.staleness[frozen[0]]
    bad = [step for step, value in zip(steps, values, strict=True) if math.isinf(value)]
    yield RuleHit(
        first_step=bad[0],
        last_step=steps[-1],
        layer=frozen[0],
        summary=f"The scale of {list_text(frozen)} is frozen: its newest maximum is not finite.",
        cause=f"So it is in {len(bad)} of its last {count_text(len(steps), 'sample')}; a maximum "
        "that is nan or inf keeps the scale that was there.",
        evidence=Evidence("amax_staleness", steps[-1], "not finite"),
    )
