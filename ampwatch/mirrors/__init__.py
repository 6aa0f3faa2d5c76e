"""Show runs in other tools while they go on: W&B, MLflow, TensorBoard and others.

    run's log -> Follower -> UpdateReader -> Update -> MirrorWorker (one thread a place) -> Mirror

Mirrors are off unless asked for. The run's own log is the queue: a client that fails or hangs lags
behind and is tried again; no row is lost and the training is not affected. One small file for each
client; its library is loaded when somebody asks for it.
"""

from __future__ import annotations

from ampwatch.mirrors.mirroring import (
    Mirror,
    Mirroring,
    MirrorWorker,
    close_workers,
    mirror,
    open_mirror,
    open_mirrors,
)
from ampwatch.mirrors.updates import READINGS, Points, Reading, Update

__all__ = [
    "READINGS",
    "Mirror",
    "MirrorWorker",
    "Mirroring",
    "Points",
    "Reading",
    "Update",
    "close_workers",
    "mirror",
    "open_mirror",
    "open_mirrors",
]
