"""What torch, Lightning and Fabric load of an installed ampwatch; under AMPWATCH=1 it watches.

pyproject.toml names these functions under the groups that the libraries look up. Without the
variable they do nothing, and load nothing. torch calls its function in every Python that imports
torch (2.5 and later): so ranks of a launcher, workers of Ray and a notebook are watched as
`ampwatch run` watches a script.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

from ampwatch.environment import switched_on

if TYPE_CHECKING:
    from types import ModuleType


def torch_backend() -> None:
    """Called as the import of torch ends: watch what this process trains."""
    if not switched_on() or "AMPWATCH_RUN_OPTIONS" in os.environ:  # there `ampwatch run` watches
        return
    try:
        watch = _script_watch()
        watch.when_torch_is_loaded(watch.begin)
    except Exception as error:  # noqa: BLE001  # torch would not be imported
        warnings.warn(f"ampwatch does not watch, though AMPWATCH=1: {error}", stacklevel=2)


def lightning_callbacks() -> list[Any]:
    """The callbacks that `lightning.pytorch` adds to each Trainer."""
    return _trainer_callbacks("lightning.pytorch")


def pytorch_lightning_callbacks() -> list[Any]:
    """The callbacks that `pytorch_lightning` adds to each Trainer."""
    return _trainer_callbacks("pytorch_lightning")


def fabric_callbacks() -> list[Any]:
    """The callbacks that Fabric adds to itself."""
    if not switched_on():
        return []
    _script_watch().begin()
    return [_FabricCallback()]


def _trainer_callbacks(package: str) -> list[Any]:
    if not switched_on():
        return []
    lightning = importlib.import_module("ampwatch.integrations.lightning")
    base = importlib.import_module(package).Callback
    return [lightning.callback_on(base)(**_script_watch().run_options())]


class _FabricCallback:
    """Shows the script's watch the scaler, which Fabric has made before it loads callbacks."""

    def on_after_setup(self, fabric: Any, **_: Any) -> None:
        """Called as `fabric.setup` has wrapped a model."""
        scaler = getattr(fabric.strategy.precision, "scaler", None)
        if scaler is not None:
            _script_watch().add_scaler(scaler)


def _script_watch() -> ModuleType:
    return importlib.import_module("ampwatch.integrations.script_watch")
