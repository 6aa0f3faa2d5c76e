"""Messages about findings while a run goes on.

    run -> Follower -> alert -> Delivery (rate limit, retries) -> service

Warnings and errors are reported once, and again when they worsen. A service that fails is tried
again later and never stops the watching. Addresses of services contain credentials: only the kind
of service is ever shown. `watch_run` calls a Python function instead of a service.
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
