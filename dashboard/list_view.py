"""How the table of runs is looked at: the address's part `list`, written and read here."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

GROUPS = ("verdict", "finding", "model", "tag", "day")


@dataclass(frozen=True, slots=True)
class ListView:
    """What a reader chose; parts that are missing or malformed are as at the beginning."""

    find: str = ""
    sort: str = ""  # a column's key, behind "-" if the greatest comes first
    group: str = ""
    origin: str = ""
    folded: tuple[str, ...] = ()  # groups

    def text(self) -> str | None:
        """As a part of the address; None if nothing was chosen."""
        parts = {
            "find": self.find,
            "sort": self.sort,
            "group": self.group,
            "from": self.origin,
            "folded": self.folded,
        }
        return urlencode({name: part for name, part in parts.items() if part}, doseq=True) or None


def view_in(text: str | None) -> ListView:
    """What a part of the address says."""
    parts = parse_qs(text or "", keep_blank_values=True, errors="replace", max_num_fields=None)
    group = parts.get("group", [""])[-1]
    return ListView(
        find=parts.get("find", [""])[-1],
        sort=parts.get("sort", [""])[-1],
        group=group if group in GROUPS else "",
        origin=parts.get("from", [""])[-1],
        folded=tuple(parts.get("folded", ())),
    )
