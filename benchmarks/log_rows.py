"""Ready-made rows for the log's benchmark: steps and layers as a training makes them."""

from __future__ import annotations

import numpy as np

LAYERS = 100
LAYER_EVERY = 10
SCALARS = (
    "scale", "growth_tracker", "scale_after", "loss", "lr", "lr_base", "grad_norm",
    "grad_norm_applied", "param_norm", "update_norm", "update_norm_rel_error", "max_update_ratio",
    "max_update_layer", "input_amax", "micro_batches", "step_time_ms", "found_inf", "skipped",
    "stepped", "update_seen",
)  # fmt: skip
LAYER_VALUES = ("grad_norm", "grad_finite", "update_ratio")
NOISY = {"loss", "grad_norm", "grad_norm_applied", "param_norm", "update_norm", "max_update_ratio"}
FLAGS = {"found_inf", "skipped", "stepped", "update_seen", "grad_finite"}


def step_columns(first: int, count: int, chance: np.random.Generator) -> dict[str, np.ndarray]:
    """Steps as a training makes them: some numbers noisy, most constant or slowly moving."""
    steps = np.arange(first, first + count)
    times = 10**18 + steps * 1_500_000 + chance.integers(0, 9999, count)
    columns = {"step": steps, "time_ns": times}
    for name in SCALARS:
        columns[name] = np.full(count, 65536.0 if name.startswith("scale") else 1.0)
        if name in NOISY:
            columns[name] = np.float32(5 + chance.standard_normal(count)).astype(float)
    columns["growth_tracker"] = steps % 2000
    columns["max_update_layer"] = chance.integers(0, LAYERS, count)
    columns["step_time_ms"] = chance.gamma(9, 1 / 6, count)
    columns["lr"] = 0.1 * np.cos(steps / 1e7)
    columns["found_inf"] = columns["skipped"] = steps % 2000 == 1999
    columns["lrs"] = columns["lr"][:, None]
    columns["lr_bases"] = np.full((count, 1), 0.1)
    columns["autocast_dtype"] = columns["optimizer"] = np.ones(count)
    return columns


def layer_columns(steps: np.ndarray, chance: np.random.Generator) -> dict[str, np.ndarray]:
    """Three values a layer, as the ring holds them for every step."""
    count = len(steps) * LAYERS
    return {
        "step": np.repeat(steps, LAYERS),
        "layer": np.tile(np.arange(LAYERS), len(steps)),
        "grad_norm": chance.lognormal(0, 1, count).astype(np.float32),
        "grad_finite": np.ones(count, bool),
        "update_ratio": chance.lognormal(-7, 1, count).astype(np.float32),
    }


def as_lists(columns: dict[str, np.ndarray]) -> dict[str, list]:
    """As the courier has them: Python numbers, collected a step at a time."""
    lists = {name: values.tolist() for name, values in columns.items()}
    return {name: list(map(bool, v)) if name in FLAGS else v for name, v in lists.items()}
