"""Show a run, while it goes on, in what people already have.

    run's log -> Follower -> UpdateReader -> Update -> MirrorWorker (a thread a place) -> Mirror

Off unless asked for. The run's own log is the queue: a client that fails or hangs lags behind, is
tried again, and loses nothing but the time; nothing of it reaches the training. One small file a
client, each through that project's own library, loaded when it is asked for.
"""

from __future__ import annotations

from ampwatch.mirrors.mirror_worker import MirrorWorker, close_workers
from ampwatch.mirrors.mirroring import Mirroring, mirror
from ampwatch.mirrors.places import open_mirror, open_mirrors
from ampwatch.mirrors.readings import READINGS, Mirror, Points, Reading, Update

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
