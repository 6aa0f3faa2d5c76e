"""What goes to the browser in one piece: a JSON header, then arrays as they lie in memory.

scripts/wire.js reads it. JSON alone would take the browser twenty times longer to parse.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 8  # a typed array must begin at a multiple of its item's size
KINDS = {"float64": np.float64, "float32": np.float32, "int32": np.int32}


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The header with where each array lies, and the arrays."""
    places, pieces, offset = {}, [], 0
    for name, values in arrays.items():
        kept = np.ascontiguousarray(values)
        if kept.dtype.name not in KINDS:
            kept = kept.astype(np.float64)  # JavaScript has no 64 bit integers to draw with
        places[name] = [kept.dtype.name, offset, len(kept)]
        pieces.append(_padded(kept.tobytes()))
        offset += len(pieces[-1])
    text = json.dumps({**header, "arrays": places}, allow_nan=False).encode()
    text = _padded(struct.pack("<I", len(text)) + text)
    return b"".join([text, *pieces])


def _padded(piece: bytes) -> bytes:
    return piece + b" " * (-len(piece) % ALIGNMENT)
