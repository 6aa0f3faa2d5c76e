"""Ways to damage bytes, and to put into JSON what nobody expects there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

_ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 10**30, 1e308, -1e-320,
    float("nan"), float("inf"), "", "x" * 5000, "\x00", "../../etc/passwd", "/dev/zero", "\ud800",
    "NaN", [], {}, [[]], [[1]], {"": {}}, ["a", 1, None], {"a": [1 << 70]},
)  # fmt: skip


def damaged(data: bytes, chance: random.Random, most: int = 4) -> bytes:
    """Bits flipped, bytes lost, doubled, overwritten or zeroed, or the end cut off."""
    part = bytearray(data)
    for _ in range(chance.randrange(1, most + 1)):
        if not part:
            break
        chance.choice(_HARMS)(part, chance.randrange(len(part)), chance)
    return bytes(part)


def flipped(data: bytes, chance: random.Random) -> bytes:
    """One bit, no more: what a checksum must see."""
    part = bytearray(data)
    _flip(part, chance.randrange(len(part)), chance)
    return bytes(part)


def _flip(part: bytearray, at: int, chance: random.Random) -> None:
    part[at] ^= 1 << chance.randrange(8)


def _lose(part: bytearray, at: int, chance: random.Random) -> None:
    del part[at : at + chance.randrange(1, 200)]


def _double(part: bytearray, at: int, chance: random.Random) -> None:
    part[at:at] = part[at : at + chance.randrange(1, 200)]


def _overwrite(part: bytearray, at: int, chance: random.Random) -> None:
    size = min(chance.choice([1, 2, 4, 8]), len(part) - at)
    part[at : at + size] = chance.choice(
        [b"\x00" * size, b"\xff" * size, b"\x7f" * size, chance.randbytes(size)]
    )


def _zero(part: bytearray, at: int, chance: random.Random) -> None:
    size = min(chance.choice([64, 512, 4096]), len(part) - at)
    part[at : at + size] = bytes(size)


def _zero_end(part: bytearray, at: int, chance: random.Random) -> None:
    size = min(4096, len(part))
    part[-size:] = bytes(size)


def _cut(part: bytearray, at: int, chance: random.Random) -> None:
    del part[at:]


def _grow(part: bytearray, at: int, chance: random.Random) -> None:
    part += chance.randbytes(chance.randrange(1, 5000))


_HARMS: tuple[Callable[[bytearray, int, random.Random], None], ...] = (
    _flip, _flip, _flip, _lose, _double, _overwrite, _overwrite, _zero, _zero_end, _cut, _grow,
)  # fmt: skip


def hostile_json(chance: random.Random, facts: Any) -> str:
    """The facts as JSON text, with some values, keys or all of it replaced."""
    value = json.loads(facts) if isinstance(facts, str) else json.loads(json.dumps(facts))
    for _ in range(chance.randrange(1, 4)):
        value = forged(value, chance)
    text = json.dumps(value)
    if chance.random() < 0.03:
        text = "[" * chance.choice([100, 5000, 100_000]) + text
    return text


def forged(value: Any, chance: random.Random) -> Any:
    """The same, with one place somewhere in it changed."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: held for name, held in value.items() if name != key}
        if chance.random() < 0.05:
            return {**value, chance.choice(["", "steps", "x", "-1", "٣"]): value[key]}
        return {**value, key: forged(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            return value[:at] + value[at + 1 :]
        if chance.random() < 0.1:
            return value[: at + 1] + value[at:]
        return [*value[:at], forged(value[at], chance), *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
        return value + chance.choice([-value - 1, -1, 1, 1 << 20, 1 << 33])
    return chance.choice(_ODD_VALUES)
