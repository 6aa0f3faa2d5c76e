"""ampwatch: find out why mixed-precision training goes wrong, and what to change.

Call `ampwatch.attach(scaler, model)` in a training loop, and `ampwatch.open_run(path)` afterwards.
Importing this module loads none of torch, pyarrow, zmq, streamlit and plotly: each name loads its
package when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampwatch.alerts import watch_run as watch_run
    from ampwatch.errors import AmpwatchError as AmpwatchError
    from ampwatch.fleet import judge as fleet
    from ampwatch.fleet import publish as publish
    from ampwatch.follow import diagnose as diagnose
    from ampwatch.guarding import guard as guard
    from ampwatch.mirrors import mirror as mirror
    from ampwatch.probe import Watch as Watch
    from ampwatch.probe.attach import attach as attach
    from ampwatch.probe.float32_layers import run_in_float32 as run_in_float32
    from ampwatch.probe.learning_rates import set_learning_rate as set_learning_rate
    from ampwatch.recovery.restart_plan import plan as plan
    from ampwatch.store import Run as Run
    from ampwatch.store import list_runs as list_runs
    from ampwatch.store import open_run as open_run
    from ampwatch.testing import assert_healthy as assert_healthy

__version__ = "0.1.0"

_HOMES = {
    "attach": "ampwatch.probe",
    "Watch": "ampwatch.probe",
    "open_run": "ampwatch.store",
    "list_runs": "ampwatch.store",
    "Run": "ampwatch.store",
    "diagnose": "ampwatch.follow",
    "watch_run": "ampwatch.alerts",
    "mirror": "ampwatch.mirrors",
    "publish": "ampwatch.fleet",
    "fleet": "ampwatch.fleet",
    "plan": "ampwatch.recovery.restart_plan",
    "guard": "ampwatch.guarding",
    "set_learning_rate": "ampwatch.probe.learning_rates",
    "run_in_float32": "ampwatch.probe.float32_layers",
    "assert_healthy": "ampwatch.testing",
    "load_ipython_extension": "ampwatch.notebook",
    "AmpwatchError": "ampwatch.errors",
}

__all__ = [
    "AmpwatchError",
    "Run",
    "Watch",
    "assert_healthy",
    "attach",
    "diagnose",
    "fleet",
    "guard",
    "list_runs",
    "mirror",
    "open_run",
    "plan",
    "publish",
    "run_in_float32",
    "set_learning_rate",
    "watch_run",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ampwatch' has no attribute {name!r}")
    module = import_module(home)
    # A package by the name of a command is itself what is called.
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
