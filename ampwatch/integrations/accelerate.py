"""Accelerate: one line after `accelerator.prepare`."""

from __future__ import annotations

from typing import Any

from ampwatch.integrations.framework_watch import attach_parts
from ampwatch.probe import NoWatch, Watch


def attach(accelerator: Any, model: Any, optimizer: Any, **options: Any) -> Watch | NoWatch:
    """Watch an Accelerate loop: what `accelerator.prepare` returned, and the accelerator itself.

    `options` are those of `ampwatch.attach`, and `guard`: True, or a dict of the arguments of
    `ampwatch.guard`. Without a scaler (bf16, fp32) pass the loss to `watch.log(loss=loss)` before
    `optimizer.step()`.
    """
    scaler = accelerator.scaler
    return attach_parts(scaler, model, optimizer, options)
