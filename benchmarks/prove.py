"""Does what `ampwatch prove` prints hold, and does a plan that is followed bring a run to health?

    python benchmarks/prove.py --seed N --cases 40 --rows FILE     train and prove, a row a case
    python benchmarks/prove.py --rows FILE --out FILE              the figures of these rows

Draws trainings of the variety at rates above their limit, trains each as a script, and gives the
failing ones to `prove`: at most five reruns of 200 steps. The truth is trained beside it, without
a watch: a sweep of rates, refined to a quarter of an octave. Then the plan is followed to the
letter by the same script. Rows are added as they are made, so the work can be stopped at any time.

Two truths are told. By the first, a rate above the best one is too high if the training is lost
(most of the last 20 losses are not finite) or keeps, in the median of the last 20, less than half
of the decrease that the best rate makes; the limit is where an octave's sweep first fails, halved
to a quarter of an octave. That has two faults. A training passes that blew up to a hundred times
its first loss and came half of the way back. And near the limit a training is chaotic: a rate may
fail where one a tenth higher does not, so that a single crossing is partly chance.

By the second, a rate is also too high if the loss, in the median of any 20 steps, has stood above
its first value by more than half of that decrease: the training had diverged, whatever followed. A
person who looks at the curve says so. The limit is the zone from the rate up to which no training
fails to the one from which on none holds, seen at quarters of an octave: a search that ends inside
of it is right. Neither truth asks our diagnosis. Both are of the training as it was drawn, also
where the search kept a cure; the printed rate is trained with it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.first_looks import FIRST_LOOKS, started
from parts.machine import ROOT
from parts.options import command_line
from parts.tables import table
from prove_training import begun

sys.path.insert(0, str(ROOT))

import ampwatch
from ampwatch.cli.prove import starter
from ampwatch.errors import AmpwatchError
from ampwatch.recovery.proof import Try
from ampwatch.recovery.prove import Budget, Reruns, prove
from ampwatch.recovery.restart_plan import SAID_BY_PLAN, Next
from ampwatch.recovery.restart_plan import Plan as RestartPlan
from examples.gallery.variety.families import SPLITS
from examples.gallery.variety.training.limits import Limit, final, limit_of, sweep_of
from examples.gallery.variety.training.loops import Loop, Plan
from examples.gallery.variety.training.performing import _plan

STEPS, TRIES, SECONDS = 200, 5, 1200.0
_STREAM = 17_000_000  # these cases draw from numbers of their own
_FINER = 2  # halvings of the sweep's octave
_DRAWS = 20
_STOOD_ABOVE, _WINDOW = 0.5, 20  # of the best decrease above the first loss; steps
_LEARNS = 0.97  # of the first loss: above it nothing was learnt


# -- one case --------------------------------------------------------------------------------------


def case_row(seed: int, number: int) -> dict[str, Any]:
    """Train, prove, plan and follow one case."""
    random = np.random.default_rng([seed, _STREAM + number])
    drawn, limit, rate = _drawn(random, SPLITS[number % len(SPLITS)])
    seen = LookedAt(drawn, limit)
    row: dict[str, Any] = {
        "number": number, "split": SPLITS[number % len(SPLITS)], "net": drawn.net,
        "optimizer": drawn.optimizer, "schedule": drawn.schedule, "precision": drawn.precision,
        "steps": drawn.steps, "rate": rate, "true": _refined(drawn, limit.fails),
        "zone": _zone(drawn, seen.fails), "best": limit.best,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="prove-") as folder:
        place = Path(folder)
        losses = _train(place, drawn, rate)
        row["fails"] = limit.fails(losses, rate) or _unlearnt(losses)
        diagnosis = ampwatch.diagnose(ampwatch.open_run(place / "ampwatch-runs" / "run"))
        head = diagnosis.headline
        row |= {"verdict": diagnosis.verdict.value, "headline": head and head.code,
                "advice": diagnosis.learning_rate.action.value}  # fmt: skip
        if row["fails"]:
            row |= _proved(place, drawn, limit, rate) | _followed(place, drawn, limit, rate)
    return row


def _drawn(random: np.random.Generator, split: str) -> tuple[Plan, Limit, float]:
    for _ in range(_DRAWS):
        drawn = _plan(random, split)
        limit = limit_of(drawn)
        if limit is not None:
            return drawn, limit, limit.unstable * 2 ** float(random.uniform(0.0, 5.0))
    raise RuntimeError(f"no training of {split} that learns was found in {_DRAWS} draws")


@dataclass(frozen=True)
class LookedAt:
    """The second truth's too high."""

    drawn: Plan
    limit: Limit

    def fails(self, losses: Sequence[float], rate: float) -> bool:
        """Whether the rate is too high."""
        if self.limit.fails(losses, rate):
            return True
        most = self.limit.first + _STOOD_ABOVE * (self.limit.first - self.limit.best)
        known = [loss if math.isfinite(loss) else math.inf for loss in losses]
        windows = (known[at : at + _WINDOW] for at in range(len(known) - _WINDOW + 1))
        highest = max(map(statistics.median, windows))
        return rate > self.limit.best_rate and highest > most


def _refined(drawn: Plan, fails: Callable[[Sequence[float], float], bool]) -> list[float]:
    """The limit within a quarter of an octave, by trainings of our own."""
    swept = sweep_of(drawn)
    rates = list(swept)
    edge = next(at for at, rate in enumerate(rates) if fails(swept[rate], rate))
    low, high = rates[edge - 1], rates[edge]
    for _ in range(_FINER):
        middle = math.sqrt(low * high)
        if fails(_losses(drawn, middle), middle):
            high = middle
        else:
            low = middle
    return [low, high]


def _zone(drawn: Plan, fails: Callable[[Sequence[float], float], bool]) -> list[float]:
    """From the rate below which none fails to that above which none holds."""
    found = {rate: fails(losses, rate) for rate, losses in sweep_of(drawn).items()}
    low, high = _bounds(found)
    octaves = round(math.log2(high / low))
    for quarter in range(1, 4 * octaves):
        rate = low * 2 ** (quarter / 4)
        if quarter % 4:  # whole octaves are in the sweep
            found[rate] = fails(_losses(drawn, rate), rate)
    return list(_bounds(found))


def _bounds(found: dict[float, bool]) -> tuple[float, float]:
    rates = sorted(found)
    below = max(rate for rate in rates if not any(found[one] for one in rates if one <= rate))
    above = min((rate for rate in rates if all(found[one] for one in rates if one >= rate)),
                default=2 * rates[-1])  # fmt: skip
    return below, above


@functools.lru_cache(maxsize=32)
def _losses(drawn: Plan, rate: float) -> tuple[float, ...]:
    return tuple(Loop(replace(drawn, at=0, severity=0.0), rate).go())


def _train(place: Path, drawn: Plan, rate: float, *more: str) -> list[float]:
    """As a user would: a script in a folder of its own."""
    told = place / "losses.json"
    subprocess.run(
        [*_command(drawn, rate), "--losses", str(told), *more], cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    losses: list[float] = json.loads(told.read_text())
    return losses


def _command(drawn: Plan, rate: float) -> list[str]:
    script = ROOT / "benchmarks" / "prove_training.py"
    return [sys.executable, str(script), json.dumps(asdict(drawn)), "--lr", repr(rate)]


def _unlearnt(losses: Sequence[float]) -> bool:
    end = final(losses)
    return end is None or end > _LEARNS * losses[0]


def _proved(place: Path, drawn: Plan, limit: Limit, rate: float) -> dict[str, Any]:
    began = time.monotonic()
    reruns = Reruns(
        starter(_command(drawn, rate)), place, lambda: Path(tempfile.mkdtemp(dir=place))
    )
    try:
        proof = prove(place / "ampwatch-runs" / "run", reruns, Budget(SECONDS, STEPS, TRIES))
    except AmpwatchError as problem:
        return {"said": str(problem)[:200]}
    found = proof.proved
    row = {
        "tries": [[t.change, t.value, t.is_stable, t.steps, t.told, t in proof.held, t.is_lost,
                   t.highest, t.loss_at, t.kept, t.is_cured] for t in proof.tries],
        "interval": proof.interval, "notes": proof.notes, "kept": proof.kept,
        "prove_s": round(time.monotonic() - began, 1),
    }  # fmt: skip
    if found is None or found.change != "lr":
        return row
    assert isinstance(found.value, float)
    losses = _losses_as_proved(drawn, found)
    end = final(losses)
    gap = None if end is None else (end - limit.best) / (limit.first - limit.best)
    trains = not limit.fails(losses, found.value) and not _unlearnt(losses)
    return row | {"printed": found.value, "trains": trains, "gap": gap}


def _losses_as_proved(drawn: Plan, found: Try) -> list[float]:
    """Of the printed rate, with what was kept with it."""
    assert isinstance(found.value, float)
    kept = {} if found.kept is None else SAID_BY_PLAN[found.kept[0]](found.kept[1])
    told = RestartPlan(Next.RESTART, "", base_rates=(found.value,), **kept).to_json()
    loop, _ = begun(Loop, replace(drawn, at=0, severity=0.0), found.value, told)
    return loop.go()


def _followed(place: Path, drawn: Plan, limit: Limit, rate: float) -> dict[str, Any]:
    plan = ampwatch.plan(place / "ampwatch-runs" / "run")
    told = {"action": plan.action.value, "from": plan.checkpoint and plan.checkpoint.step}
    if plan.exit_code != 10:
        return {"plan": told}
    (place / "plan.json").write_text(json.dumps(plan.to_json()))
    losses = _train(place, drawn, rate, "--plan", "plan.json", "--run", "followed")
    diagnosis = ampwatch.diagnose(ampwatch.open_run(place / "ampwatch-runs" / "followed"))
    head, end = diagnosis.headline, final(losses)
    learnt = end is not None and limit.first - end > 0.5 * (limit.first - limit.best)
    return {"plan": told | {
        "verdict": diagnosis.verdict.value, "headline": head and head.code, "learnt": learnt,
        "gap": None if end is None else (end - limit.best) / (limit.first - limit.best),
    }}  # fmt: skip


# -- the figures -----------------------------------------------------------------------------------


def figures(rows: Sequence[dict[str, Any]]) -> str:
    """What holds of what was printed."""
    failing = [row for row in rows if row["fails"]]
    printed = [row for row in failing if "printed" in row]
    bounded = [row for row in printed if None not in row["interval"]]
    gaps = sorted(row["gap"] for row in printed if row["gap"] is not None)
    restarted = [row for row in failing if row["plan"]["action"] == "restart"]
    wide = [math.log2(row["interval"][1] / row["interval"][0]) for row in bounded]
    zones = [math.log2(row["zone"][1] / row["zone"][0]) for row in bounded]
    reruns = [len(row["tries"]) for row in printed]
    holds = {truth: sum(_holds(row, truth) for row in bounded) for truth in ("true", "zone")}
    well = sum(_is_well(row) for row in restarted)
    lines = (
        ("a failing run gets a rate", "", _share(len(printed), len(failing))),
        ("the printed rate trains", ".98", _share(sum(r["trains"] for r in printed), len(printed))),
        ("gap to the best loss, median", ".03", _median(gaps)),
        ("gap at most .03", "", _share(sum(g <= 0.03 for g in gaps), len(printed))),
        ("interval at most an octave", "all", _share(sum(w <= 1.001 for w in wide), len(printed))),
        ("interval holds the truth of the first kind", ".95", _share(holds["true"], len(printed))),
        ("interval holds the truth of the second kind", ".95", _share(holds["zone"], len(printed))),
        ("octaves of that truth, median and most", "",
         f"{_median(zones)}, {max(zones, default=0):.3g}"),
        ("reruns, median and most", "5", f"{_median(reruns)}, {max(reruns, default=0)}"),
        ("plan restarts a failing run", "", _share(len(restarted), len(failing))),
        ("plan followed: no error, and it learns", ".95", _share(well, len(restarted))),
    )  # fmt: skip
    about = (
        f"{len(rows)} cases, {len(failing)} of which fail; at most {TRIES} reruns, {STEPS} steps."
    )
    return f"{about}\n\n{table('what | wanted | measured', lines)}\n"


def _holds(row: dict[str, Any], truth: str) -> bool:
    (low, high), (true_low, true_high) = row["interval"], row[truth]
    return bool(low <= true_high * 1.001 and high >= true_low * 0.999)


def _is_well(row: dict[str, Any]) -> bool:
    return bool(row["plan"]["verdict"] != "failing" and row["plan"]["learnt"])


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f} ({part}/{whole})" if whole else "none"


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g}" if values else "none"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, help="the number that all cases follow from")
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first case")
    parser.add_argument("--every", type=int, default=1, help="for several processes at once")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first-look", default="", metavar="NOTE", help="write it down for good")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.seed is not None and not (options.out or options.first_look):
        for number in range(options.first, options.cases, options.every):
            row = case_row(options.seed, number)
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return
    text = figures([json.loads(line) for line in options.rows.read_text().splitlines()])
    print(text)
    if options.out:
        options.out.write_text(f"# Proved by reruns\n\n{text}")
    if options.first_look:
        with FIRST_LOOKS.open("a") as file:
            file.write(
                f"\n## Number {options.seed}, prove\n\n{started()}: {options.first_look}\n\n{text}"
            )


if __name__ == "__main__":
    main()
