"""tested.md, made from what the tests expect: `python tests/wrappers/wrapper_table.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from framework_loops import FRAMEWORKS
from wrapper_cells import WRAPPERS
from wrapper_rank_cells import RANK_WRAPPERS

PAGE = Path(__file__).with_name("tested.md")

_INTRODUCTION = """\
# Wrappers, models, loops and frameworks that ampwatch is tested with

Each test trains in float16 on the CPU with a real GradScaler, once with and once without ampwatch.
At the end, weights, scaler and random state must be identical, bit for bit, and every step must be
recorded. Each test also checks the gradient norms, the layer that overflows first, and the advice
on a learning rate that is 200 times too high.

**Sharded gradients** (FSDP, FSDP2): each rank records the norm of its own shard in the column
`grad_norm_shard`. The column `grad_norm` is empty, because ampwatch adds no communication between
ranks. The total norm is the root of the sum of the squares of `grad_norm_shard` over the ranks that
share one copy of the model.

**LBFGS**: torch does not allow a closure together with an enabled scaler. Without a scaler,
`grad_norm` is the norm at the last evaluation of the closure.

With these wrappers, models, loops and frameworks, ampwatch records everything, names the right
layer, and advises a lower learning rate:
"""
_BEFORE_THE_TABLE = (
    "With these wrappers and models, ampwatch records less, or a test has not been run:"
)
_USUAL = ("each layer's", "true", "the layer", "lower")


def page() -> str:
    """The whole page."""
    return "\n".join((_INTRODUCTION, *_lists(), *_table()))


def _trainings() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """A heading, a name and what its tests expect, of each training."""
    for wrapper in WRAPPERS:
        steps = ", ".join(map(str, wrapper.unknown))
        norms = f"true; empty in step {steps}" if steps else "true"
        yield "One rank", wrapper.name, _expected(wrapper, norms)
    for wrapper in RANK_WRAPPERS:
        norms = "the rank's shard" if wrapper.sharded else "true"
        yield "Two ranks", wrapper.name, _expected(wrapper, norms)
    for framework in FRAMEWORKS:
        yield "Frameworks", framework.name, _USUAL


def _lists() -> Iterator[str]:
    """The trainings without an exception."""
    names: dict[str, list[str]] = {}
    for heading, name, expected in _trainings():
        if expected == _USUAL:
            names.setdefault(heading, []).append(name)
    for heading, listed in names.items():
        yield fill(f"- **{heading}**: {'; '.join(listed)}.", 98, subsequent_indent="  ")


def _table() -> Iterator[str]:
    """The others."""
    yield f"\n{_BEFORE_THE_TABLE}\n"
    yield "| tested | data types of | gradient norms | layer that is named | advice |"
    yield "|---|---|---|---|---|"
    for _, name, expected in _trainings():
        if expected != _USUAL:
            yield f"| {' | '.join((name, *expected))} |"
    yield ""


def _expected(wrapper, norms: str) -> tuple[str, ...]:
    culprit = {None: "none named", "(root)": "the compiled model"}.get(wrapper.culprit, "the layer")
    advice = "lower" if wrapper.too_high else "not tried: slow"
    return _types(wrapper), norms, culprit, advice


def _types(wrapper) -> str:
    if None not in wrapper.dtypes.values():
        return "each layer's"
    return "the whole model" if "(root)" in wrapper.dtypes else "none; `observed` says why"


if __name__ == "__main__":
    PAGE.write_text(page())
