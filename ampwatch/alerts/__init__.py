"""Tell people, wherever they are, what was found while a run goes on.

    run -> Follower -> alert -> Delivery (rate limit, retries) -> service

A finding is reported once, and again when it worsens; warnings and errors only. A service that
fails is tried again later and never stops the watching. Services' addresses hold credentials: they
are never shown, only what kind of service it is. `watch_run` is the same for Python: it calls a
function of yours instead.
"""

from __future__ import annotations

from ampwatch.alerts.delivery import Delivery, open_services
from ampwatch.alerts.session import RunAlerts, RunWatch, alert_session, watch_run

__all__ = [
    "Delivery",
    "RunAlerts",
    "RunWatch",
    "alert_session",
    "open_services",
    "watch_run",
]
