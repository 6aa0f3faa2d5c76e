"""The probe: what runs beside a training loop. Only it, `guarding` and `integrations` import torch.

    attach ─> scaler ─┐
              hooks  ─┴─> loop ─> records ─> courier ─> row_maker ─> codec ─> log and feed

The training thread only collects values; the courier's thread computes with them. Nothing raises
into the training, nothing synchronises a device, and no bit of the training changes.

- begin and end: attach, watch, run_identity, hydra_config, fatal_exceptions
- who calls us: watched_scaler, hooks
- the loop: loop, current_step, optimizer_turns, optimizers, backward_passes, records
- what is measured: tensor_values, norms, weight_updates, checkpoints, devices
- layers while they run: models, layer_observer, expert_load, formats
- rows, on the courier's thread: courier, row_maker, layer_rows, exponent_histogram, culprit
- what the user or a page may ask for: learning_rates, float32_layers, control
"""

from ampwatch.errors import warn
from ampwatch.probe.attach import attach
from ampwatch.probe.hooks import FailureShield
from ampwatch.probe.watch import NoWatch, Watch, live_watches

__all__ = ["FailureShield", "NoWatch", "Watch", "attach", "live_watches", "warn"]
