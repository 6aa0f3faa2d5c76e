"""docs/wrappers.md, made from what the tests expect: `python tests/wrappers/wrapper_table.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from framework_loops import FRAMEWORKS
from wrapper_cells import WRAPPERS
from wrapper_rank_cells import RANK_WRAPPERS

PAGE = Path(__file__).parents[2] / "docs" / "wrappers.md"

_INTRODUCTION = """\
# Wrappers, models, loops and frameworks that ampwatch is tested with

Each row is trained twice, with and without ampwatch, in float16 on the CPU with a real GradScaler
(`tests/wrappers`; this page is generated from these tests). The columns are:

- **attach**: weights, scaler and random state are bit-identical at the end, each step has a row,
  and no hook is left. If something is compiled, ampwatch adds no graph and no graph break.
- **types**: the layers whose data types are recorded.
- **norms**: the gradient norms, total and by layer, compared with the other run's in float64.
- **culprit**: the layer that is named for an overflow in the forward pass.
- **advice**: of two more trainings, the one with a rate 200 times too high is advised to lower it
  (2,000 times for sign-based updates), the other is not.

Frameworks run the same training with their own loop and their own half precision (with the CPU's
scaler in place of theirs, because some refuse fp16 on the CPU). Their norms are compared with those
of the plain loop.

For sharded gradients, `grad_norm_shard` is the rank's part, and `grad_norm` is absent, because
ampwatch adds no communication. The total norm is the root of the sum of squares over the ranks that
share one copy of the model. `update_norm` is estimated from the rank's part.

`DataParallel` needs two GPUs; its test (`gpu`) exists and was not run. LBFGS: torch refuses a
closure while the scaler is enabled; with a disabled scaler or none, `grad_norm` is that of the
closure's last evaluation.
"""


def page() -> str:
    """The whole page."""
    return "\n".join((_INTRODUCTION, *_rows()))


def _rows() -> Iterator[str]:
    yield "| | ranks | attach | types | norms | culprit | advice |"
    yield "|---|---|---|---|---|---|---|"
    for wrapper in WRAPPERS:
        steps = ", ".join(map(str, wrapper.unknown))
        norms = f"true; absent in its first step ({steps})" if steps else "true"
        yield _row(wrapper, 1, norms)
    for wrapper in RANK_WRAPPERS:
        yield _row(wrapper, 2, "true, of the rank's part" if wrapper.sharded else "true")
    for framework in FRAMEWORKS:
        yield f"| {framework.name} | 1 | same bits | each layer's | true | the layer | lower |"
    yield ""


def _row(wrapper, ranks: int, norms: str) -> str:
    attach = "same bits, 0 graphs added" if wrapper.compiled and ranks == 1 else "same bits"
    culprit = {None: "none named", "(root)": "the compiled model"}.get(wrapper.culprit, "the layer")
    advice = "lower" if wrapper.too_high else "not tried: slow"
    cells = (wrapper.name, ranks, attach, _types(wrapper), norms, culprit, advice)
    return f"| {' | '.join(map(str, cells))} |"


def _types(wrapper) -> str:
    if None not in wrapper.dtypes.values():
        return "each layer's"
    return "the outside's" if "(root)" in wrapper.dtypes else "none; each layer says why"


if __name__ == "__main__":
    PAGE.write_text(page())
