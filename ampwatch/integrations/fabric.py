"""Lightning Fabric: one line after `fabric.setup`."""

from __future__ import annotations

from typing import Any

from ampwatch.integrations.framework_watch import attach_parts
from ampwatch.probe import NoWatch, Watch


def attach(fabric: Any, model: Any, optimizer: Any, **options: Any) -> Watch | NoWatch:
    """Watch a Fabric loop: what `fabric.setup(model, optimizer)` returned, and the fabric itself.

    `options` are those of `ampwatch.attach`, and `guard`: True, or a dict of the arguments of
    `ampwatch.guard`. Without a scaler (bf16, fp32) pass the loss to `watch.log(loss=loss)` before
    `optimizer.step()`.
    """
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return attach_parts(scaler, model, optimizer, options)
