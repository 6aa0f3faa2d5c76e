"""One meaning, one colour, everywhere, in a light and a dark theme; and the page's own look."""

from __future__ import annotations

from pathlib import Path

LIGHT = {
    "scale": "#2456C8", "skip": "#C8401E", "norm": "#0E8A6D", "rate": "#7A4FB5",
    "advice": "#A87300", "ink": "#1B1F24", "muted": "#6B7280", "grid": "#E7E9E5",
    "page": "#FDFDFB", "side": "#F3F4F2", "healthy": "#0E8A6D", "time": "#4A7A8C",
}  # fmt: skip
# The same hues, lifted until they stand out from a dark page.
DARK = {
    "scale": "#7FA6FF", "skip": "#FF8763", "norm": "#45CBA5", "rate": "#BC9BF2",
    "advice": "#F0B73A", "ink": "#E8EAED", "muted": "#98A1AC", "grid": "#2B3138",
    "page": "#14171B", "side": "#1B1F24", "healthy": "#45CBA5", "time": "#8FC1D4",
}  # fmt: skip
FONT = "Source Sans, Source Sans Pro, system-ui, sans-serif"
PALETTE = {"light": {**LIGHT, "font": FONT}, "dark": {**DARK, "font": FONT}}

# What a verdict and a severity look like: always beside the word, never by colour alone.
VERDICT_COLOR = {
    "failing": "skip",
    "warning": "advice",
    "healthy": "healthy",
    "incomplete": "muted",
}
SEVERITY_COLOR = {"error": "skip", "warning": "advice", "info": "muted"}

_STYLE = Path(__file__).with_name("style.css")


def style() -> str:
    """The page's style sheet, with the palette as variables that follow the theme."""
    names = "".join(f"--aw-{name}:light-dark({LIGHT[name]},{DARK[name]});" for name in LIGHT)
    return f"<style>:root{{{names}}}{_STYLE.read_text(encoding='utf-8')}</style>"
