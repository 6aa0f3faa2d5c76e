"""Tell people, wherever they are, what was found while a run goes on.

    run -> Follower (engine, news) -> letter -> Post (rate limit, retries) -> service

A finding is told of once, and again when it has become worse; warnings and errors only. A service
that fails is tried again later and never stops the watching. Services' addresses hold credentials:
they are never shown, only what kind of service it is. `watch_run` is the same for Python: it calls
a function of yours instead.
"""

from __future__ import annotations

from ampwatch.alerts.desk import Desk
from ampwatch.alerts.follower import Follower
from ampwatch.alerts.post import Post
from ampwatch.alerts.services import open_services
from ampwatch.alerts.watching import RunWatch, watch_run

__all__ = [
    "Desk",
    "Follower",
    "Post",
    "RunWatch",
    "open_services",
    "watch_run",
]
