"""AMP704 and AMP705: layers that should not run below sixteen bits, or that should and do not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.precision_history import LayerPrecision
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.rules.half_precision import PRECISION_SAMPLES
from ampwatch.diagnosis.value_text import count_text, list_text

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
def sensitive_layer_quantised(case: Case) -> Iterator[Seen]:
    """A head, first layer, router or embedding that runs below 16 bits."""
    layers = case.precision.layers
    found = {name: why for name, why in _sensitive(layers).items() if layers[name].is_quantised}
    if not found:
        return
    first = next(iter(found))
    kept = [name for name, one in layers.items() if one.is_quantised]
    told = "; ".join(f"{name} is {why}" for name, why in list(found.items())[:_MOST_TOLD])
    form = _format_of(layers[first])
    yield Seen(
        at=case.scale,
        layer=first,
        summary=f"{first} is {found[first]}, and multiplies in {form}.",
        cause=f"Of {count_text(len(kept), 'quantised layer')} "
        f"{count_text(len(found), 'is one', 'are some')} that is usually kept in bf16: {told}.",
        action=leave_out(layers, list(found)),
        evidence=Evidence("input_format", case.scale.last_step, form, "bfloat16", "usual"),
    )


_MOST_TOLD = 3
_MOST_LEFT_OUT = 10  # layers that an action names


def _sensitive(layers: Mapping[str, LayerPrecision]) -> dict[str, str]:
    """The layers that should not be quantised, and what each is; the head first."""
    ran = sorted((n for n, one in layers.items() if one.order >= 0), key=lambda n: layers[n].order)
    products = [name for name in ran if layers[name].flops or layers[name].is_quantised]
    found: dict[str, str] = {}
    if products and not _ends_block(products[-1], products, layers):
        found[products[-1]] = "the last matrix product of the model, its head"
    # A foreign log has no order of layers, and only the quantised ones.
    named = [*products, *(n for n, one in layers.items() if one.order < 0 and one.is_quantised)]
    found |= {n: "a head by its name" for n in named if _is_head(n) and n not in found}
    found |= {n: "a router by its name" for n in products if _is_router(n, layers)}
    embeds = [name for name in ran if "Embedding" in layers[name].kind]
    found |= {name: "an embedding" for name in embeds if name not in found}
    if products and products[0] not in found and not _is_in_row(products[0], products):
        early = any(layers[name].order < layers[products[0]].order for name in embeds)
        if not early:
            found[products[0]] = "the first layer of the model"
    return found


def _is_in_row(name: str, products: list[str]) -> bool:
    """Whether a layer is in a repeated block (`blocks.11.mlp.fc2`) and so fit to be quantised."""
    parts = name.split(".")
    for at, part in enumerate(parts[:-1]):
        if part.isdigit():
            before, after = ".".join(parts[:at]), ".".join(parts[at + 1 :])
            like = re.compile(rf"{re.escape(before)}\.?\d+\.{re.escape(after)}")
            if any(one != name and like.fullmatch(one) for one in products):
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
        before = "".join(f"{one}." for one in parts[:at])
        other = re.compile(rf"{re.escape(before)}(?!{part}\.)\d+\.")
        if part.isdigit() and any(other.match(one) for one in products):
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
        is_narrow or any(f"{one}.".startswith(f"{experts}.") for one in layers)
    )


def _format_of(one: LayerPrecision) -> str:
    return next(text for text in one.formats if text)


def leave_out(layers: Mapping[str, LayerPrecision], names: list[str]) -> str:
    """The action that leaves layers out of a quantisation, in the words of their library."""
    kinds = {layers[name].kind for name in names}
    kept = list_text(names, _MOST_LEFT_OUT)
    if any("Float8Linear" in kind for kind in kinds):
        return (
            f"Leave {kept} in bf16: have the module_filter_fn of convert_to_float8_training return "
            "False for them, by their full names."
        )
    if any("Linear" in kind and "TE" not in kind for kind in kinds):
        return (
            f"Leave {kept} in bf16: have the filter_fn of quantize_ return False for them, by "
            "their full names."
        )
    return (
        f"Run {kept} outside the low-precision autocast, or exclude them from the recipe by their "
        "full names."
    )


@rule("AMP705", "quantisation-matched-nothing", Severity.WARNING)
def quantisation_matched_nothing(case: Case) -> Iterator[Seen]:
    """A format below 16 bits was asked for, and no layer is quantised."""
    products = case.precision.products
    if not products or any(one.is_quantised for one in case.precision.layers.values()):
        return
    if case.precision.sampled_steps < PRECISION_SAMPLES:
        return
    asked = _asked(case)
    if asked is None:
        return
    dtypes = " or ".join(sorted({one.output_dtype for one in products.values()}))
    yield Seen(
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
