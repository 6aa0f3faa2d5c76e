"""AMP701 and AMP702: what formats below sixteen bits cut off and flush to zero."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.cast_history import ROLES, CastSamples
from ampwatch.diagnosis.findings import Evidence, Severity
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
        evidence=(
            Evidence("saturated_share", worst.last_step, worst.last, worst.limit, "threshold"),
        ),
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
        evidence=(
            Evidence("flushed_share", worst.last_step, worst.last, worst.limit, "threshold"),
        ),
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
