"""How many skipped steps do the advised settings of the loss scaler save?

    python benchmarks/scaler_settings.py --seed N [--cases 20] [--out FILE]

Draws fp16 trainings of the variety that learn, with a first scale and a growth interval as people
set them, trains each under a watch, and trains it again, same seed, with what the report advises.
Counted are the steps that the scaler skips; the loss at the end stands beside.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ampwatch  # noqa: E402 - the checkout's own, found above
from ampwatch.report.scaler_settings import (  # noqa: E402
    ScalerSettings,
    scaler_settings,
    worthwhile_settings,
)
from examples.gallery.variety.families import SPLITS  # noqa: E402
from examples.gallery.variety.training.limits import final  # noqa: E402
from examples.gallery.variety.training.loops import Loop, Plan  # noqa: E402
from examples.gallery.variety.training.performing import _plan  # noqa: E402

_STREAM = 23_000_000
_LEAST_SCALE, _MOST_SCALE = 12, 32  # powers of two at which a training begins
_INTERVALS = (2, 5, 10, 20, 50, 100, 2000)


@dataclass(frozen=True, slots=True)
class Scaled:
    """How a training is scaled."""

    init_scale: float
    growth_interval: int


class ScaledLoop(Loop):
    """A right loop whose scaler has these settings."""

    def __init__(self, plan: Plan, rate: float, scaled: Scaled) -> None:
        self._scaled = scaled
        super().__init__(plan, rate)

    def make_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(
            "cpu", init_scale=self._scaled.init_scale, growth_interval=self._scaled.growth_interval
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training cost and came to."""

    skips: int
    loss: float | None
    advice: ScalerSettings | None  # whatever it saves
    is_told: bool  # whether the report says it


def trained(drawn: Plan, scaled: Scaled) -> Outcome:
    rate = 0.2 * drawn.nominal
    loop = ScaledLoop(drawn, rate, scaled)
    with tempfile.TemporaryDirectory() as folder:
        loop.go(lambda one: _watched(one, folder))
        run = ampwatch.open_run(Path(folder) / "run")
        said = ampwatch.diagnose(run)
        advice, told = scaler_settings(run, said), worthwhile_settings(run, said)
        skips = sum(bool(one) for one in run.steps["skipped"].to_pylist())
    return Outcome(skips, final(loop.losses), advice, told is not None)


def _watched(loop: Loop, folder: str) -> Any:
    return ampwatch.attach(
        loop.scaler, loop.model, optimizer=loop.optimizer, run="run", log_dir=folder,
        endpoint="off", layer_every=25,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One training before and after."""

    drawn: Plan
    scaled: Scaled
    before: Outcome
    after: Outcome


def case_of(seed: int, number: int) -> Case | None:
    """None where nothing is advised."""
    random = np.random.default_rng([seed, _STREAM + number])
    drawn = replace(_plan(random, SPLITS[number % len(SPLITS)]), precision="fp16")
    power = int(random.integers(_LEAST_SCALE, _MOST_SCALE + 1))
    scaled = Scaled(2.0**power, int(random.choice(_INTERVALS)))
    before = trained(drawn, scaled)
    advice = before.advice
    if advice is None or not before.is_told:
        return Case(drawn, scaled, before, before)
    better = Scaled(
        advice.init_scale or scaled.init_scale, advice.growth_interval or scaled.growth_interval
    )
    return Case(drawn, scaled, before, trained(drawn, better))


def figures(cases: Sequence[Case]) -> str:
    told = [one for one in cases if one.before.is_told]
    before, after = (sum(getattr(one, when).skips for one in told) for when in ("before", "after"))
    steps = sum(one.drawn.steps for one in told)
    promised = sum(one.before.advice.saved for one in told if one.before.advice)
    worse = sum(one.after.skips > one.before.skips for one in told)
    silent = [one for one in cases if not one.before.is_told]
    lines = [
        (
            f"{len(cases)} trainings; advice for {len(told)}, {steps:,} steps: {before:,} steps "
            f"skipped before, {after:,} with what is advised; {promised:,} were to be saved. More "
            f"were skipped in {worse}. Where nothing is advised, "
            f"{sum(one.before.skips for one in silent):,} of "
            f"{sum(one.drawn.steps for one in silent):,} steps are skipped."
        ),
        "",
        "| training | began at | interval | skipped | advised | interval | skipped | loss | then |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_row, told),
    ]
    return "\n".join(lines) + "\n"


def _row(one: Case) -> str:
    advice = one.before.advice
    assert advice is not None
    return (
        f"| {one.drawn.net}, {one.drawn.optimizer} | {_power(one.scaled.init_scale)} | "
        f"{one.scaled.growth_interval} | {one.before.skips}/{one.drawn.steps} | "
        f"{_power(advice.init_scale)} | {advice.growth_interval} | "
        f"{one.after.skips}/{one.drawn.steps} | {_loss(one.before)} | {_loss(one.after)} |"
    )


def _power(scale: float | None) -> str:
    return "" if scale is None else f"2^{round(np.log2(scale))}"


def _loss(outcome: Outcome) -> str:
    return "" if outcome.loss is None else f"{outcome.loss:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [case_of(options.seed, number) for number in range(options.cases)]
    text = figures([one for one in cases if one is not None])
    print(text)
    if options.out:
        options.out.write_text(
            f"# Settings of the loss scaler\n\n`python benchmarks/scaler_settings.py --seed "
            f"{options.seed} --cases {options.cases}`\n\n{text}"
        )


if __name__ == "__main__":
    main()
