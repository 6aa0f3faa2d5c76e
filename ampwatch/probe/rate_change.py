"""Change an optimizer's learning rates by a factor, in what its schedules have yet to come too.

Param groups and schedulers keep rates of their own: a change of `lr` alone is undone by the next
`scheduler.step()`. The lines that a finding's action prints change the same names
(`diagnosis.code_to_paste`).
"""

from __future__ import annotations

import gc
from collections.abc import MutableMapping
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "eta_min")
LISTS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")


def multiply_rates(optimizer: Any, factor: float) -> None:
    """Multiply the optimizer's rates by a factor, and those that its schedulers hold."""
    changed: set[int] = set()  # a schedule may hold a group's own tensor
    for part in (*optimizer.param_groups, *map(vars, schedulers_of(optimizer))):
        _multiply(part, factor, changed)


def schedulers_of(optimizer: Any) -> list[Any]:
    """The schedulers that drive this optimizer, chained ones too.

    Torch keeps no list of them, so all objects are searched: a tenth of a second, perhaps, which
    only a change that somebody asked for is worth.
    """
    found = (one for one in gc.get_objects() if issubclass(type(one), LRScheduler))
    return [one for one in found if vars(one).get("optimizer") is optimizer]


def _multiply(part: MutableMapping[str, Any], factor: float, changed: set[int]) -> None:
    for name in RATES:
        if isinstance(part.get(name), (int, float, Tensor)):
            part[name] = _times(part[name], factor, changed)
    for name in LISTS:
        if isinstance(part.get(name), (list, tuple)):
            part[name] = [_times(rate, factor, changed) for rate in part[name]]


def _times(rate: Any, factor: float, changed: set[int]) -> Any:
    if not isinstance(rate, Tensor):
        return rate * factor
    if id(rate) not in changed:
        rate.mul_(factor)  # in place: a captured graph reads this very tensor
        changed.add(id(rate))
    return rate
