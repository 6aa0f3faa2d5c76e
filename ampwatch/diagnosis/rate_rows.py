"""A block's steps as the learning rate's rows."""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.learning_rate import Rows, rows_of
from ampwatch.diagnosis.signals import Flags, Floats

_SAME = (
    "loss", "lr", "lr_base", "micro_batches", "scale", "grad_norm", "update_norm", "param_norm",
    "input_amax",
)  # fmt: skip
_RENAMED = {
    "applied_norm": "grad_norm_applied",
    "max_ratio": "max_update_ratio",
    "alignment": "update_alignment",
}


def rate_rows(block: Block, forward: Flags) -> Rows:
    """One row a step; that a number is not finite is said of the loss and the forward.

    A step that the loop left out is a skip: its loss was not finite, whether it is recorded or not.
    """
    columns = block.columns
    return rows_of(
        step=block.step,
        skipped=block.skipped | block.left_out,
        loss_bad=(block.loss_known & ~np.isfinite(columns["loss"])) | block.left_out,
        act_amax=_largest_activations(block),
        forward_bad=forward == 0,
        **{name: columns[name] for name in _SAME},
        **{name: columns[source] for name, source in _RENAMED.items()},
    )


def _largest_activations(block: Block) -> Floats:
    """Each step's largest activation where it was sampled."""
    layers = block.layers
    at, there = block.layer_entries
    amax = layers.numbers["act_amax"]
    keep = there & np.isfinite(amax)
    result = np.full(len(block), -np.inf)
    np.maximum.at(result, at[keep], amax[keep])
    return result
