"""How right the diagnosis is below sixteen bits: real trainings, drawn from one number.

    python benchmarks/low_precision_faults.py --seed N [--cases N] [--misses FILE]
    python benchmarks/low_precision_faults.py --draw --first-look      a number nobody has seen

Half of the trainings have a fault, half are healthy. Each has a process of its own and is trained a
second time without a watch: every weight is compared to the bit, and the casts themselves say
whether the fault took hold. `--misses` writes what was wrong, case by case: look at it after the
first look stands in `results/first_looks.md`.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import logging
import multiprocessing
import os
import secrets
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

for _threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import torch  # noqa: E402
from rich.progress import track  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import variety  # noqa: E402
from low_precision_cases import FAULTS, WIDE, Case, drawn  # noqa: E402
from low_precision_made_faults import training  # noqa: E402
from low_precision_training import Training  # noqa: E402
from low_precision_truth import Truth  # noqa: E402

import ampwatch  # noqa: E402

OF_THIS = frozenset(f"AMP70{n}" for n in range(1, 7))


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of a case."""

    case: Case
    warned: dict[str, str]  # warnings and errors, by code; the layer
    errors: frozenset[str]
    layers: frozenset[str]  # where the fault is
    is_same: bool  # to the bit, as without a watch
    holds: bool  # whether the casts did what the case says
    confirmed: frozenset[str]  # what was said besides, and the casts do

    @property
    def hit(self) -> bool:
        """Whether the fault was called by its name."""
        return self.case.must <= self.warned.keys()

    @property
    def false(self) -> frozenset[str]:
        """What of these formats was said without a reason."""
        said = (self.warned.keys() & OF_THIS) - self.case.must - self.case.may
        return said if self.case.fault is None else said - self.confirmed

    @property
    def false_errors(self) -> frozenset[str]:
        """Errors of any kind on a healthy run."""
        return self.errors if self.case.fault is None else frozenset()

    @property
    def names_layer(self) -> bool | None:
        """Whether the finding names a layer in which the fault is."""
        told = [self.warned[code] for code in self.case.must if code in self.warned]
        return told[0] in self.layers if told and self.layers else None


def perform(case: Case) -> Told:
    """Train a case with a watch, judge it, and train it without."""
    if case.fault is None and case.recipe in WIDE and case.variant == 2:
        _earlier(case)
    with tempfile.TemporaryDirectory() as folder:
        made = training(case)
        _watched(made, Path(folder))
        findings = ampwatch.diagnose(ampwatch.open_run(Path(folder) / "case")).findings
    loud = [one for one in findings if one.severity.value in ("warning", "error")]
    again = training(case)
    truth = Truth(again)
    for _ in again.steps():
        pass
    return Told(
        case,
        {one.code: one.layer or "" for one in loud},
        frozenset(one.code for one in loud if one.severity.value == "error"),
        made.layers,
        _are_same(made.model, again.model),
        truth.holds(),
        frozenset(one.code for one in loud if truth.confirms(one.code, one.layer or "")),
    )


def _watched(made: Training, folder: Path) -> None:
    watch = ampwatch.attach(
        made.scaler, made.model, optimizer=made.optimizer, log_dir=folder, endpoint="off",
        layer_every=made.case.layer_every, config=made.config, run="case",
    )  # fmt: skip
    with watch:
        for loss in made.steps():
            watch.log(loss=loss)


def _earlier(case: Case) -> None:
    """A training in fp8 that this process has made before, to compare with."""
    before = dataclasses.replace(case, recipe="rowwise", steps=3, begins=0)
    with tempfile.TemporaryDirectory() as folder:
        _watched(training(before), Path(folder))


def _are_same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models have the same weights, bit by bit."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(_bits(mine) == _bits(theirs) for mine, theirs in pairs)


def _bits(weight: torch.Tensor) -> bytes:
    plain = getattr(weight, "_data", weight).detach()
    return bytes(plain.contiguous().view(torch.uint8).numpy().tobytes())


def table(told: Sequence[Told]) -> str:
    """Recall and precision, of all and of each fault."""
    clear = [one for one in told if one.holds]
    lines = [
        "| | trainings | recall | layer | precision | false errors on healthy ones |",
        "|---|---|---|---|---|---|",
        _row("all", clear),
    ]
    lines += [_row(fault, [one for one in clear if one.case.fault == fault]) for fault in FAULTS]
    healthy = [one for one in clear if one.case.fault is None]
    for recipe in sorted({one.case.recipe for one in healthy}):
        lines.append(_row(f"healthy, {recipe}", [t for t in healthy if t.case.recipe == recipe]))
    lines.append(
        f"\nLeft out, for their casts do not clearly what was drawn: {len(told) - len(clear)}. "
        f"Bit-identical with and without a watch: {sum(t.is_same for t in told)} of {len(told)}."
    )
    return "\n".join(lines)


def _row(name: str, told: Sequence[Told]) -> str:
    asked = [one for one in told if one.case.must]
    hits, false = sum(one.hit for one in asked), sum(len(one.false) for one in told)
    named = [one.names_layer for one in told if one.names_layer is not None]
    errors = sum(bool(one.false_errors) for one in told)
    cells = (
        name, len(told), _share(hits, len(asked)), _share(sum(named), len(named)),
        _share(hits, hits + false), errors if any(one.case.fault is None for one in told) else "",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f} ({part}/{whole})" if whole else ""


def misses(told: Sequence[Told]) -> list[str]:
    """What was wrong, case by case."""
    return [
        f"{one.case}\n  warned {one.warned}, fault in {sorted(one.layers)}, same {one.is_same}\n"
        for one in told
        if not one.is_same or (one.holds and (
            not one.hit or one.false or one.false_errors or one.names_layer is False
        ))
    ]  # fmt: skip


def other_findings(told: Sequence[Told]) -> str:
    """Warnings that are not of these formats, on healthy runs: for a reader to judge."""
    counts = collections.Counter(
        code
        for one in told
        if one.case.fault is None and one.holds
        for code in one.warned
        if code not in OF_THIS
    )
    told_of = ", ".join(f"{code} {count}" for code, count in sorted(counts.items()))
    return f"Other warnings on healthy trainings: {told_of or 'none'}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, train, judge, print."""
    options = _options(arguments)
    torch.set_num_threads(1)
    seed = secrets.randbelow(10**9) if options.draw else options.seed
    if options.first_look and (known := variety.looked_at(variety.FIRST_LOOKS, seed)):
        print(f"The number {seed} has been looked at before ({known}): draw another.")
        return 2
    began = variety.began()
    numbers = options.only or range(options.cases)
    shown = not sys.stderr.isatty()
    logging.disable(logging.WARNING)  # torchao tells of kernels that a CPU does not have
    warnings.simplefilter("ignore")
    _load_torchao()
    cases = [drawn(seed, number) for number in numbers]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        work = pool.imap(perform, cases)
        told = list(track(work, "trainings", total=len(cases), disable=shown))
    text = (
        f"## Number {seed}\n\n{began}: {len(told)} trainings below sixteen bits "
        f"(`benchmarks/low_precision_faults.py`). {options.note}\n\n{table(told)}\n\n"
        f"{other_findings(told)}\n"
    )
    print(text)
    if options.first_look:
        variety.write_down(variety.FIRST_LOOKS, text)
    if options.misses:
        options.misses.write_text("\n".join(misses(told)), encoding="utf-8")
    return 0


def _load_torchao() -> None:
    """Before processes are forked: each would take seconds for it. It converts nothing."""
    import torchao.float8
    import torchao.prototype.moe_training.config
    import torchao.quantization  # noqa: F401


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--draw", action="store_true", help="draw the number at random")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--only", type=int, nargs="*", help="these cases of the number alone")
    parser.add_argument("--misses", type=Path, default=None)
    parser.add_argument("--first-look", action="store_true", help="write it down for good")
    parser.add_argument("--note", default="", help="a sentence that stands with the first look")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
