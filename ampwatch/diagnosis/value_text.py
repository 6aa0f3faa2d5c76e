"""Numbers, steps, lists, names and evidence in words, as findings and pages print them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ampwatch.rows import Table, column

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
    return next((unit for unit in _BYTE_UNITS if most >= unit[1]), _BYTE_UNITS[-1])


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
    return f"Go back to {rate}, the learning rate before step {step:,}"


def list_text(names: Sequence[str], limit: int = 3) -> str:
    """A list in words: a few names, and how many more there are."""
    text = ", ".join(names[:limit])
    more = len(names) - limit
    return f"{text} and {more} more" if more > 0 else text


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


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that supports a finding, and what it is compared with.

    `signal` is the name of a column or a key of `_FORMS`; `against_is` says what the second number
    is: the median before, a threshold.
    """

    signal: str
    step: int | None
    value: float | str | None
    against: float | str | None = None
    against_is: str = ""


class _Form(NamedTuple):
    """How evidence of one signal is written: its label, its numbers, the word before its step."""

    label: str
    text: Callable[[float], str]
    when: str = "at"


def _number(value: float) -> str:
    """An evidence value with four digits, without an exponent for ordinary sizes."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _counted(label: str) -> _Form:
    return _Form(label, "{:,.0f}".format, "up to")


_FORMS = {
    "scale": _Form("loss scale", scale_text),
    "scale_low": _Form("smallest usable loss scale", scale_text),
    "metric": _Form("the metric", _number),
    "loss_peak": _Form("highest loss (median of a few steps)", _number, "from"),
    "onset": _Form("first step of the trouble", "{:,.0f}".format),
    "skipped": _counted("skipped steps"),
    "skipped_apart": _counted("steps that one optimizer alone skipped"),
    "overflows": _counted("overflows"),
    "spikes": _counted("spikes"),
    "lost_steps": _counted("steps spent on recoveries"),
    "left_out": _counted("steps that the loop left out"),
    "guard_actions": _counted("actions of the guard"),
    "layers_without_optimizer": _counted("layers that no optimizer has"),
    "layers_without_gradient": _counted("layers that no gradient reaches"),
    "gaps": _counted("gaps in the log"),
    "growths": _counted("doublings of the scale"),
    "resets": _counted("resets of the scale"),
    "scaler-replaced": _counted("new GradScalers"),
    "lr_moved": _counted("changes of the learning rate on skipped steps"),
    "differing_steps": _counted("steps in which ranks differ"),
    "equal_losses": _counted("steps with equal losses on all ranks"),
    "silence_s": _Form("silence", lambda value: duration_text(1000 * value), "since"),
    "step_time_ms": _Form("step time", time_text),
    "half_flops": _Form("operations in half precision", "{:.3g}".format),
    "odd_flops": _Form("operations in sides that are no multiple of 8", "{:.3g}".format),
    "largest_flops": _Form("operations of the largest matrix product", "{:.3g}".format),
    "peak_share": _Form("peak of the memory", _percent),
    "utilisation": _Form("share of time in which kernels ran", _percent),
    "allocated_bytes": _Form("smallest allocated memory", bytes_text),
    "underflow_share": _Form("gradients lost to underflow", _percent),
    "unmoved_share": _Form("weights that the step left unchanged", _percent),
    "update_kept_share": _Form("part of the update that rounding left", _percent),
    "log2_headroom": _Form("headroom", "{:.1f} octaves".format),
    "act_finite": _Form("output is finite", _number),
    "input_finite": _Form("input is finite", _number),
    "weight_finite": _Form("weights are finite", _number),
    "update_seen": _Form("scaler.update() was called", _number),
    "autocast_dtype": _Form("format of autocast", _number),
    "output_dtype": _Form("format of the outputs", _number),
    "param_dtype": _Form("format of the weights", _number),
    "saturated_share": _Form("values cut off at the format's end", _percent),
    "flushed_share": _Form("values flushed to zero", _percent),
    "amax_staleness": _Form("newest maximum over what the scale can hold", "{:.3g}".format),
    "idle_tokens": _Form("most tokens of an idle expert", _number),
    "input_scale": _Form("scale of the input", "{:.4g}".format),
    "weight_scale": _Form("scale of the weight", "{:.4g}".format),
    "grad_scale": _Form("scale of the output gradient", "{:.4g}".format),
    "input_format": _Form("format that the input is cast to", _number),
    "capability": _Form("compute capability", _number),
    "next_gradient": _Form("gradient after an update, along it", _number),
    "grad_norm_applied / grad_norm": _Form("share of the gradient that arrived", "{:.2g}".format),
}  # fmt: skip
_WORDS = {"false": "no", "true": "yes"}


def _form(signal: str) -> _Form:
    form = _FORMS.get(signal)
    if form is not None:
        return form
    try:
        label = column(Table.STEPS, signal).label or signal
    except KeyError:  # a sign of the learning rate's table has words for a name
        return _Form(signal, _number, "near")
    return _Form(label, _number)


def label_of(signal: str) -> str:
    """The label of a signal in evidence: what the number is."""
    return _form(signal).label


def when_text(evidence: Evidence) -> str:
    """When evidence was seen: `at step 3`, or for a count `up to step 3`."""
    if evidence.step is None:
        return ""
    return f"{_form(evidence.signal).when} step {evidence.step:,}"


def value_text(signal: str, value: float | str | None) -> str:
    """The value of evidence with its unit; empty if there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _WORDS.get(value, value)
    return _form(signal).text(value)


def against_text(evidence: Evidence) -> str:
    """What the value of evidence is compared with: `threshold: 0.03`."""
    text = value_text(evidence.signal, evidence.against)
    return f"{evidence.against_is}: {text}" if text and evidence.against_is else text


def evidence_text(evidence: Evidence) -> str:
    """Evidence on one line: `loss scale at step 412: 2^6 (established before: 2^16)`."""
    when, against = when_text(evidence), against_text(evidence)
    value = value_text(evidence.signal, evidence.value)
    head = f"{label_of(evidence.signal)}{when and ' ' + when}: {value}"
    return f"{head} ({against})" if against else head
