"""Formats below sixteen bits as people write them: `fp8 e4m3 tensorwise, gradient e5m2`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMAT_FACTS = ("input_format", "weight_format", "grad_format")
_ROLES = ("input", "weight", "gradient")


def formats_text(facts: Mapping[str, Any]) -> str:
    """The formats in which a layer multiplies, equal ones named once; empty if none is narrow."""
    told = [_short(facts.get(name)) for name in FORMAT_FACTS]
    if not any(told):
        return ""
    if len(set(told)) == 1:
        return told[0]
    if told[0] and told[0] == told[1]:
        return f"{told[0]}, gradient {_beside(told[0], told[2])}"
    return ", ".join(f"{role} {text or 'wide'}" for role, text in zip(_ROLES, told, strict=True))


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
