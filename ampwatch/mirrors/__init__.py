"""Show a run, while it goes on, in what people already have.

    run's log -> Source (cursor, engine) -> Bulletin -> Line (a thread a place) -> Mirror -> client

Off unless asked for. The run's own log is the queue: a client that fails or hangs lags behind, is
tried again, and loses nothing but the time; nothing of it reaches the training. One small file a
client, each through that project's own library, loaded when it is asked for.
"""

from __future__ import annotations

from ampwatch.mirrors.line import Line, close_lines
from ampwatch.mirrors.mirroring import Mirroring, mirror
from ampwatch.mirrors.places import open_mirror, open_mirrors
from ampwatch.mirrors.readings import READINGS, Bulletin, Mirror, Points, Reading

__all__ = [
    "READINGS",
    "Bulletin",
    "Line",
    "Mirror",
    "Mirroring",
    "Points",
    "Reading",
    "close_lines",
    "mirror",
    "open_mirror",
    "open_mirrors",
]
