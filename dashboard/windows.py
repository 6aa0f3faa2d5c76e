"""The layers' scale windows as the browser draws them."""

from __future__ import annotations

import numpy as np
from open_runs import Look
from theme import PALETTE
from wire import pack

from ampwatch.report.windows import telling_step, tightest, windows_at


def moment(look: Look, picked: int | None) -> int | None:
    """The step whose windows explain most: the one picked, else where the trouble begins."""
    return telling_step(look.diagnosis) if picked is None else picked


def message(look: Look, step: int | None) -> bytes | None:
    """What the browser draws; none where the run has no windows."""
    windows = windows_at(look, step)
    if not windows:
        return None
    cap = min(windows, key=lambda window: window.high)
    suspect = None if look.diagnosis is None else look.diagnosis.suspect
    red = cap if suspect is None or suspect.layer == cap.layer else None
    shown = tightest(windows)
    header = {
        "component": "windows",
        "rows": [
            {"layer": w.layer, "low": w.low, "high": w.high, "caps": w is red or w.is_empty}
            for w in shown
        ],
        "calm": look.diagnosis is None or look.diagnosis.calm is not None,
        "hidden": len(windows) - len(shown),
        "scale": _scale_now(look),
        "level": None if look.verdict is None or not look.verdict.established_scale
        else float(np.log2(look.verdict.established_scale)),
        "step": step,
        "palette": PALETTE,
    }  # fmt: skip
    return pack(header, {})


def _scale_now(look: Look) -> float | None:
    """The power of two that the record ends with, as the strip says it."""
    final = None if look.diagnosis is None else look.diagnosis.run.final_scale
    return float(np.log2(final)) if final else None
