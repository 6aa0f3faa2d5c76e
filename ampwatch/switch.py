"""`AMPWATCH` in the environment: the one switch that turns watching off, for whoever asks."""

from __future__ import annotations

from collections.abc import Mapping


def switched_off(environment: Mapping[str, str]) -> bool:
    """Whether AMPWATCH=0 (or off, false, no) turns `attach` and `ampwatch run` into nothing."""
    return environment.get("AMPWATCH", "").strip().lower() in ("0", "off", "false", "no")
