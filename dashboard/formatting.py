"""Words and numbers as the page shows them; all of it HTML-safe, for names are data."""

from __future__ import annotations

import html

from ampwatch.report import powers
from ampwatch.text import printable


def said(text: str) -> str:
    """Text as HTML: powers of two as people read them, and nothing interpreted."""
    return html.escape(powers(printable(text)))


def said_lines(text: str) -> str:
    """Text of several lines as HTML."""
    return "<br>".join(said(line) for line in text.splitlines())


def rate_text(value: float) -> str:
    """A learning rate as people write it: 1.2e-4, 0.003."""
    if not value or abs(value) >= 1e-3:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def shortened(name: str, most: int) -> str:
    """A layer's name, shortened in the middle: its ends tell layers apart."""
    if len(name) <= most:
        return name
    tail = (most - 1) * 2 // 3
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"


def age_text(seconds: float) -> str:
    """How long ago: `0.4 s`, `12 s`, `5 min`, `3 h`, `2 days`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for size, unit in ((86400 * 2, "days"), (3600 * 2, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / {'days': 86400, 'h': 3600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"


def bytes_text(part: int, whole: int | None = None) -> str:
    """Memory in the unit that fits: `7.5 of 16 GB` as cards are sold, `312 MB`."""
    size, unit = (2**30, "GB") if (whole or part) >= 2**30 else (2**20, "MB")
    text = f"{part / size:.3g}"
    return f"{text} {unit}" if whole is None else f"{text} of {whole / size:.3g} {unit}"


def short_dtype(name: str) -> str:
    """A data type as people write it: fp16, bf16."""
    return _SHORT_DTYPES.get(name, name)


_SHORT_DTYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip
