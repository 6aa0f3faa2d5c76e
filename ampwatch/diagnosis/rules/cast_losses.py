"""AMP701 to AMP703, AMP706: what casts below sixteen bits lose; delayed scales that do not fit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.precision_history import ROLES, CastSamples, CastScales
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.rules.quantised_layers import leave_out
from ampwatch.diagnosis.value_text import count_text, list_text

# In most of a layer's last samples, and in at least so many: one batch may be an outlier.
LEAST_SAMPLES = 3
# A scale computed from the tensor or the row cuts nothing off, so one value in a thousand is not
# chance. Healthy MX runs with scales rounded down cut off about one in two hundred.
CUT_SHARE, CUT_SHARE_OF_BLOCKS = 0.001, 0.02
# In a normal distribution the smallest fifth has less than a hundredth of the squared norm. If a
# fifth is flushed, most of the rest is subnormal, with one or two digits. NVFP4 has so few numbers
# that it flushes six to ten per cent of a normally distributed tensor.
FLUSHED_SHARE, FLUSHED_SHARE_OF_FP4 = 0.2, 0.4


def most_cut(form: str) -> float:
    """The share of values that casts to this format may cut off in a healthy run."""
    return CUT_SHARE_OF_BLOCKS if "block" in form else CUT_SHARE


def most_flushed(form: str) -> float:
    """The share of values that casts to this format may flush to zero in a healthy run."""
    return FLUSHED_SHARE_OF_FP4 if "fp4" in form else FLUSHED_SHARE


_ROLE_NAMES = {"input": "input", "weight": "weight", "grad": "output gradient"}


@rule("AMP701", "fp8-saturation", Severity.WARNING)
def fp8_saturation(case: Case) -> Iterator[Seen]:
    """Operands whose cast below 16 bits cuts off their largest values."""
    worst = _worst(case, lambda one: one.cut, most_cut)
    if worst is None:
        return
    share = f"{100 * worst.share:.2g} %"
    yield Seen(
        first_step=worst.first_step,
        last_step=worst.last_step,
        layer=worst.layer,
        summary=f"{worst.form} cuts off {share} of the {worst.what} of {worst.layer}.",
        cause=f"In {worst.over} of its last {count_text(worst.samples, 'sample')} these values "
        f"were beyond the largest number at the scale in use.{worst.others_text}",
        evidence=Evidence("saturated_share", worst.last_step, worst.last, worst.limit, "threshold"),
    )


@rule("AMP702", "fp8-underflow", Severity.WARNING)
def fp8_underflow(case: Case) -> Iterator[Seen]:
    """Operands whose cast below 16 bits flushes a large share to zero."""
    worst = _worst(case, lambda one: one.flushed, most_flushed)
    if worst is None:
        return
    yield Seen(
        first_step=worst.first_step,
        last_step=worst.last_step,
        layer=worst.layer,
        summary=f"{worst.form} flushes {100 * worst.share:.0f} % of the {worst.what} of "
        f"{worst.layer} to zero.",
        cause=f"In {worst.over} of its last {count_text(worst.samples, 'sample')} these values "
        f"were below half of the smallest number at the scale in use.{worst.others_text}",
        action="Use one scale per row or block for it, or keep it in bf16. "
        + leave_out(case.precision.layers, worst.layers),
        evidence=Evidence("flushed_share", worst.last_step, worst.last, worst.limit, "threshold"),
    )


class _WorstCast:
    """The operand that loses most in its casts, and the other layers that lose too much."""

    def __init__(self, case: Case, key: tuple[str, str], values: Sequence[float], limit: float):
        samples = case.casts.operands[key]
        self.layer, role = key
        self.what = _ROLE_NAMES[role]
        self.form = _cast_format(case, *key)
        self.limit = limit
        over = [step for step, share in zip(samples.steps, values, strict=True) if share > limit]
        self.over, self.samples = len(over), len(samples.steps)
        self.first_step, self.last_step = over[0], samples.steps[-1]
        self.share, self.last = statistics.median(values), values[-1]
        self.layers: list[str] = [self.layer]

    @property
    def others_text(self) -> str:
        """A sentence on other layers whose casts lose too much."""
        others = self.layers[1:]
        return f" The same holds for {list_text(others)}." if others else ""


def _worst(
    case: Case,
    values_of: Callable[[CastSamples], tuple[float, ...]],
    limit_of: Callable[[str], float],
) -> _WorstCast | None:
    losing = {}
    for key, samples in case.casts.operands.items():
        limit = limit_of(_cast_format(case, *key))
        values = values_of(samples)
        if is_lasting([share > limit for share in values]):
            losing[key] = statistics.median(values) / limit
    if not losing:
        return None
    ranked = sorted(losing, key=lambda key: -losing[key])
    first = ranked[0]
    worst = _WorstCast(
        case, first, values_of(case.casts.operands[first]), limit_of(_cast_format(case, *first))
    )
    worst.layers = list(dict.fromkeys(layer for layer, _ in ranked))
    return worst


def is_lasting(over: Sequence[bool]) -> bool:
    """Whether casts went wrong in most of the samples, in enough of them, and in the last."""
    count = sum(over)
    return count >= LEAST_SAMPLES and 2 * count > len(over) and over[-1]


def _cast_format(case: Case, layer: str, role: str) -> str:
    """The format to which casts bring a layer's operand, by its latest sample."""
    known = case.precision.layers.get(layer)
    return (None if known is None else known.formats[ROLES.index(role)]) or "its format"


# Maxima of healthy runs vary by a factor of two from batch to batch.
STALE_FACTOR = 2.0
# Reduced maxima give equal scales to the bit; a foreign log may have rounded them.
APART = 1.001
# Transformer Engine's before the first maximum; later they are 448 or 57344 over a maximum.
FIRST_SCALE = 1.0


@rule("AMP703", "stale-scale", Severity.WARNING)
def stale_scale(case: Case) -> Iterator[Seen]:
    """Delayed scales that are too small, that a resume lost, or that differ between ranks."""
    yield from _outgrown(case)
    yield from _lost_at_resume(case)
    yield from _apart(case)


def _outgrown(case: Case) -> Iterator[Seen]:
    """Delayed scales that the newest maximum has outgrown."""
    found = {
        name: values
        for name, (_, values) in case.casts.staleness.items()
        if is_lasting([STALE_FACTOR < value < math.inf for value in values])
    }
    if not found:
        return
    worst = max(found, key=lambda name: statistics.median(found[name]))
    steps, values = case.casts.staleness[worst]
    over = [step for step, value in zip(steps, values, strict=True) if value > STALE_FACTOR]
    yield Seen(
        first_step=over[0],
        last_step=steps[-1],
        layer=worst,
        summary=f"The newest maximum of {worst} is {statistics.median(values):.2g} times what its "
        "scale can hold.",
        cause=f"In {len(over)} of its last {count_text(len(steps), 'sample')} the scale came from "
        "older, smaller maxima.",
        evidence=Evidence("amax_staleness", steps[-1], values[-1], STALE_FACTOR, "threshold"),
    )


def _lost_at_resume(case: Case) -> Iterator[Seen]:
    """Delayed scales that began anew when the training was resumed."""
    found = {
        name: (first, case.casts.scales[name][-1])
        for name, first in case.casts.after_resume.items()
        if _is_new(first) and name in case.casts.scales and not _is_new(case.casts.scales[name][-1])
    }
    if not found:
        return
    layer, (first, last) = next(iter(found.items()))
    of_all = len(case.casts.after_resume)
    yield Seen(
        first_step=first.step,
        last_step=first.step,
        layer=layer,
        summary=f"The delayed scales of {count_text(len(found), 'layer')} of {of_all} began anew "
        f"when the run was resumed at step {first.step}.",
        cause=f"There every scale of {list_text(list(found))} is {FIRST_SCALE:.0f}, as before the "
        "first maximum: the checkpoint's scales and maxima were not loaded. Small values, mostly "
        "gradients, became zero in that step, and large ones were cut off.",
        action="Save the whole `model.state_dict()` and load all of it: the scales and maxima "
        "stand under keys that end in `_extra_state`, which `strict=False` or a filter may drop.",
        evidence=tuple(
            Evidence(f"{role}_scale", first.step, then, later, "later")
            for role, then, later in zip(ROLES, first.least, last.least, strict=True)
            if not (math.isnan(then) or math.isnan(later))
        ),
    )


def _is_new(scales: CastScales) -> bool:
    """Whether these delayed scales are those of a layer that has seen no maximum yet."""
    told = [one for one in (*scales.least, *scales.largest) if not math.isnan(one)]
    return bool(told) and all(one == FIRST_SCALE for one in told)


def _apart(case: Case) -> Iterator[Seen]:
    """Delayed scales that differ between ranks for one layer."""
    found = {
        name: max(map(_times_apart, known))
        for name, known in case.casts.scales.items()
        if is_lasting([_times_apart(one) > APART for one in known])
    }
    if not found:
        return
    worst = max(found, key=lambda name: found[name])
    known = [one for one in case.casts.scales[worst] if _times_apart(one) > APART]
    last = known[-1]
    at = max(range(len(ROLES)), key=lambda at: _ratio(last, at))
    yield Seen(
        first_step=known[0].step,
        last_step=last.step,
        layer=worst,
        severity=Severity.INFO,
        summary=f"The ranks use different delayed scales in {count_text(len(found), 'layer')}.",
        cause=f"Those of {worst} lie {_times_apart(last):.3g} times apart: the maxima are not "
        "reduced over these ranks.",
        action="Nothing, if each rank casts for itself. If a tensor is cast and then gathered "
        "(tensor or sequence parallel, an all-gather in fp8), or if training is to go on the same "
        "with other ranks, reduce the maxima over all ranks that share the layer (`fp8_group`, "
        "`reduce_amax=True`).",
        evidence=Evidence(
            f"{ROLES[at]}_scale", last.step, last.largest[at], last.least[at], "of another rank"
        ),
    )


def _times_apart(scales: CastScales) -> float:
    return max(_ratio(scales, at) for at in range(len(ROLES)))


def _ratio(scales: CastScales, at: int) -> float:
    """The largest delayed scale of the ranks over the least; 1 where an operand has none."""
    least, largest = scales.least[at], scales.largest[at]
    return largest / least if least > 0 and math.isfinite(largest) else 1.0


@rule("AMP706", "scale-frozen", Severity.ERROR)
def scale_frozen(case: Case) -> Iterator[Seen]:
    """Delayed scales that stay as they are because the newest maximum is not finite."""
    found = [
        name
        for name, (_, values) in case.casts.staleness.items()
        if is_lasting([math.isinf(value) for value in values])
    ]
    if not found:
        return
    steps, values = case.casts.staleness[found[0]]
    bad = [step for step, value in zip(steps, values, strict=True) if math.isinf(value)]
    yield Seen(
        first_step=bad[0],
        last_step=steps[-1],
        layer=found[0],
        summary=f"The scale of {list_text(found)} is frozen: its newest maximum is not finite.",
        cause=f"So it is in {len(bad)} of its last {count_text(len(steps), 'sample')}; a maximum "
        "that is nan or inf keeps the scale that was there.",
        evidence=Evidence("amax_staleness", steps[-1], "not finite"),
    )
