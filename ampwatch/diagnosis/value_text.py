"""Numbers, steps, lists and names in words, as findings and pages print them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_LONGEST_SCALE = 1e12  # printed in full below it
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def scale_text(scale: float | None) -> str:
    """A loss scale as a program prints it: `65,536`, `0.031`, `7.3e-24`."""
    if scale is None or math.isnan(scale):
        return "unknown"
    if 1 <= scale < _LONGEST_SCALE and scale == int(scale):
        return f"{scale:,.0f}"
    return two_digits(scale)


def two_digits(value: float) -> str:
    """A number with two significant digits: `0.07`, `3.0`, `29,000`, `7.3e-24`, `NaN`."""
    if math.isnan(value):
        return "NaN"
    if not math.isfinite(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if size >= 10:
        return f"{float(f'{value:.2g}'):,.0f}"
    text = f"{value:.2g}"
    return f"{text}.0" if text.lstrip("-").isdigit() and value else text


def rate_text(value: float) -> str:
    """A learning rate that is in use: two digits if they are all it has, else up to four."""
    text = two_digits(value)
    if abs(float(text.replace(",", "")) - value) <= 1e-6 * abs(value):
        return text
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}" if size < 1000 else f"{float(f'{value:.4g}'):,.0f}"


def powers(text: str) -> str:
    """The text with each 2^16 as 2¹⁶."""
    return re.sub(r"\b2\^(-?\d+)(?!\d*\.\d)", lambda m: "2" + m[1].translate(_SUPERSCRIPTS), text)


def count_text(count: int, one: str, many: str | None = None) -> str:
    """A count in words: `1 step`, `2 steps`, `1,000 steps`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share_text(part: int, whole: int) -> str:
    """A part of a whole in words: `3.2 %`."""
    return percent_text(part / whole if whole else 0.0)


def percent_text(share: float) -> str:
    """A share in words: `3.2 %`, `48 %`; 0 and 100 only if exact: 249 of 250 are 99.6 %."""
    percent = 100 * share
    if 0 < percent < 0.05:
        return "under 0.1 %"
    if 99.95 <= percent < 100:
        return "over 99.9 %"
    exact = percent < 10 or 99.5 <= percent < 100
    return f"{percent:.1f} %" if exact else f"{percent:.0f} %"


# Memory and files everywhere: decimal, as the makers of cards and disks count.
_BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def bytes_text(count: float) -> str:
    """A size in bytes in words: `512 MB`, `2.1 GB`, `640 bytes`."""
    for unit, size in _BYTE_UNITS:
        if abs(count) >= size:
            value = count / size
            return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.1f} {unit}"
    return f"{count:.0f} {'byte' if count == 1 else 'bytes'}"


def bytes_unit(most: float) -> tuple[str, float]:
    """The unit of bytes for an axis that goes up to so many, and the unit's size."""
    return next((one for one in _BYTE_UNITS if most >= one[1]), _BYTE_UNITS[-1])


def time_text(milliseconds: float) -> str:
    """A short time in words: `12.3 ms`, `850 ms`, `2.02 s`."""
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds / 1000:.3g} s"


def duration_text(milliseconds: float) -> str:
    """A duration in words: `42 s`, `19 min`, `3.5 h`, `2.1 days`; at least two of a unit."""
    for unit, size, digits in (("days", 86_400_000, 1), ("h", 3_600_000, 1), ("min", 60_000, 0)):
        if milliseconds >= 2 * size:
            return f"{milliseconds / size:.{digits}f} {unit}"
    return time_text(milliseconds)


def steps_text(first: int | None, last: int | None) -> str:
    """A range of steps in words: `at step 3`, `in steps 3 to 9`; empty if unknown."""
    if first is None:
        return ""
    return f"at step {first:,}" if last in {None, first} else f"in steps {first:,} to {last:,}"


def alone_text(rank: int | None) -> str:
    """Words for the one rank that a sentence is about; empty if there is none."""
    return "" if rank is None else f", on rank {rank} alone"


def limit_text(low: float, high: float) -> str:
    """Words on where the highest stable learning rate is estimated to lie."""
    span = f"{two_digits(low)} to {two_digits(high)}"
    return f"highest stable learning rate: {span}, estimated, not tested"


def go_back_text(rate: str, step: int) -> str:
    """Words that say to go back to the rate before a leap."""
    return f"Go back to {rate}, the rate before step {step:,}"


def list_text(names: Sequence[str], limit: int = 3) -> str:
    """A list in words: a few names, and how many more there are."""
    shown = ", ".join(names[:limit])
    more = len(names) - limit
    return f"{shown} and {more} more" if more > 0 else shown


# --- layers ---------------------------------------------------------------------------------------

_SHORT_DTYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


def shortened(name: str, most: int) -> str:
    """A layer's name in words of limited length: shortened in the middle, as its ends differ."""
    if len(name) <= most:
        return name
    tail = (most - 1) * 2 // 3
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"


def short_dtype(name: str) -> str:
    """A data type in the words of people: fp16, bf16."""
    return _SHORT_DTYPES.get(name, name)
