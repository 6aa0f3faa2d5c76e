"""Words and numbers as the page shows them; all of it HTML-safe, for names are data."""

from __future__ import annotations

import html
import re
import time
from html.parser import HTMLParser

from ampwatch.diagnosis.value_text import short_dtype, shortened
from ampwatch.printable_text import printable
from ampwatch.report.html_file import said

__all__ = [
    "age_text",
    "exact_html",
    "plain_text",
    "rate_text",
    "said",
    "said_lines",
    "short_dtype",
    "shortened",
    "ticking_age",
]


def said_lines(text: str) -> str:
    """Text of several lines as safe HTML."""
    return "<br>".join(said(line) for line in text.splitlines())


def exact_html(text: str) -> str:
    """A text as safe HTML, exactly as written, line by line: 2^16 stays 2^16."""
    return "<br>".join(html.escape(printable(line)) for line in text.splitlines())


def rate_text(value: float) -> str:
    """A learning rate as text, as people write it: 1.2e-4, 0.003."""
    if not value or abs(value) >= 1e-3:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def age_text(seconds: float) -> str:
    """How long ago something was, as text: `0.4 s`, `12 s`, `5 min`, `3 h`, `2 days`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for size, unit in ((86400 * 2, "days"), (3600 * 2, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / {'days': 86400, 'h': 3600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"


def ticking_age(seconds: float) -> str:
    """An age as HTML that the browser counts on until the server writes a newer one."""
    return (
        f'<span class="aw-age" data-age="{seconds:.1f}" data-at="{time.monotonic_ns()}">'
        f"{age_text(seconds)}</span>"
    )


_HEADS = frozenset(("figcaption", "h1", "h2", "summary"))
_BLOCKS = _HEADS | {"br", "dd", "details", "div", "dt", "li", "p", "section", "tr"}
_CELLS = frozenset(("td", "th"))
_LEFT_OUT = frozenset(("button", "script", "select", "style", "svg"))


class _PlainText(HTMLParser):
    """Collects the words of a page's HTML: a line a block, cells of a row side by side.

    What is drawn for the eye alone, or only in a case that has not come, is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._unread = ""  # the tag of what is left out,
        self._depth = 0  # and how many of them are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that opens."""
        given = dict(attrs)
        is_unread = given.get("aria-hidden") == "true" or given.get("class") == "aw-none"
        if self._unread:
            self._depth += tag == self._unread
        elif tag in _LEFT_OUT or is_unread:
            self._unread, self._depth = tag, 1
        if tag in _BLOCKS:
            self.parts.append("\n")
        elif tag in _CELLS:
            self.parts.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        """Note a tag that closes."""
        if tag == self._unread:
            self._depth -= 1
            self._unread = self._unread if self._depth else ""
        self.parts.append("\n" if tag in _BLOCKS else " " if tag not in _CELLS else "")

    def handle_data(self, data: str) -> None:
        """Keep words that are not left out."""
        if not self._unread:
            self.parts.append(re.sub(r"\s+", " ", data))


def plain_text(page: str) -> str:
    """The words of a page's HTML as plain text, for programs and readers of screens."""
    reader = _PlainText()
    reader.feed(page)
    lines = ("".join(reader.parts)).split("\n")
    told = (re.sub(r" +", " ", line).strip().removeprefix("| ") for line in lines)
    return "\n".join(line for line in told if line.strip("| "))
