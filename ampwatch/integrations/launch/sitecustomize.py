"""Read by Python as it starts under `ampwatch run`: prepares the watch, then steps aside.

This folder stands on PYTHONPATH, so a launcher's children find it too. Whatever goes wrong here is
said in a line; the script runs as it would have run alone.
"""

import importlib
import sys
from pathlib import Path


def _prepare() -> None:
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    try:
        importlib.import_module("ampwatch")
    except ImportError:  # a checkout that nobody installed
        sys.path.append(str(here.parents[2]))
    try:
        importlib.import_module("ampwatch.integrations.script_watch").prepare()
    except ImportError as error:
        if sys.stderr is not None:
            sys.stderr.write(
                f"ampwatch: this Python cannot watch ({error}); the script runs alone.\n"
            )


def _give_way() -> None:
    """Let Python read the user's own sitecustomize, if there is one, after ours."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_prepare()
_give_way()
