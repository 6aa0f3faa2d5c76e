"""Messages about findings while a run goes on.

    run -> Follower -> alert -> Delivery (rate limit, retries) -> service

Warnings and errors are reported once, and again when they worsen. A service that fails is tried
again later and never stops the watching. Addresses of services contain credentials: only the kind
of service is ever shown.

Who sends: `watch` and `record --notify URL`, for as long as they run; a dashboard and a recorder by
the settings that the user keeps (`AlertSender`). `watch_run` calls a Python function instead.
"""

from __future__ import annotations

from ampwatch.alerts.alert_sender import (
    AlertSender,
    RunAlerts,
    RunWatch,
    alert_session,
    watch_run,
)
from ampwatch.alerts.alert_settings import (
    KINDS,
    LEAST_WORDS,
    AlertSetting,
    add_setting,
    change_setting,
    masked_address,
    new_setting,
    read_settings,
    remove_setting,
    settings_path,
    what_text,
)
from ampwatch.alerts.delivery import (
    Delivery,
    Trial,
    is_web_hook,
    missing_library,
    open_services,
)
from ampwatch.alerts.sent_alerts import Outcome, read_outcomes

__all__ = [
    "KINDS",
    "LEAST_WORDS",
    "AlertSender",
    "AlertSetting",
    "Delivery",
    "Outcome",
    "RunAlerts",
    "RunWatch",
    "Trial",
    "add_setting",
    "alert_session",
    "change_setting",
    "is_web_hook",
    "masked_address",
    "missing_library",
    "new_setting",
    "open_services",
    "read_outcomes",
    "read_settings",
    "remove_setting",
    "settings_path",
    "watch_run",
    "what_text",
]
