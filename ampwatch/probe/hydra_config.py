"""The configuration that Hydra composed for this program, for run.json."""

from __future__ import annotations

import re
import sys
from typing import Any

from ampwatch.store.run_info import names_secret

_RESOLVER = re.compile(r"\$\{\s*([\w.]+)\s*:\s*([^,}]*)")
# Those that come with OmegaConf and Hydra and only read: `now` gives what it gave before.
_HARMLESS = re.compile(r"oc\.[\w.]+|hydra|now|python_version")


def hydra_config() -> dict[str, Any]:
    """What Hydra gave to the program, its interpolations resolved; empty for one without Hydra.

    A resolver of the program's own is not called: it may count, or draw random numbers. Its text
    stands in its place, and so does that of a secret of the environment.
    """
    hydra = sys.modules.get("hydra.core.hydra_config")
    if hydra is None or not hydra.HydraConfig.initialized():
        return {}
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    given = hydra.HydraConfig.get()._get_root()
    plain = OmegaConf.to_container(given, enum_to_str=True)
    config = OmegaConf.create(_kept_as_text(plain))
    OmegaConf.copy_cache(given, config)

    def resolved(key: Any) -> Any:
        try:
            value = config[key]
            is_one = not OmegaConf.is_config(value)
            return value if is_one else OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException:  # something is missing: the text stays
            return plain[key]

    return {key: resolved(key) for key in plain if key != "hydra"}


def _kept_as_text(value: Any) -> Any:
    """A configuration in which what may not be resolved is escaped."""
    if isinstance(value, dict):
        return {key: _kept_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_kept_as_text(item) for item in value]
    if not isinstance(value, str):
        return value
    called = _RESOLVER.findall(value)
    stays = any(not _HARMLESS.fullmatch(name) or names_secret(given) for name, given in called)
    return value.replace("${", r"\${") if stays else value
