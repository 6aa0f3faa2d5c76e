"""Code to paste in an action: a sentence, and below it indented lines that can be copied."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_INDENT = "    "
_ROOT = "(root)"
# The attribute in which each wrapper keeps its model.
_WITHIN = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "_FabricModule": "module",
}
# Only half-precision tensors are cast: a boolean mask must stay one.
_ISLAND = """\
device = next(model.parameters()).device.type
def full(x):
    return x.float() if getattr(x, 'dtype', None) == torch.half else x
def island(*inputs, forward=layer.forward, **named):
    named = {name: full(x) for name, x in named.items()}
    with torch.autocast(device, enabled=False):
        return forward(*map(full, inputs), **named)
layer.forward = island"""

# Param groups and schedulers keep rates of their own: on a resume those that were saved would
# undo a change of `lr` alone. The mark is saved with them.
_RATE = """\
done = {mark!r}  # saved along: a later resume does not do it again
parts = [getattr(scheduler, 'scheduler', scheduler)]  # [] if there is no scheduler
for part in parts:
    parts += getattr(part, '_schedulers', [])
rates = {{'lr', 'initial_lr', 'max_lr', 'min_lr', 'swa_lr', 'eta_min'}}
lists = {{'base_lrs', 'max_lrs', 'min_lrs', '_last_lr'}}
for part in [*optimizer.param_groups, *map(vars, parts)]:
    if done not in part:
        for name in rates & part.keys():
            part[name] = part[name] * {factor}
        for name in lists & part.keys():
            part[name] = [rate * {factor} for rate in part[name]]
        part[done] = True"""
# When those lines are to run.
WHEN_LOADED = "once the optimizer and any scheduler are created and loaded"


@dataclass(frozen=True, slots=True)
class Root:
    """One of the models given to `attach`: the prefix of its layers' names, and its wrappers."""

    prefix: str = ""
    wrapped: tuple[str, ...] = ()  # class names, the outermost first


def with_lines(sentence: str, lines: str) -> str:
    """An action as text: the sentence that says what to do, and the indented code to paste."""
    return f"{sentence}\n{textwrap.indent(lines, _INDENT)}"


def words_and_lines(action: str) -> tuple[str, str]:
    """Split an action's text into its sentences and its code to paste, without the indent."""
    said = action.split("\n")
    words = [line for line in said if not line.startswith(_INDENT)]
    lines = [line for line in said if line.startswith(_INDENT)]
    return " ".join(words), textwrap.dedent("\n".join(lines))


def float32_island(layer: str, roots: Sequence[Root] = ()) -> str:
    """Code to paste that runs one layer in float32 under autocast, after the model is created."""
    root = (
        _root_of(layer, roots) or Root()
    )  # the record may not say: then one model without wrappers
    inner = layer.removeprefix(root.prefix).removeprefix(".") if root.prefix else layer
    model = "model" + "".join(f".{_WITHIN[name]}" for name in root.wrapped if name in _WITHIN)
    found = model if inner in {"", _ROOT} else f"{model}.get_submodule({inner!r})"
    return f"{_model_lines(root, roots)}layer = {found}.float()\n{_ISLAND}"


def rate_lines(factor: float, current: float | None = None) -> str:
    """Code to paste that multiplies every learning rate once, also in the rest of the schedule."""
    times = f"{factor:.4g}"
    mark = f"lr x {times}" if current is None else f"lr {current:.3g} x {times}"
    return _RATE.format(mark=mark, factor=times)


def _root_of(layer: str, roots: Sequence[Root]) -> Root | None:
    """For code to paste, the model given to `attach` that a layer belongs to; None if unknown."""
    fit = [r for r in roots if not r.prefix or f"{layer}.".startswith(f"{r.prefix}.")]
    return max(fit, key=lambda root: len(root.prefix), default=None)


def _model_lines(root: Root, roots: Sequence[Root]) -> str:
    """The line to paste that picks one of several models given to `attach`; else empty."""
    if not root.prefix:
        return ""
    is_list = [one.prefix for one in roots] == [str(at) for at in range(len(roots))]
    key = root.prefix if is_list else repr(root.prefix)
    return f"model = models[{key}]  # of those given to attach\n"


def roots_of(told: Any) -> tuple[Root, ...]:
    """The models that a `started` event names, for code to paste; empty if it names none."""
    given = told if isinstance(told, list) else []
    roots = [one for one in given if isinstance(one, dict) and isinstance(one.get("prefix"), str)]
    return tuple(Root(one["prefix"], _names(one.get("wrapped"))) for one in roots)


def _names(told: Any) -> tuple[str, ...]:
    return tuple(name for name in told if isinstance(name, str)) if isinstance(told, list) else ()
