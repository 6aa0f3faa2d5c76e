"""Words and numbers as the page shows them; all of it HTML-safe, for names are data."""

from __future__ import annotations

import html
import time

from ampwatch.diagnosis.value_text import short_dtype, shortened
from ampwatch.printable_text import printable
from ampwatch.report.html_file import said

__all__ = [
    "age_text",
    "exact_html",
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
