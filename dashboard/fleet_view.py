"""The state of the fleet page: the part `fleet` of the address, written and read here."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

from ampwatch.fleet.summary import MODEL, PERSON, TAG

WEEK = "week"
GROUPS = (WEEK, MODEL, PERSON, TAG)  # beside the settings' own names
SINCE = ("", "7", "30", "90")  # days; all of them


@dataclass(frozen=True, slots=True)
class FleetView:
    """What a reader chose; missing or malformed parts have their defaults."""

    since: str = ""
    group: str = WEEK
    code: str = ""  # only runs with this finding
    only: str | None = None  # only runs of this group

    def text(self) -> str | None:
        """As a part of the address; None if nothing was chosen."""
        parts = {"since": self.since, "code": self.code}
        parts |= {} if self.group == WEEK else {"group": self.group}
        found = {name: part for name, part in parts.items() if part}
        return urlencode(found | ({} if self.only is None else {"only": self.only})) or None


def view_in(text: str | None) -> FleetView:
    """The view that a part of the address describes."""
    parts = parse_qs(text or "", keep_blank_values=True, errors="replace", max_num_fields=None)
    since = parts.get("since", [""])[-1]
    return FleetView(
        since=since if since in SINCE else "",
        group=parts.get("group", [""])[-1] or WEEK,
        code=parts.get("code", [""])[-1],
        only=parts["only"][-1] if "only" in parts else None,
    )
