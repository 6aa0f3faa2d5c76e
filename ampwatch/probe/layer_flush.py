"""Whether half precision flushed every gradient of a step to zero. Pure.

A histogram of zeros cannot tell: zeros are also what a loss that is exactly 0, a dead unit or a
matrix that was born zero leaves. So the rest of the step is asked. Only where no half gradient
anywhere in the model is above zero is it flushing: what comes down from the loss must be too small
for the format. Float32 gradients on the way show that; else the loss itself, times its scale and
shared out among the model's outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ampwatch.probe.exponents import FLOAT16_SMALLEST

_WIDE = ("float32", "float64")


def flushed_everywhere(
    gradients: Iterable[tuple[str | None, float]], outputs: int, scaled_loss: float | None
) -> bool:
    """From each gradient's format and largest magnitude.

    `outputs` is how many values the last layer in half precision gave.
    """
    known = list(gradients)
    half = [amax for dtype, amax in known if dtype == "float16"]
    if not half or any(half):  # nan counts as something
        return False
    if any(0.0 < amax < FLOAT16_SMALLEST for dtype, amax in known if dtype in _WIDE):
        return True
    if scaled_loss is None or not math.isfinite(scaled_loss):
        return False
    return 0.0 < abs(scaled_loss) < outputs * FLOAT16_SMALLEST
