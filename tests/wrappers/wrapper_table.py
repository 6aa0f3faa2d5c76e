"""docs/wrappers.md, made from what the tests expect: `python tests/wrappers/wrapper_table.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from framework_loops import FRAMEWORKS
from wrapper_cells import WRAPPERS
from wrapper_rank_cells import RANK_WRAPPERS

PAGE = Path(__file__).parents[2] / "docs" / "wrappers.md"

_INTRODUCTION = """\
# Wrappers, models, loops and frameworks that ampwatch is tried with

Each row is trained twice, with and without ampwatch, in float16 on the CPU with a real GradScaler
(`tests/wrappers`; this page is made from those tests). **Attach**: weights, scaler and random state
end bit for bit the same, each step has its row, no hook stays; where something is compiled, not one
graph or graph break more. **Types**: which layers' data types are told. **Norms**: the gradient
norms, whole and by layer, against the twin's in double precision. **Culprit**: the layer that an
overflow in the forward is laid to. **Advice**: of two more trainings, the one at a rate 200 times
too high is told to lower it (2,000 times, where only signs are stepped by), the other is not.

Frameworks run the same training by a loop of their own, in their own half precision (the CPU's
scaler is put where theirs would be: some refuse fp16 there); their norms are held against those of
the plain loop.

A rank's part of a sharded gradient stands in the column `grad_norm_shard`, and `grad_norm` is
absent: ampwatch adds no communication. Squared and added up over the ranks that share one copy of
the model, the parts are the norm. `update_norm` is estimated from the rank's part.

`DataParallel` needs two GPUs: its test (`gpu`) is written and was not run. LBFGS: torch
refuses a closure while the scaler is enabled; with a disabled one or none, `grad_norm` is that of
the closure's last evaluation.
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
