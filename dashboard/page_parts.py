"""The parts of a page: each is drawn by itself, refreshed while its run goes on, may fail alone.

A tab asks for what is new each second, and less often where many tabs are in view: a refresh costs
the server the same in each tab. So that its load does not grow with every colleague who looks, it
makes a few refreshes a second in all, and the tabs take turns.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import address
import browser_component
import open_runs
import streamlit as st
from html_text import plain_text, said
from open_runs import RunSnapshot
from streamlit.runtime.scriptrunner import get_script_run_ctx

from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.errors import AmpwatchError

P = ParamSpec("P")
_LOG = logging.getLogger("ampwatch.dashboard")


def guarded(show: Callable[P, None]) -> Callable[P, None]:
    """Decorator: if a part of a page fails, it says so in a sentence, and the page goes on."""

    @wraps(show)
    def part(*values: P.args, **named: P.kwargs) -> None:
        try:
            show(*values, **named)
        except (AmpwatchError, OSError) as error:
            show_problem(str(error))
        except Exception as error:  # noqa: BLE001  the last stop before the reader's eyes
            _LOG.exception("a part of the page failed")
            show_problem(
                f"This part of the page failed ({type(error).__name__}: {error}). The other pages "
                "still work, and `ampwatch report` says the same in the terminal; the server's "
                "log has the details."
            )

    return part


def refresh_run_part(
    draw: Callable[[str], None], path: str, usual_s: float, *, until_judged: bool = False
) -> None:
    """Draw a part of a run's page, and draw it anew while the run goes on, or is being judged."""
    run = open_runs.snapshot(path)
    goes_on = run.is_live or (until_judged and not run.is_judged)
    every_s = refresh_interval_s(usual_s) if goes_on and follows_live() else None
    st.fragment(guarded(draw), run_every=every_s)(path)


# --- what sidebar and page say of a run -----------------------------------------------------------

STANDING = "verdict and findings in the sidebar"


def standing_of(diagnosis: Diagnosis | None) -> tuple[str, int]:
    """The verdict on a run, and how many of its findings need attention."""
    if diagnosis is None:
        return "", 0
    weighty = sum(finding.severity is not Severity.INFO for finding in diagnosis.findings)
    return diagnosis.verdict.value, weighty


def agree_with_sidebar(run: RunSnapshot) -> None:
    """Draw sidebar and page together where the sidebar says something else of the run."""
    standing = standing_of(run.diagnosis)
    if st.session_state.get(STANDING, standing) != standing:  # none where there is no sidebar
        st.rerun()


def show_problem(sentence: str) -> None:
    """Draw a sentence on the page that says what is wrong and what to do."""
    st.html(f'<div class="aw-problem">{said(sentence)}</div>')


_MOST_FACTS = 60_000  # letters


def show_as_text(*parts: str) -> None:
    """Draw what this page says as plain text, in a closed expander: made from its own HTML."""
    text = "\n".join(plain_text(part) for part in parts)
    with st.expander("Facts as text"):
        st.text(text[:_MOST_FACTS])


# --- how often tabs ask ---------------------------------------------------------------------------


PACE = "refreshed every"
REFRESHES_A_SECOND = 5  # of all tabs together
LONGEST_S = 5.0  # between two refreshes of one tab
_FORGOTTEN_AFTER_S = 8.0  # a tab in view says each three seconds that it is there


class TabsInView:
    """The tabs of this server that were heard of just now; safe to be asked by many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[str, float] = {}

    def hear(self, tab: str) -> None:
        """Note that a tab is in view."""
        now = self._clock()
        with self._lock:
            self._heard[tab] = now
            self._heard = {t: s for t, s in self._heard.items() if now - s < _FORGOTTEN_AFTER_S}

    def leave(self, tab: str) -> None:
        """Note that a tab is no longer in view."""
        with self._lock:
            self._heard.pop(tab, None)

    @property
    def count(self) -> int:
        """How many tabs are in view."""
        now = self._clock()
        with self._lock:
            return sum(now - heard < _FORGOTTEN_AFTER_S for heard in self._heard.values())

    @property
    def interval_s(self) -> float:
        """Seconds between two refreshes of a tab, in whole seconds: the more tabs, the longer."""
        return min(LONGEST_S, max(1.0, float(math.ceil(self.count / REFRESHES_A_SECOND))))


# --- this tab -------------------------------------------------------------------------------------


def follows_live() -> bool:
    """Whether this tab follows a live run: not while the browser hides it."""
    return address.read().follow and not browser_component.is_tab_hidden()


def refresh_interval_s(usual: float) -> float:
    """Seconds between two refreshes of this tab: the page's usual ones, or more with many tabs."""
    return max(usual, st.session_state.get(PACE, usual))


@st.cache_resource(show_spinner=False)
def tabs_in_view() -> TabsInView:
    """The tabs in view, shared by all of them."""
    return TabsInView()


def note_tab() -> float:
    """Note whether this tab is in view; returns the seconds between its refreshes."""
    context = get_script_run_ctx()
    if context is not None:
        note = tabs_in_view().leave if browser_component.is_tab_hidden() else tabs_in_view().hear
        note(context.session_id)
    return tabs_in_view().interval_s
