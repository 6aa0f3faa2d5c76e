"""The probe: what runs beside a training loop. The only room, with integrations, that knows torch.

    attach ─> scaler ─┐
              hooks  ─┴─> loop ─> records ─> courier ─> digest ─> codec ─> log and feed

What runs on the training thread only captures; what computes runs on the courier's thread. Nothing
raises into the training, nothing synchronises a device, and no bit of the training changes.
"""

from ampwatch.probe.attach import attach
from ampwatch.probe.guard import Guard, warn
from ampwatch.probe.watch import NoWatch, Watch, live_watches

__all__ = ["Guard", "NoWatch", "Watch", "attach", "live_watches", "warn"]
