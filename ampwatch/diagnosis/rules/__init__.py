"""The rules, by code: every `@rule` of the modules in this folder. A new one needs no other line.

The modules are found by name, and not imported one by one, so that none can be forgotten.
"""

from __future__ import annotations

import importlib
import pkgutil

from ampwatch.diagnosis.registry import Rule

_MODULES = [importlib.import_module(f"{__name__}.{each.name}") for each in
            pkgutil.iter_modules(__path__)]  # fmt: skip
_FOUND = {
    one.code: one for module in _MODULES for one in vars(module).values() if isinstance(one, Rule)
}
RULES: tuple[Rule, ...] = tuple(_FOUND[code] for code in sorted(_FOUND))
