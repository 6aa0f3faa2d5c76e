"""All rules, by code: every one that a module of this folder holds. A new one needs no other line.

The modules are found by name, and not imported one by one, so that none can be forgotten.
"""

from __future__ import annotations

import importlib
import pkgutil

from ampwatch.diagnosis.rule import Rule

_MODULES = [
    importlib.import_module(f"{__name__}.{at.name}") for at in pkgutil.iter_modules(__path__)
]
_FOUND = {one for module in _MODULES for one in vars(module).values() if isinstance(one, Rule)}
RULES: tuple[Rule, ...] = tuple(sorted(_FOUND, key=lambda rule: rule.code))
