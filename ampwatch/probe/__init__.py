"""The probe: what runs beside a training loop. Only it and `integrations` may import torch.

    attach ─> scaler ─┐
              hooks  ─┴─> loop ─> records ─> courier ─> digest ─> codec ─> log and feed

The training thread only collects values; the courier's thread computes with them. Nothing raises
into the training, nothing synchronises a device, and no bit of the training changes.
"""

from ampwatch.probe.attach import attach
from ampwatch.probe.own_failures import Guard, warn
from ampwatch.probe.watch import NoWatch, Watch, live_watches

__all__ = ["Guard", "NoWatch", "Watch", "attach", "live_watches", "warn"]
