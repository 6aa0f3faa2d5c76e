"""The painter: scripts that draw charts in a browser, on the dashboard and in the HTML report.

The dashboard serves this folder and loads dashboard.js; a report holds report.js with all that it
imports. Both send the painter the same messages (message.py), so both show the same charts.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent

# One meaning, one colour, in every chart, and always beside a word: never by colour alone. The dark
# ones keep the hue and stand out from a dark page. Each is text too: all reach a contrast of 4.5 on
# the page and on the pale tones (a test computes it).
LIGHT = {
    "scale": "#2456C8", "skip": "#B63A1B", "norm": "#0C725A", "rate": "#7A4FB5",
    "advice": "#875D00", "ink": "#1B1F24", "muted": "#5F6572", "grid": "#E7E9E5",
    "page": "#FDFDFB", "side": "#F3F4F2", "healthy": "#0C725A", "time": "#416B7B",
}  # fmt: skip
DARK = {
    "scale": "#7FA6FF", "skip": "#FF8763", "norm": "#45CBA5", "rate": "#BC9BF2",
    "advice": "#F0B73A", "ink": "#E8EAED", "muted": "#98A1AC", "grid": "#2B3138",
    "page": "#14171B", "side": "#1B1F24", "healthy": "#45CBA5", "time": "#8FC1D4",
}  # fmt: skip
PALETTE = {"light": LIGHT, "dark": DARK}

VERDICT_COLOR = {
    "failing": "skip",
    "warning": "advice",
    "healthy": "healthy",
    "incomplete": "muted",
    "cut off": "advice",
}
# A shape beside the colour: failing and warning look alike to some.
VERDICT_MARK = {"failing": "✕", "warning": "▲", "healthy": "✓", "cut off": "✕"}
SEVERITY_COLOR = {"error": "skip", "warning": "advice", "info": "muted"}

# Several runs or ranks over one another: each has one colour and, where colours come round again,
# another kind of line, on all panels. None is that of what failed.
_LINE_COLORS = ("scale", "advice", "norm", "rate", "time", "ink")
_LINE_DASHES = ("solid", "dot", "dash")


def line_style(number: int) -> tuple[str, str]:
    """Colour and dash of the line of this run or rank."""
    count = len(_LINE_COLORS)
    return _LINE_COLORS[number % count], _LINE_DASHES[number // count % len(_LINE_DASHES)]


def style_sheet() -> str:
    """The charts' style, and the palette as variables that follow the light or dark theme."""
    return palette_style(":root") + (FOLDER / "painter.css").read_text("utf-8")


def palette_style(selector: str) -> str:
    """The palette as variables of an element, which follow its light or dark theme."""
    colors = "".join(f"--aw-{name}:light-dark({LIGHT[name]},{DARK[name]});" for name in LIGHT)
    return f"{selector}{{{colors}}}"


_IMPORT = re.compile(r'^import \{([^}]+)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|function|class) (\w+))", re.MULTILINE)


def bundled(entry: str) -> str:
    """A script with all that it imports, as one script; each file keeps a scope of its own."""
    scopes: dict[str, str] = {}
    _bundle(entry, scopes)
    return '"use strict";\n' + "".join(scopes.values())


def _bundle(name: str, scopes: dict[str, str]) -> None:
    text = (FOLDER / f"{name}.js").read_text("utf-8")
    for imported in _IMPORT.finditer(text):
        if imported[2] not in scopes:
            _bundle(imported[2], scopes)
    exports = ", ".join(_EXPORT.findall(text))
    body = _EXPORT.sub("", _IMPORT.sub(r"const {\1} = from_\2;", text))
    scopes[name] = f"const from_{name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n"
