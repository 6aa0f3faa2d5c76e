"""The sidebar: which run, which page, and whether to follow what is live; the title of the tab."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping
from typing import Any

import address
import browser_component
import open_runs
import page_parts
import received_runs
import run_list
import streamlit as st
from html_text import age_text, said, shortened
from page_parts import guarded
from run_list import ListedRun, Origin, all_entries

from ampwatch.diagnosis import Diagnosis
from ampwatch.errors import AmpwatchError
from ampwatch.printable_text import printable
from ampwatch.report.painter import VERDICT_COLOR, VERDICT_MARK
from ampwatch.report.painter.message import pack

NOTES_SHOWN = 3
LISTED = 50  # runs in the switcher; a search finds the others
_EVERY_S = 3.0
_NAME_LENGTH = 30
_SHOWN, _RANK, _PAGE = "shown", "rank", "page in view"
_SWITCHER, _FIND, _IS_OPEN = "switcher", "runs searched for", "is the switcher open"
_HAS_ASKED = "whether the switcher asked for a page"
_ALL = "all"
_ICONS = {
    "Overview": "monitoring", "Findings": "troubleshoot", "Layers": "layers",
    "Timeline": "view_timeline", "Memory and device": "memory", "Settings": "tune",
    "Runs": "list", "Compare": "compare_arrows", "Fleet": "hub", "Alerts": "notifications",
}  # fmt: skip
OF_RUN = ("Overview", "Findings", "Layers", "Timeline", "Memory and device", "Settings")


def show(pages: Mapping[str, Any], page: str) -> None:
    """Draw the sidebar: runs, ranks, pages; note which page is in view."""
    run = run_list.find_run(address.read().run)
    st.session_state[_PAGE] = page
    st.session_state[_SHOWN] = _page_state(run)
    st.session_state.pop(page_parts.STANDING, None)
    st.session_state[page_parts.PACE] = page_parts.note_tab()
    with st.sidebar:
        st.html('<div class="aw-brand">ampwatch</div>')
        every_s = None if browser_component.is_tab_hidden() else _EVERY_S
        st.fragment(_draw_run_and_pages, run_every=every_s)(pages)


@guarded
def _draw_run_and_pages(pages: Mapping[str, Any]) -> None:
    """Draw the run and its pages; the page changes with the choice, and as a run begins or ends."""
    if page_parts.note_tab() != st.session_state.get(page_parts.PACE) and page_parts.follows_live():
        st.rerun()
    listed = run_list.current_list()
    run = listed.find(address.read().run)  # None if the named run is not there yet
    diagnosis = None if run is None else _diagnosis_of(run)
    standing = page_parts.standing_of(diagnosis)
    if st.session_state.setdefault(page_parts.STANDING, standing) != standing:
        st.rerun()
    verdict = "" if run is None else _verdict_of(run, diagnosis)
    _name_tab(run, verdict)
    if listed.choices:
        browser_component.draw(pack(_switcher(listed, run, verdict), {}), _SWITCHER, _acts())
    _choose_rank(run)
    _draw_pages(pages, standing[1])
    _draw_notes(listed)
    if _page_state(run) != st.session_state.get(_SHOWN):
        st.rerun()
    if st.session_state.pop(_HAS_ASKED, False):  # else a part of the page has, and switches itself
        address.switch_if_asked()


def _draw_pages(pages: Mapping[str, Any], count: int) -> None:
    findings = f":gray-badge[{count}]" if count else ""
    query = address.read().parameters()
    for key, names in (("nav-run", OF_RUN), ("nav-all", [n for n in pages if n not in OF_RUN])):
        with st.container(key=key):
            for name in names:
                label = f"{name} {findings}" if name == "Findings" and findings else name
                icon = f":material/{_ICONS[name]}:"
                st.page_link(pages[name], label=label, icon=icon, query_params=query)


def _draw_notes(listed: run_list.RunList) -> None:
    """Say what is wrong with the feed or the list, and that many tabs slow the refreshes."""
    feed, pace = received_runs.server_feed(), st.session_state[page_parts.PACE]
    notes = [*feed.trouble, *listed.problems[:NOTES_SHOWN], *feed.notes[-NOTES_SHOWN:]]
    if pace > 1 and address.read().follow:
        count = page_parts.tabs_in_view().count
        notes.append(f"{count} tabs are in view: each is refreshed every {pace:.0f} s.")
    for sentence in notes:
        st.html(f'<div class="aw-muted aw-note">{said(sentence)}</div>')


# --- the chosen run -------------------------------------------------------------------------------


def _diagnosis_of(run: ListedRun) -> Diagnosis | None:
    """The diagnosis of the chosen run: as its page shows it, if one of its pages is in view."""
    if st.session_state.get(_PAGE) not in OF_RUN:
        return None
    try:
        return open_runs.snapshot(run.path).diagnosis
    except (AmpwatchError, OSError):
        return None  # the page says why


def _verdict_of(run: ListedRun, diagnosis: Diagnosis | None = None) -> str:
    """The verdict on a listed run as far as it is known; empty if it is not."""
    if diagnosis is not None:
        return diagnosis.verdict.value
    made = all_entries().entry_of(run)
    return "" if made is None or made.entry is None else made.entry.verdict


def _name_tab(run: ListedRun | None, verdict: str) -> None:
    """Have the tab's title and icon say how the chosen run stands, for who looks elsewhere."""
    page = st.session_state.get(_PAGE)
    if run is None or page not in OF_RUN:
        verdict, name = "", str(page or "")
    else:
        name = f"{VERDICT_MARK.get(verdict, '')} {printable(run.full_title)}".strip()
    title = f"{name} - ampwatch".removeprefix(" - ")
    st.set_page_config(page_title=title, page_icon=_icon(verdict))


def _icon(verdict: str) -> str:
    """The tab's icon as SVG: a falling line, or the mark of a verdict in its colour."""
    color = _ICON_COLORS.get(VERDICT_COLOR.get(verdict, ""), "#2456C8")
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
        f'<rect width="16" height="16" rx="4" fill="{color}"/>'
        f'<path d="{_ICON_LINES.get(verdict, _FALL)}" fill="none" stroke="#fff" stroke-width="2" '
        'stroke-linecap="round" stroke-linejoin="round"/></svg>'
    )


_FALL = "M3 4h4v4h3v4h3"
_CROSS = "M5 5l6 6M11 5l-6 6"
_ICON_LINES = {
    "failing": _CROSS, "cut off": _CROSS, "warning": "M8 4v5M8 12v.1", "healthy": "M4 8.5l3 3 5-6",
}  # fmt: skip
_ICON_COLORS = {"skip": "#B63A1B", "advice": "#875D00", "healthy": "#0C725A", "muted": "#5F6572"}


def _choose_rank(run: ListedRun | None) -> None:
    """Let the reader choose one rank, or all over one another, in the sidebar."""
    ranks = () if run is None else run.run.ranks
    if len(ranks) < 2 or st.session_state.get(_PAGE) not in OF_RUN:
        return
    chosen = address.read().rank
    st.session_state[_RANK] = chosen if chosen in ranks else _ALL
    st.selectbox(
        "Ranks", [_ALL, *ranks], key=_RANK, on_change=_rank_chosen, label_visibility="collapsed",
        format_func=lambda one: f"all {len(ranks)} ranks" if one == _ALL else f"rank {one}",
    )  # fmt: skip


def _rank_chosen() -> None:
    rank = st.session_state[_RANK]
    address.change(rank=None if rank == _ALL else rank)


def _page_state(run: ListedRun | None) -> tuple[object, ...]:
    """What the sidebar changes of the page; when it does, the whole page is drawn anew."""
    chosen = address.read()
    if run is None:
        return chosen.rank, chosen.follow
    last_ns = 0 if run.live else run.run.last_time_ns
    return chosen.rank, chosen.follow, run.path, run.live, last_ns, run.run.ranks


# --- the switcher ---------------------------------------------------------------------------------


def _switcher(listed: run_list.RunList, run: ListedRun | None, verdict: str) -> dict[str, Any]:
    """The switcher's message: the chosen run, and what it is open to choose from."""
    find = str(st.session_state.get(_FIND, ""))
    rows, hidden = _rows_of(listed, find)
    if st.session_state.get(_IS_OPEN):
        all_entries().request(rows)
    name = printable(run.full_title) if run is not None else "Choose a run"
    return {
        "component": "switcher",
        "head": f"{verdict_mark(verdict)}<bdi>{said(shortened(name, _NAME_LENGTH))}</bdi>",
        "title": name,
        "rows": "".join(_row_html(row, run) for row in rows) or _nothing_html(find),
        "more": f"{hidden:,} more: type to find them" if hidden else "",
        "live": _live_html(run),
        "follow": address.read().follow,
    }


def _rows_of(listed: run_list.RunList, find: str) -> tuple[list[ListedRun], int]:
    """The runs to choose from, and how many more there are: those of these folders, if any is."""
    words = find.casefold().split()
    there = listed.from_origin(Origin.HERE) or listed.choices
    rows = [run for run in there if all(word in run.title.casefold() for word in words)]
    return rows[:LISTED], max(0, len(rows) - LISTED)


def _row_html(row: ListedRun, chosen: ListedRun | None) -> str:
    name = html.escape(row.name)
    link = html.escape(address.link("", address.read().of_run(row.name)))
    now = ' aria-current="true"' if chosen is not None and row.path == chosen.path else ""
    title = printable(row.full_title)
    seconds = (time.time_ns() - row.last_activity_ns) / 1e9
    age = '<span class="aw-live">live</span>' if row.live else age_text(max(10.0, seconds))
    return (
        f'<a href="{link}" data-go="{name}" data-key="go {name}" title="{html.escape(title)}"{now}>'
        f"{verdict_mark(_verdict_of(row))}<bdi>{said(shortened(title, 2 * _NAME_LENGTH))}</bdi>"
        f"<small>{age}</small></a>"
    )


def verdict_mark(verdict: str) -> str:
    """The mark of a verdict in its colour as HTML, and its word for who hears the page."""
    tone = VERDICT_COLOR.get(verdict, "muted")
    words = verdict or "not judged yet"
    return (
        f'<i class="aw-verdict-mark" style="color:var(--aw-{tone})" title="{words}" '
        f'aria-hidden="true">{VERDICT_MARK.get(verdict) or "○"}</i>'
        f'<span class="aw-aloud">{words}</span>'
    )


def _nothing_html(find: str) -> str:
    return f'<p class="aw-muted">No run is called {said(find)}.</p>'


def _live_html(run: ListedRun | None) -> str:
    """That a run is live, as HTML; how fresh it is says the band."""
    return '<span class="aw-live">live</span>' if run is not None and run.live else ""


def _acts() -> browser_component.Acts:
    """What is done for each thing that a reader may do in the switcher."""
    return {
        "go": _choose_run,
        "find": lambda text: st.session_state.update({_FIND: str(text)}),
        "open": lambda is_open: st.session_state.update({_IS_OPEN: bool(is_open)}),
        "follow": lambda follow: address.change(follow=bool(follow)),
    }


def _choose_run(name: Any) -> None:
    run = next((r for r in run_list.current_list().choices if r.name == str(name)), None)
    if run is None:
        return
    st.session_state.pop(_FIND, None)
    there = address.read().of_run(run.name)
    if st.session_state.get(_PAGE) in OF_RUN:
        address.write(there)
    else:
        address.ask_for_page(OF_RUN[0], there)
        st.session_state[_HAS_ASKED] = True
