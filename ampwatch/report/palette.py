"""One meaning, one colour, in every picture; the dark ones keep the hue and stand out from a dark
page. Always beside a word, never by colour alone.
"""

from __future__ import annotations

LIGHT = {
    "scale": "#2456C8", "skip": "#C8401E", "norm": "#0E8A6D", "rate": "#7A4FB5",
    "advice": "#A87300", "ink": "#1B1F24", "muted": "#6B7280", "grid": "#E7E9E5",
    "page": "#FDFDFB", "side": "#F3F4F2", "healthy": "#0E8A6D", "time": "#4A7A8C",
}  # fmt: skip
DARK = {
    "scale": "#7FA6FF", "skip": "#FF8763", "norm": "#45CBA5", "rate": "#BC9BF2",
    "advice": "#F0B73A", "ink": "#E8EAED", "muted": "#98A1AC", "grid": "#2B3138",
    "page": "#14171B", "side": "#1B1F24", "healthy": "#45CBA5", "time": "#8FC1D4",
}  # fmt: skip

VERDICT_COLOR = {
    "failing": "skip",
    "warning": "advice",
    "healthy": "healthy",
    "incomplete": "muted",
}
SEVERITY_COLOR = {"error": "skip", "warning": "advice", "info": "muted"}
