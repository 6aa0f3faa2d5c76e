"""Evidence and its text: a label, a value with its unit, and what it is compared with.

The report, the page and the JSON use the same text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ampwatch.diagnosis.value_text import bytes_text, duration_text, scale_text
from ampwatch.rows import Table, column


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


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _octaves(value: float) -> str:
    return f"{value:.1f} octaves"


def _counted(label: str) -> _Form:
    return _Form(label, _count, "up to")


_FORMS = {
    "scale": _Form("loss scale", scale_text),
    "scale_low": _Form("smallest usable loss scale", scale_text),
    "metric": _Form("the metric", _number),
    "loss_peak": _Form("highest loss (median of a few steps)", _number, "from"),
    "onset": _Form("first step of the trouble", _count),
    "skipped": _counted("skipped steps"),
    "skipped_apart": _counted("steps that one optimizer alone skipped"),
    "overflows": _counted("overflows"),
    "spikes": _counted("spikes"),
    "lost_steps": _counted("steps spent on recoveries"),
    "left_out": _counted("steps that the loop left out"),
    "guard_actions": _counted("actions of the guard"),
    "layers_without_optimizer": _counted("layers that no optimizer has"),
    "gaps": _counted("gaps in the record"),
    "growths": _counted("doublings of the scale"),
    "resets": _counted("resets of the scale"),
    "scaler-replaced": _counted("new GradScalers"),
    "lr_moved": _counted("changes of the rate on skipped steps"),
    "differing_steps": _counted("steps in which ranks differ"),
    "equal_losses": _counted("steps with equal losses on all ranks"),
    "silence_s": _Form("silence", lambda value: duration_text(1000 * value), "since"),
    "half_flops": _Form("operations in half precision", "{:.3g}".format),
    "odd_flops": _Form("operations in sides that are no multiple of 8", "{:.3g}".format),
    "largest_flops": _Form("operations of the largest matrix product", "{:.3g}".format),
    "peak_share": _Form("peak of the memory", _percent),
    "utilisation": _Form("share of time in which kernels ran", _percent),
    "allocated_bytes": _Form("smallest allocated memory", bytes_text),
    "underflow_share": _Form("gradients lost to underflow", _percent),
    "unmoved_share": _Form("weights that the step left unchanged", _percent),
    "update_kept_share": _Form("part of the update that rounding left", _percent),
    "log2_headroom": _Form("headroom", _octaves),
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
    known = _FORMS.get(signal)
    if known is not None:
        return known
    try:
        label = column(Table.STEPS, signal).label or signal
    except KeyError:
        label = signal  # a sign of the rate's table has words for a name
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
