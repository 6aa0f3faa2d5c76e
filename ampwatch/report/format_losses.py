"""What each layer loses in formats below sixteen bits: those in use, and alternatives.

The limits are those of AMP701 to AMP703, so a view marks what a finding would name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ampwatch.diagnosis.rules.precision import STALE_FACTOR, most_cut, most_flushed
from ampwatch.report.last_layer_values import FORMAT_FACTS, Readable, last_known
from ampwatch.rows import WHAT_IF_FORMATS

# A layer's operands, by the beginning of their columns.
ROLES = {"input": "input", "weight": "weight", "grad": "gradient"}
# What if: the formats as people call them.
FORMAT_NAMES = dict(zip(("E4M3", "E5M2", "MXFP8", "NVFP4"), WHAT_IF_FORMATS, strict=True))
# fp8 as commonly used: gradients need range more than digits.
USUAL_FP8 = {"input": "E4M3", "weight": "E4M3", "grad": "E5M2"}

CAST_COLUMNS = tuple(f"{role}_{kind}_share" for role in ROLES for kind in ("flushed", "saturated"))
STALENESS = "amax_staleness"
WHAT_IF_COLUMNS = {
    (role, name): f"{role}_what_if.{at}" for role in ROLES for at, name in enumerate(FORMAT_NAMES)
}


@dataclass(frozen=True, slots=True)
class Loss:
    """What one format does to one operand, as shares of its values that are not zero."""

    form: str
    flushed: float
    cut: float = 0.0

    @property
    def excess(self) -> float:
        """The loss divided by the limit."""
        return max(self.flushed / most_flushed(self.form), self.cut / most_cut(self.form))

    @property
    def is_too_much(self) -> bool:
        """Whether a finding would name it if it lasted."""
        return self.excess > 1


@dataclass(frozen=True, slots=True)
class CastLayer:
    """A layer that multiplies below sixteen bits, and what its casts lose by role."""

    layer: str
    order: int
    recipe: str  # in words
    forms: Mapping[str, str]  # by role; roles that are not cast are left out
    losses: Mapping[str, Loss]  # those measured
    staleness: float | None  # newest maximum over the room of a delayed scale; inf: not finite

    @property
    def excess(self) -> float:
        """The loss of the worst role, divided by its limit."""
        stale = 0.0 if self.staleness is None else self.staleness / STALE_FACTOR
        return max(stale, *(loss.excess for loss in self.losses.values()), 0.0)

    @property
    def is_stale(self) -> bool:
        """Whether its delayed scale no longer fits."""
        return self.staleness is not None and self.staleness > STALE_FACTOR


@dataclass(frozen=True, slots=True)
class WhatIfLayer:
    """A layer, and what each format would flush of its operands."""

    layer: str
    order: int
    losses: Mapping[tuple[str, str], Loss]  # by role and format; what cannot be is left out

    def worst(self, name: str, role: str | None = None) -> tuple[str, Loss] | None:
        """The share that a format would flush of a role, or of the worst role."""
        losses = [
            (one, loss)
            for (one, form), loss in self.losses.items()
            if form == name and role in {None, one}
        ]
        return max(losses, key=lambda pair: pair[1].flushed, default=None)

    def usual(self) -> tuple[str, Loss] | None:
        """The share that fp8 as commonly used would flush of the worst role."""
        pairs = [(role, self.losses.get((role, name))) for role, name in USUAL_FP8.items()]
        known = [(role, loss) for role, loss in pairs if loss is not None]
        return max(known, key=lambda pair: pair[1].flushed, default=None)


_Layer = TypeVar("_Layer", CastLayer, WhatIfLayer)


def cast_layers(run: Readable, step: int | None) -> list[CastLayer]:
    """The layers that are cast, as last sampled at a step or at the end, in forward order."""
    columns = ("order", *FORMAT_FACTS, *CAST_COLUMNS, STALENESS)
    facts_of = last_known(run, columns, step)
    cast = (_cast_layer(name, facts) for name, facts in facts_of.items() if name)
    return _in_order(one for one in cast if one.forms or one.losses)


def _cast_layer(name: str, facts: Mapping[str, Any]) -> CastLayer:
    forms = {role: str(facts[f"{role}_format"]) for role in ROLES if facts.get(f"{role}_format")}
    losses = {}
    for role in ROLES:
        flushed, cut = (_share(facts.get(f"{role}_{kind}_share")) for kind in _KINDS)
        if flushed is not None or cut is not None:
            losses[role] = Loss(forms.get(role, ""), flushed or 0.0, cut or 0.0)
    staleness = facts.get(STALENESS)
    recipe = formats_text(facts)
    return CastLayer(name, facts.get("order") or 0, recipe, forms, losses, staleness)


_KINDS = ("flushed", "saturated")


def what_if_layers(run: Readable, step: int | None) -> list[WhatIfLayer]:
    """The layers as last sampled in other formats, at a step or at the end, in forward order."""
    found = last_known(run, ("order", *WHAT_IF_COLUMNS.values()), step)
    told = (_what_if_layer(name, facts) for name, facts in found.items() if name)
    return _in_order(one for one in told if one.losses)


def _what_if_layer(name: str, facts: Mapping[str, Any]) -> WhatIfLayer:
    losses = {}
    for (role, form), column in WHAT_IF_COLUMNS.items():
        share = _share(facts.get(column))
        if share is not None:
            losses[role, form] = Loss(FORMAT_NAMES[form], share)
    return WhatIfLayer(name, facts.get("order") or 0, losses)


def _share(value: float | None) -> float | None:
    """A share of lost values that is a number."""
    return value if value is not None and math.isfinite(value) else None


def _in_order(layers: Iterable[_Layer]) -> list[_Layer]:
    return sorted(layers, key=lambda one: (one.order, one.layer))


# --- the formats in words -------------------------------------------------------------------------

_ROLES_OF_FACTS = ("input", "weight", "gradient")


def formats_text(facts: Mapping[str, Any]) -> str:
    """The formats in which a layer multiplies, equal ones named once; empty if none is narrow."""
    texts = [_short(facts.get(name)) for name in FORMAT_FACTS]
    if not any(texts):
        return ""
    if len(set(texts)) == 1:
        return texts[0]
    if texts[0] and texts[0] == texts[1]:
        return f"{texts[0]}, gradient {_beside(texts[0], texts[2])}"
    return ", ".join(
        f"{role} {text or 'wide'}" for role, text in zip(_ROLES_OF_FACTS, texts, strict=True)
    )


def _beside(forward: str, gradient: str) -> str:
    """A gradient's format; only its element type if the rest is as in the forward pass."""
    family, *rest = forward.split()
    own, *others = gradient.split() or ["wide"]
    same = own == family == "fp8" and rest[1:] == others[1:]
    return others[0] if same else gradient or "wide"


def _short(text: Any) -> str:
    """`float8_e4m3fn/rowwise/dynamic` as `fp8 e4m3 rowwise`; delayed scales are named."""
    parts = str(text or "").split("/")
    known = [part for part in parts if part not in {"", "dynamic"}]
    return " ".join(known).replace("float8_e4m3fn", "fp8 e4m3").replace("float8_", "fp8 ")
