"""A failure in one part of a page is reported there, and the rest of the page goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import streamlit as st
from html_text import said

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


def show_problem(sentence: str) -> None:
    """Draw a sentence on the page that says what is wrong and what to do."""
    st.html(f'<div class="aw-problem">{said(sentence)}</div>')
