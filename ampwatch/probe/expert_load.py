"""How the router of a mixture of experts spreads tokens, counted on the device in sampled steps.

A router is a module named as one, with experts beside it. What it chose is read from its output: a
count for each expert, a map of tokens and experts, or the numbers of the chosen experts. Of a gate
that gives scores only, the experts with the highest are taken, if its block says how many.
Otherwise nothing is known.

Counts are sums over sorted numbers: `bincount` and `scatter_add` synchronise, are refused by
`torch.use_deterministic_algorithms(True)`, or fail on a number that is no expert's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampwatch.probe.models import Layer, Survey
from ampwatch.probe.tensor_values import FLOATING, measurable, parameter_shape

_ROUTERS = frozenset({"router", "gate", "gating"})
_EXPERTS = "expert"  # how the name of what stands beside a router begins
# How blocks call the number of experts that a token is sent to.
_CHOICES = ("top_k", "topk", "num_experts_per_tok", "num_selected_experts", "k")
_NUMBERS = frozenset({torch.int64, torch.int32})
_READABLE = FLOATING | _NUMBERS | {torch.bool}


@dataclass(frozen=True, slots=True)
class Router:
    """Among how many experts a layer chooses, and how many for each token, if that is known."""

    experts: int
    choices: int | None


def routers_of(survey: Survey) -> Mapping[int, Router]:
    """The routers of the watched models, by the number of their layer."""
    with_experts = {one.parent for one in survey.layers if _last_part(one).startswith(_EXPERTS)}
    named = [one for one in survey.layers if _last_part(one) in _ROUTERS and not one.is_bare]
    found = {}
    for layer in named:
        if layer.parent is not None and layer.parent in with_experts:
            router = _router(layer.module, survey.layers[layer.parent].module)
            if router is not None:
                found[layer.number] = router
    return found


def _last_part(layer: Layer) -> str:
    return layer.name.rpartition(".")[2]


def _router(module: nn.Module | None, block: nn.Module | None) -> Router | None:
    if module is None:
        return None
    shapes = [parameter_shape(p) or () for p in module.parameters() if p.dtype in FLOATING]
    experts = next((shape[0] for shape in shapes if len(shape) > 1), 0)
    owners = [vars(owner) for owner in (module, block) if owner is not None]
    held = [owner.get(name) for owner in owners for name in _CHOICES]
    choices = next((k for k in held if type(k) is int and k > 0), None)
    chooses = experts > 1 and (choices is None or choices < experts)
    return Router(experts, choices) if chooses else None


def tokens_by_expert(router: Router, outputs: Sequence[Tensor]) -> Tensor | None:
    """How many tokens went to each expert in one call; None if the output does not tell."""
    for read in (_counted, _mapped, _numbered, _scored):
        for tensor in outputs:
            counts = read(router, tensor.detach()) if measurable(tensor, _READABLE) else None
            if counts is not None:
                return counts
    return None


def _counted(router: Router, output: Tensor) -> Tensor | None:
    is_count = output.dtype in _NUMBERS and output.shape == (router.experts,)
    return output.clone() if is_count else None


def _mapped(router: Router, output: Tensor) -> Tensor | None:
    # Two dimensions of whole numbers may be a map of first choices only (NLLB's router).
    least = 2 if output.dtype is torch.bool else 3
    if output.dtype in FLOATING or output.ndim < least or output.shape[-1] != router.experts:
        return None
    return (output != 0).reshape(-1, router.experts).sum(dim=0)


def _numbered(router: Router, output: Tensor) -> Tensor | None:
    if output.dtype not in _NUMBERS or output.ndim < 2:
        return None
    chosen = output.shape[-1]
    if chosen >= router.experts or chosen != (router.choices or chosen):
        return None
    edges = torch.arange(router.experts + 1, device=output.device, dtype=output.dtype)
    return torch.searchsorted(output.reshape(-1).sort().values, edges).diff()


def _scored(router: Router, output: Tensor) -> Tensor | None:
    is_score = output.dtype in FLOATING and output.ndim > 1 and output.shape[-1] == router.experts
    if not is_score or router.choices is None:
        return None
    return _numbered(router, output.topk(router.choices, dim=-1).indices)


def expert_columns(counts: Sequence[float]) -> dict[str, Any]:
    """What is written of a router in one step: the tokens of each expert, and how even they are."""
    tokens = np.array(counts)
    if not tokens.sum() > 0:
        return {}
    share = tokens / tokens.sum()
    used = share[share > 0]
    return {
        "expert_tokens": tokens.astype(np.int64).tolist(),
        "expert_most": float(share.max() * len(share)),
        "expert_entropy": float(-(used * np.log(used)).sum() / np.log(len(share))),
        "experts_idle": len(share) - len(used),
    }
