"""Accelerate: one line after `accelerator.prepare`."""

from __future__ import annotations

from typing import Any

from ampwatch.integrations.framework_watch import attach_parts
from ampwatch.probe import NoWatch, Watch


def attach(accelerator: Any, model: Any, optimizer: Any, **options: Any) -> Watch | NoWatch:
    """Watch an Accelerate loop: what `accelerator.prepare` returned, and the accelerator itself.

    `options` are those of `ampwatch.attach`, and `guard`, True or a dict of `ampwatch.guard`'s
    arguments. Without a scaler (bf16, fp32) the loss is what
    `watch.log(loss=loss)` is told before `optimizer.step()`.
    """
    scaler = accelerator.scaler
    return attach_parts(scaler, model, optimizer, options)
