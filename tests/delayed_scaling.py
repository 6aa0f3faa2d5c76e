"""The gallery's stand-in for Transformer Engine's delayed scaling, by the name that tests use."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.gallery.delayed_scaling import (
    DelayedScaling,
    Format,
    Linear,
    Pass,
    State,
    fp8_autocast,
)

__all__ = ["DelayedScaling", "Format", "Linear", "Pass", "State", "fp8_autocast"]
