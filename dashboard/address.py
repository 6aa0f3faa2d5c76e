"""The page's address: all that its reader chose, so that it can be shared as a link.

Back, Forward and a reload restore from it what was seen. A click may ask for another page, to
which the present one then switches.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from ampwatch.fleet.summary import MODEL, PERSON, TAG

_COMPARED = ("runs", "base", "by", "outcome", "order")
# Kept for another run: how a run is looked at.
_KEPT = ("quantity", "map", "view", "values", *_COMPARED, "list", "fleet", "find", "kinds")
_TEXTS = ("layer", "format", "role", *_KEPT, "alert")
_NAMES = ("run", "rank", "span", "step", *_TEXTS, "follow")

_OFF = "off"


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of the page's address; those that are missing or malformed are None."""

    run: str | None = None
    rank: int | None = None  # all of them
    span: tuple[int, int] | None = None
    step: int | None = None
    layer: str | None = None
    quantity: str | None = None  # of the layers
    format: str | None = None  # of the layers: fp16, fp8 or what if; the one that fits the run
    role: str | None = None  # of a layer's values: input, weight or grad; the worst of them
    map: str | None = None  # of the layers: order, folds, what is searched for
    view: str | None = None  # of the chart: axes, smoothing, lines that are hidden
    values: str | None = None  # the user's values that are drawn
    runs: str | None = None  # those compared,
    base: str | None = None  # the one that the others are compared with,
    by: str | None = None  # the setting of a sweep over them,
    outcome: str | None = None  # and what came of them
    order: str | None = None  # by which of their table is sorted; "-" before it is from the end
    list: str | None = None  # of the table of runs: filter, order, groups
    fleet: str | None = None  # of the fleet: since when, grouped by what, what is left
    find: str | None = None  # what is searched for among the settings
    kinds: str | None = None  # what the timeline shows; all of it
    follow: bool = True  # what is live
    alert: str | None = None  # the receiver whose settings are being changed

    def of_run(self, run: str) -> Address:
        """The address for another run; only how runs are looked at is kept."""
        if run == self.run:
            return self
        kept = {name: getattr(self, name) for name in _KEPT}
        return Address(run=run, follow=self.follow, **kept)

    def parameters(self) -> dict[str, str]:
        """The address as the query parameters of a link."""
        texts = {
            "run": self.run,
            "rank": None if self.rank is None else str(self.rank),
            "span": None if self.span is None else f"{self.span[0]}-{self.span[1]}",
            "step": None if self.step is None else str(self.step),
            **{name: getattr(self, name) for name in _TEXTS},
            "follow": None if self.follow else _OFF,
        }
        return {name: text for name, text in texts.items() if text is not None}


# A part of the address is encoded as a whole: in it only what separates its own parts is escaped.
_COMMA = str.maketrans({char: f"%{ord(char):02X}" for char in "%,"})
_AMPERSAND = str.maketrans({char: f"%{ord(char):02X}" for char in "%&=+;"})


def _pairs_text(parts: Mapping[str, str | Iterable[str]]) -> str | None:
    """Named values as one part of the address; those that are empty are left out."""
    pairs = [
        f"{name}={one.translate(_AMPERSAND)}"
        for name, value in parts.items()
        for one in ([value] if isinstance(value, str) else value)
        if one
    ]
    return "&".join(pairs) or None


_NONE = "-"  # a choice that was made and is empty


def names_text(names: Iterable[str]) -> str:
    """Several names as one part of the page's address."""
    text = ",".join(name.translate(_COMMA) for name in names)
    if text == _NONE:  # a single name that is the mark for none
        return f"%{ord(_NONE):02X}"
    return text or _NONE


def names_in(text: str) -> list[str]:
    """The names that a part of the page's address holds."""
    return [] if text == _NONE else [unquote(part) for part in text.split(",")]


def link(page: str, address: Address) -> str:
    """The relative link to a page of the dashboard; the overview's path is empty."""
    return f"./{page}?{urlencode(address.parameters())}"


def read() -> Address:
    """Read the page's address as it is now."""
    query = _query()
    return Address(
        run=query.get("run"),
        rank=_number(query.get("rank", "")),
        span=_span(query.get("span", "")),
        step=_number(query.get("step", "")),
        **{name: query.get(name) for name in _TEXTS},
        follow=query.get("follow") != _OFF,
    )


def write(address: Address) -> None:
    """Write the page's address in place, without loading anything."""
    wanted, query = address.parameters(), _query()
    if wanted == {name: query[name] for name in _NAMES if name in query}:
        return
    latest = _latest_change()
    earlier = (*latest.earlier, query) if latest else (query,)
    st.session_state[_CHANGE] = _Change(wanted, earlier, time.monotonic())
    st.query_params.from_dict(wanted)


def change(**parts: Any) -> None:
    """Change some parts of the page's address and keep the others."""
    write(replace(read(), **parts))


# --- what the browser has not heard of yet --------------------------------------------------------

_CHANGE = "latest change of the address"
_LATE_S = 5.0  # as late a request may come that set out before a change


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the address by the server, of which requests on their way know nothing."""

    wanted: dict[str, str]
    earlier: tuple[dict[str, str], ...]  # what they may say
    at_s: float


def _query() -> dict[str, str]:
    """The address's parameters as its reader's last choice left them.

    With each request the browser sends the address that it shows, and Streamlit believes it: one
    that set out before the latest change would take it back. At times Streamlit also loses the
    message that tells the browser of a change, so it is told again.
    """
    query = st.query_params.to_dict()  # at once: each single look at it takes a lock
    latest = _latest_change()
    if latest is None or query == latest.wanted:
        return query
    if query in latest.earlier and not _is_back_or_forward():
        st.query_params.from_dict(latest.wanted)
        return latest.wanted
    del st.session_state[_CHANGE]  # its reader went elsewhere
    return query


def _latest_change() -> _Change | None:
    latest: _Change | None = st.session_state.get(_CHANGE)
    return latest if latest and time.monotonic() - latest.at_s < _LATE_S else None


def _is_back_or_forward() -> bool:
    """Whether this run answers the browser's Back or Forward; Streamlit 1.65 and newer know it."""
    return getattr(get_script_run_ctx(), "is_history_navigation", False)


def _span(text: str) -> tuple[int, int] | None:
    first, _, last = text.partition("-")
    low, high = _number(first), _number(last)
    return (low, high) if low is not None and high is not None and low < high else None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 16 else None


# --- the parts `list` and `fleet` -----------------------------------------------------------------

RUNS_GROUPS = ("verdict", "finding", "model", "tag", "day")


@dataclass(frozen=True, slots=True)
class RunsView:
    """How a reader chose to see the runs table; missing or malformed parts have their defaults."""

    find: str = ""
    sort: str = ""  # a column's key, behind "-" if the greatest comes first
    group: str = ""
    origin: str = ""
    folded: tuple[str, ...] = ()  # groups
    columns: tuple[str, ...] = ()  # those shown, in their order; the usual ones

    def text(self) -> str | None:
        """The runs table's view as a part of the address; None if nothing was chosen."""
        parts = {
            "find": self.find,
            "sort": self.sort,
            "group": self.group,
            "from": self.origin,
            "folded": self.folded,
            "columns": ",".join(self.columns),
        }
        return _pairs_text(parts)


def runs_view_in(text: str | None) -> RunsView:
    """The runs table's view, read from a part of the address."""
    parts = _parts(text)
    group = parts["group"][-1]
    return RunsView(
        find=parts["find"][-1],
        sort=parts["sort"][-1],
        group=group if group in RUNS_GROUPS else "",
        origin=parts["from"][-1],
        folded=tuple(parts.get("folded", ())),
        columns=tuple(filter(None, parts["columns"][-1].split(","))),
    )


def _parts(text: str | None) -> defaultdict[str, list[str]]:
    """What a part of the address holds by name; an empty text where it holds nothing."""
    parts = parse_qs(text or "", keep_blank_values=True, errors="replace", max_num_fields=None)
    return defaultdict(lambda: [""], parts)


WEEK = "week"
FLEET_GROUPS = (WEEK, MODEL, PERSON, TAG)  # beside the settings' own names
FLEET_SINCE = ("", "7", "30", "90")  # days; all of them


@dataclass(frozen=True, slots=True)
class FleetView:
    """How a reader chose to see the fleet page; missing or malformed parts have their defaults."""

    since: str = ""
    group: str = WEEK
    code: str = ""  # only runs with this finding
    only: str | None = None  # only runs of this group

    def text(self) -> str | None:
        """The fleet page's view as a part of the address; None if nothing was chosen."""
        parts = {"since": self.since, "code": self.code}
        parts |= {} if self.group == WEEK else {"group": self.group}
        text = _pairs_text(parts)
        if self.only is None:
            return text
        only = f"only={self.only.translate(_AMPERSAND)}"  # an empty one is a group too
        return only if text is None else f"{text}&{only}"


def fleet_view_in(text: str | None) -> FleetView:
    """The fleet page's view, read from a part of the address."""
    parts = _parts(text)
    since = parts["since"][-1]
    return FleetView(
        since=since if since in FLEET_SINCE else "",
        group=parts["group"][-1] or WEEK,
        code=parts["code"][-1],
        only=parts["only"][-1] if "only" in parts else None,
    )


# --- going from page to page ----------------------------------------------------------------------


_PAGES, _WANTED = "pages", "go to"


def set_pages(pages: Mapping[str, Any]) -> None:
    """Note which pages the dashboard has."""
    st.session_state[_PAGES] = pages


def ask_for_page(page: str, to: Address | None = None, **parts: Any) -> None:
    """Go to a page once the present one calls `switch_if_asked`, with these parts of the address.

    The address is left as it is until then: it would be a page of its own for Back.
    """
    st.session_state[_WANTED] = page, replace(to or read(), **parts)


def switch_if_asked() -> None:
    """Go to the page of the dashboard that was asked for, if any."""
    wanted = st.session_state.pop(_WANTED, None)
    if wanted is not None:
        page, where = wanted
        st.switch_page(st.session_state[_PAGES][page], query_params=where.parameters())


def page_link(page: str, words: str, **parts: Any) -> None:
    """Draw a link to a page in these words; it keeps the address but for these parts."""
    query = replace(read(), **parts).parameters()
    st.page_link(st.session_state[_PAGES][page], label=words, query_params=query)
