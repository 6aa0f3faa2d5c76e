"""How numbers are written in text logs: each is read rightly or left out, never as another number.

The truth is a course of our own, which is written in each of the ways.
"""

from __future__ import annotations

import math

import pytest

from ampwatch import open_run
from ampwatch.errors import LogError
from ampwatch.importers import import_log
from ampwatch.rows import Table

COUNT = 12
COURSE = {
    "step": [100 * (n + 1) for n in range(COUNT)],
    "loss": [2.5 - n / 8 for n in range(COUNT)],
    "lr": [0.001 * (n + 1) for n in range(COUNT)],
    "grad_norm": [1.5 + n / 4 for n in range(COUNT)],
    "scale_after": [2.0 ** (8 + n // 3) for n in range(COUNT)],
}
LINES = {
    "keys": "step={step} loss={loss} lr={lr} grad_norm={grad_norm} loss_scale={scale_after}\n",
    "bars": "step: {step} | loss: {loss} | lr: {lr} | grad norm: {grad_norm} | loss scale: "
    "{scale_after}\n",
    "words": "Step {step}, Loss {loss}, LR {lr}, gnorm {grad_norm}, scale {scale_after}\n",
    "table": "| {step} | {loss} | {lr} | {grad_norm} | {scale_after} |\n",
}
HEADER = "| step | loss | lr | grad_norm | loss_scale |\n|---|---|---|---|---|\n"


def moved(text: str, first: int) -> str:
    return "".join(chr(ord(c) - 48 + first) if c.isdigit() else c for c in text)


def grouped(value: float, mark: str) -> str:
    return f"{1000 * value:,.0f}".replace(",", mark)


# How a value is written, and what it then is; None where it must be left out.
AS_IS, THOUSANDFOLD, HUNDREDFOLD, ABSENT = 1, 1000, 100, None
WRITTEN = {
    "plain": (str, AS_IS),
    "exponent": (lambda v: f"{v:.6e}", AS_IS),
    "upper exponent": (lambda v: f"{v:.6E}", AS_IS),
    "sign": (lambda v: f"+{v}", AS_IS),
    "no first digit": (lambda v: str(v).removeprefix("0"), AS_IS),
    "thousands": (lambda v: grouped(v, ","), THOUSANDFOLD),
    "decimal comma": (lambda v: str(v).replace(".", ","), AS_IS),
    "percent": (lambda v: f"{100 * v:g}%", HUNDREDFOLD),
    "blank percent": (lambda v: f"{100 * v:g} %", HUNDREDFOLD),
    "brackets": (lambda v: f"[{v}]", AS_IS),
    "tensor": (lambda v: f"tensor({v}, device='cuda:0', grad_fn=<NllLossBackward0>)", AS_IS),
    "array": (lambda v: f"array({v}, dtype=float32)", AS_IS),
    "numpy 2": (lambda v: f"np.float64({v})", AS_IS),
    "spread": (lambda v: f"{v}±0.1", AS_IS),
    "average": (lambda v: f"{v} ({v + 9})", AS_IS),
    "wide": (lambda v: moved(str(v), 0xFF10).replace(".", "．"), AS_IS),  # noqa: RUF001
    "other digits": (lambda v: moved(str(v), 0x0660), AS_IS),
    "underscores": (lambda v: grouped(v, "_"), ABSENT),
    "apostrophes": (lambda v: grouped(v, "'"), ABSENT),
    "narrow blanks": (lambda v: grouped(v, "\u202f"), ABSENT),
    "k": (lambda v: f"{v / 1000:g}k", ABSENT),
    "blank k": (lambda v: f"{v / 1000:g} k", ABSENT),
    "M": (lambda v: f"{v / 1e6:.9f}M", ABSENT),
    "both marks": (lambda v: f"{1000 * v:,.2f}".translate({44: ".", 46: ","}), ABSENT),
    "power": (lambda v: f"2^{v:.0f}", ABSENT),
    "power of Python": (lambda v: f"2**{v:.0f}", ABSENT),
    "power of ten": (lambda v: f"{v * 1000:g}×10^-3", ABSENT),  # noqa: RUF001
    "hexadecimal": (lambda v: hex(int(v)), ABSENT),
    "seconds": (lambda v: f"{v:g}s", ABSENT),
}
STEPS = {how: told for how, told in WRITTEN.items() if "power" not in how}
SPECIAL = {
    "inf": math.inf, "-inf": -math.inf, "INF": math.inf, "Infinity": math.inf, "∞": math.inf,
    "NaN": math.nan, "nan.": math.nan, "-nan(ind)": math.nan, "tensor(nan)": math.nan,
    "np.float64(inf)": math.inf, "--": None, "N/A": None, "None": None, "null": None, "?": None,
    "1.#INF": None, "1.#QNAN": None, "***": None,
}  # fmt: skip


def imported(line: str, written, tmp_path) -> dict[int, dict[str, float]]:
    """The rows by step of a log with these written values."""
    rows = "".join(LINES[line].format(**told) for told in written)
    path = tmp_path / "train.log"
    path.write_text((HEADER if line == "table" else "") + rows, "utf-8")
    run = open_run(import_log(path, tmp_path / "runs"))
    rows = run.read(Table.STEPS, columns=(*COURSE, "skipped")).to_pylist()
    assert not any(row["skipped"] for row in rows)
    return {row["step"]: row for row in rows}


def told(at: int, **others: str) -> dict[str, str]:
    return {**{name: str(values[at]) for name, values in COURSE.items()}, **others}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", ["grad_norm", "scale_after"])
@pytest.mark.parametrize(("text", "factor"), WRITTEN.values(), ids=WRITTEN)
def test_a_number_is_read_as_it_is_written_or_left_out(line, name, text, factor, tmp_path):
    written = [told(at, **{name: text(COURSE[name][at])}) for at in range(COUNT)]
    rows = imported(line, written, tmp_path)
    for step, value in zip(COURSE["step"], COURSE[name], strict=True):
        found = rows.get(step, {}).get(name)
        wanted = None if factor is None else pytest.approx(factor * value, rel=1e-3)
        assert found == wanted


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(("text", "value"), SPECIAL.items())
def test_what_is_no_ordinary_number_is_itself_or_absent_and_its_row_stays(
    line, text, value, tmp_path
):
    written = [told(at, lr=text if at % 5 == 4 else str(COURSE["lr"][at])) for at in range(COUNT)]
    rows = imported(line, written, tmp_path)
    for at, step in enumerate(COURSE["step"]):
        wanted = value if at % 5 == 4 else COURSE["lr"][at]
        found = rows[step]["lr"]
        assert found == wanted or (found != found and wanted != wanted)
        assert rows[step]["loss"] == COURSE["loss"][at]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(("text", "factor"), STEPS.values(), ids=STEPS)
def test_a_step_is_read_as_it_is_written_or_counted_by_its_rows(line, text, factor, tmp_path):
    written = [told(at, step=text(COURSE["step"][at])) for at in range(COUNT)]
    path_of = [f"{factor * step:g}" for step in COURSE["step"]] if factor else []
    try:
        found = imported(line, written, tmp_path)
    except LogError:
        return
    assert [f"{step:g}" for step in found] in (path_of, [f"{at}" for at in range(COUNT)])
    assert [row["loss"] for row in found.values()] == COURSE["loss"]


@pytest.mark.parametrize("text", ["skipped steps: 0", "skipped batches = 3", "overflow count: 1"])
def test_a_count_of_skips_beside_a_step_says_of_no_step_that_it_was_skipped(text, tmp_path):
    lines = "".join(f"step: {n} | loss: {3 - n / 9:.3f} | {text}\n" for n in range(COUNT))
    path = tmp_path / "train.log"
    path.write_text(lines)
    run = open_run(import_log(path, tmp_path / "runs"))
    found = run.read(Table.STEPS, columns=("step", "skipped")).to_pydict()
    assert found["step"] == list(range(COUNT))
    assert not any(found["skipped"])
