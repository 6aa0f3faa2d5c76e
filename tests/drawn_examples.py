"""How many examples a test draws in its own loop: a quarter where somebody waits, all in CI."""

from __future__ import annotations

import os

IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def examples(in_ci: int) -> range:
    """The numbers of the examples to draw; the fewer are the first of the more."""
    return range(in_ci if IS_THOROUGH else in_ci // 4)
