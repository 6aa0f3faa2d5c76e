"""One meaning, one colour, everywhere, in a light and a dark theme; and the page's own look."""

from __future__ import annotations

from pathlib import Path

from ampwatch.report.palette import DARK, LIGHT, SEVERITY_COLOR, VERDICT_COLOR

__all__ = ["DARK", "LIGHT", "PALETTE", "SEVERITY_COLOR", "VERDICT_COLOR", "style"]

FONT = "Source Sans, Source Sans Pro, system-ui, sans-serif"
PALETTE = {"light": {**LIGHT, "font": FONT}, "dark": {**DARK, "font": FONT}}

_STYLE = Path(__file__).with_name("style.css")


def style() -> str:
    """The page's style sheet, with the palette as variables that follow the theme."""
    names = "".join(f"--aw-{name}:light-dark({LIGHT[name]},{DARK[name]});" for name in LIGHT)
    return f"<style>:root{{{names}}}{_STYLE.read_text(encoding='utf-8')}</style>"
