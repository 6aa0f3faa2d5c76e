"""Whether two diagnoses say the same."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from ampwatch.diagnosis import Diagnosis


def same(left: Diagnosis, right: Diagnosis) -> bool:
    """Equal in everything; numbers to 1e-9."""
    return _near(*(_plain(dataclasses.asdict(one)) for one in (left, right)))


def found(diagnosis: Diagnosis) -> list[tuple[Any, ...]]:
    """Its findings, and where they begin and end."""
    return [(f.code, f.severity, f.first_step, f.last_step) for f in diagnosis.findings]


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _near(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_near(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_near, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isfinite(left):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
    return left == right or (left != left and right != right)
