"""Does a guard help spiking bf16 trainings, and leave healthy ones alone? Drawn from one number.

    python benchmarks/guard.py --seed N [--runs N] [--from N] [--misses FILE] [--rows FILE]
    python benchmarks/guard.py --draw --first-look      a number nobody has seen
    python benchmarks/guard.py --cost                   of a dry run, beside a watch

Each run is trained three times: with its bad batches, with them under a guard that acts, and
without them: those steps are not taken, and the schedule goes on. The guard has its defaults but
for `dry_run=False` and `lower_rate=False`: a training of a second is over before any advice comes.
Every third is also trained with no bad batch at all, with a guard and without. The nets and tasks
are those of `examples/gallery/variety`; loss is that of held-out batches at the end.

A training is the same to the bit whenever it is repeated with the same arithmetic, which torch
chooses by the processor. With another one the last bits differ, and a few trainings end otherwise.
So it is AVX2 here, which all x86 processors of today have; the look says which it was, and `--rows`
keeps what each training came to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import secrets
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
for _arithmetic in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"):
    os.environ.setdefault(_arithmetic, "avx2" if _arithmetic.startswith("ATEN") else "AVX2")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from parts.first_looks import (  # noqa: E402
    FIRST_LOOKS,
    add_options,
    looked_at,
    share,
    started,
    tell,
)
from parts.machine import ROOT  # noqa: E402
from parts.options import command_line  # noqa: E402
from parts.tables import table as markdown  # noqa: E402
from parts.timing import in_turns  # noqa: E402

sys.path.insert(0, str(ROOT))

import ampwatch  # noqa: E402
from examples.gallery.variety.training.limits import final  # noqa: E402
from examples.gallery.variety.training.loops import TORCH, Loop, Plan  # noqa: E402
from examples.gallery.variety.training.nets import NETS, Batch  # noqa: E402

NEAR = 1.02  # of another loss: as good
_HELD_OUT = 20  # batches
KINDS = ("loss", "input", "target", "labels", "nan", "stretch", "long-updates")


@dataclass(frozen=True, slots=True)
class Case:
    """One drawn training."""

    number: int
    plan: Plan
    kind: str
    bad: tuple[int, ...]  # steps
    size: float  # how far off a bad batch is


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the three ended, and what the guard did."""

    case: Case
    twin: float
    unguarded: float
    guarded: float
    left_out: tuple[int, ...]
    is_same_when_healthy: bool | None = None
    healthy_actions: int = 0

    @property
    def mattered(self) -> bool:
        """Whether the bad batches did harm."""
        return not self.unguarded <= NEAR * self.twin

    @property
    def is_near_twin(self) -> bool:
        """Whether the guarded one ends as if there had been no bad batch."""
        return self.guarded <= NEAR * self.twin

    @property
    def is_worse(self) -> bool:
        """Whether it ends worse than without a guard, be it that a bad batch has helped."""
        return math.isfinite(self.unguarded) and not self.guarded <= NEAR * self.unguarded

    @property
    def is_harmed(self) -> bool:
        """Whether it ends worse than without a guard, and than without the bad batches."""
        return self.is_worse and not self.is_near_twin


class Spiking(Loop):
    """A training with bad batches at some steps; `without` leaves those steps out."""

    def __init__(self, case: Case, rate: float, *, bad: bool = True, without: bool = False) -> None:
        self.case, self.without = case, without
        self.bad = frozenset(case.bad) if bad else frozenset()
        super().__init__(case.plan, rate)

    def one(self) -> None:
        """One step, unless it is a bad one and those are left out."""
        if self.without and self.now in self.bad and self.case.kind != "long-updates":
            self.batch()
            self.schedule()
            return
        super().one()

    def batch(self) -> Batch:
        """What the step is made with; another generator makes it bad, so the others stay."""
        x, y = super().batch()
        if self.now not in self.bad:
            return x, y
        own = torch.Generator().manual_seed(self.now)
        kind = self.case.kind
        if kind == "input" and x.is_floating_point():
            return x * self.case.size, y
        if kind == "target" and y.is_floating_point():
            return x, y * self.case.size
        if kind == "labels":
            return x, y[torch.randperm(len(y), generator=own)]
        return x, y

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The forward pass; of a bad batch the loss is off where the data cannot be."""
        found = super().loss(x, y)
        kind = self.case.kind
        shown = (kind == "input" and x.is_floating_point()) or kind in {"labels", "long-updates"}
        if self.now not in self.bad or shown or (kind == "target" and y.is_floating_point()):
            return found
        return found * (math.nan if kind == "nan" else self.case.size)

    def factor(self, step: int) -> float:
        """The rate; some trainings spike because of it, with no bad batch."""
        leaps = self.case.kind == "long-updates" and step in self.bad and not self.without
        return super().factor(step) * (self.case.size if leaps else 1.0)

    def held_out(self) -> float:
        """The loss of batches that it has not seen."""
        random = torch.Generator().manual_seed(self.plan.seed + 2)
        self.now = -1
        with torch.no_grad():
            batches = [self.net.batch(random) for _ in range(_HELD_OUT)]
            losses = [float(self.loss(self._as_weights(x), y)) for x, y in batches]
        mean = sum(losses) / len(losses)
        return mean if math.isfinite(mean) else math.inf

    def _as_weights(self, x: torch.Tensor) -> torch.Tensor:
        narrow = self.plan.precision == "bf16-weights" and x.is_floating_point()
        return x.to(torch.bfloat16) if narrow else x


# --- drawing --------------------------------------------------------------------------------------


def drawn(seed: int, number: int) -> Case:
    """The case of this number."""
    random = np.random.default_rng([seed, number])
    steps = int(random.integers(200, 360))
    kind = KINDS[int(random.integers(len(KINDS)))]
    many = int(random.integers(1, 6))
    bad = sorted({int(one) for one in random.uniform(0.15, 0.95, many) * steps})
    if kind in {"stretch", "long-updates"}:
        bad = [bad[0] + n for n in range(int(random.integers(2, 4)))]
    nets = list(NETS)
    plan = Plan(
        net=nets[int(random.integers(len(nets)))],
        optimizer=str(random.choice(TORCH)),
        schedule=str(random.choice(["constant", "warm-up", "cosine"])),
        precision=str(random.choice(["bf16", "bf16", "bf16-weights"])),
        steps=steps,
        seed=int(random.integers(2**31)),
        at=bad[0],
        severity=float(random.random()),
        clip=float(random.choice([0.3, 1.0, 3.0])) if random.random() < 0.3 else None,
    )
    size = 10 ** float(random.uniform(1.0, 1.7 if kind == "long-updates" else 3.0))
    return Case(number, plan, kind, tuple(bad), size)


def twin_that_learns(case: Case) -> tuple[Spiking, float] | None:
    """The training without bad batches, at the higher of two rates at which it learns."""
    for factor in (0.5, 0.06):
        rate = case.plan.nominal * factor
        twin = Spiking(case, rate, without=True)
        losses = twin.go()
        end = final(losses)
        if end is not None and end < 0.9 * losses[0]:
            return twin, rate
    return None


# --- training -------------------------------------------------------------------------------------


def perform(case: Case) -> Outcome | None:
    """Train it three times, or five; None where no rate learns."""
    found = twin_that_learns(case)
    if found is None:
        return None
    twin, rate = found
    unguarded = Spiking(case, rate)
    unguarded.go()
    guarded, told = trained_under_guard(Spiking(case, rate))
    outcome = Outcome(
        case, twin.held_out(), unguarded.held_out(), guarded.held_out(),
        tuple(step for step, one in told if one.get("action") == "leave-out" and one["done"]),
    )  # fmt: skip
    if case.number % 3:
        return outcome
    bare = Spiking(case, rate, bad=False)
    bare.go()
    watched, told = trained_under_guard(Spiking(case, rate, bad=False))
    states = [one.model.state_dict() for one in (bare, watched)]
    same = all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    return Outcome(
        case, outcome.twin, outcome.unguarded, outcome.guarded, outcome.left_out, same,
        sum(bool(one.get("done")) for _, one in told),
    )  # fmt: skip


def trained_under_guard(loop: Spiking) -> tuple[Spiking, list[tuple[int, dict[str, Any]]]]:
    """Train it with a guard that acts; what the guard's events say."""
    with tempfile.TemporaryDirectory() as folder:

        def watched(of: Loop) -> Any:
            watch = ampwatch.attach(
                None, of.model, optimizer=of.optimizer, log_dir=folder, run="run", endpoint="off"
            )
            ampwatch.guard(watch, dry_run=False, lower_rate=False)
            return watch

        loop.go(watched)
        rows = ampwatch.open_run(Path(folder) / "run").events.to_pylist()
    told = [(row["step"], json.loads(row["detail"])) for row in rows if row["kind"] == "guard"]
    return loop, told


# --- what it costs --------------------------------------------------------------------------------

WAYS = ("without a watch", "watch", "another watch", "watch and dry run", "watch and guard")
BLOCK_STEPS = 10


def cost(blocks: int = 120) -> str:
    """CPU time of the training thread, in turns of a block of steps each.

    Others on the machine only ever add to a block, so its lowest tenth is what the code costs. The
    first blocks are sampled closely, and warm up.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as watches:
        works = {way: plain_block(way, folder, watches) for way in WAYS}
        spent = in_turns(works, blocks, clock=time.thread_time, warm_up=8)
    low = {way: float(np.quantile(spent[way], 0.1)) for way in WAYS}
    rows = [
        (way, f"{low[way] / BLOCK_STEPS * 1e6:.0f}", f"{low[way] / low['watch']:.3f}",
         f"{np.median(np.array(spent[way]) / np.array(spent['watch'])):.3f}")
        for way in WAYS
    ]  # fmt: skip
    costs = markdown(" | µs a step, lowest tenth | of the watch | median of the pairs", rows)
    return f"{costs}\nload {os.getloadavg()[0]:.1f}"


def plain_block(way: str, folder: str, watches: contextlib.ExitStack) -> Callable[[], None]:
    """Some steps of a plain loop, watched and guarded in this way."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if way != "without a watch":
        watch = ampwatch.attach(None, model, optimizer=optimizer, log_dir=folder, endpoint="off")
        watches.callback(watch.close)
        if way in WAYS[3:]:
            ampwatch.guard(watch, dry_run="dry" in way)

    def block() -> None:
        for _ in range(BLOCK_STEPS):
            optimizer.zero_grad()
            model(torch.ones(16, 64)).square().mean().backward()
            optimizer.step()

    return block


# --- telling --------------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> str:
    """The figures, in all and by what was wrong."""
    groups = {"all": list(outcomes)}
    groups |= {kind: [o for o in outcomes if o.case.kind == kind] for kind in KINDS}
    groups |= {
        f"{count} bad steps": [o for o in outcomes if len(o.case.bad) == count]
        for count in range(1, 6)
    }
    head = (
        " | runs | harmed without a guard | within 2 % of the twin: guarded | unguarded | "
        "worse than unguarded | and not near the twin | steps left out of the bad | "
        "good steps left out"
    )
    healthy = [o for o in outcomes if o.is_same_when_healthy is not None]
    same = sum(bool(o.is_same_when_healthy) for o in healthy)
    acts = sum(o.healthy_actions > 0 for o in healthy)
    return (
        f"{markdown(head, (_row(name, of) for name, of in groups.items() if of))}\n\n"
        f"Healthy ones under a guard that acts: {len(healthy)}, weights bit-identical with those "
        f"without a watch in {same}, acted on: {acts}."
    )


def _row(name: str, outcomes: Sequence[Outcome]) -> tuple[object, ...]:
    bad = sum(len(o.case.bad) for o in outcomes)
    left = sum(len(set(o.left_out) & set(o.case.bad)) for o in outcomes)
    good = sum(len(set(o.left_out) - set(o.case.bad)) for o in outcomes)
    return (
        name, len(outcomes), share(o.mattered for o in outcomes),
        share(o.is_near_twin for o in outcomes), share(not o.mattered for o in outcomes),
        share(o.is_worse for o in outcomes), share(o.is_harmed for o in outcomes),
        f"{left}/{bad}", good,
    )  # fmt: skip


def _miss(o: Outcome) -> str:
    plan = o.case.plan
    return (
        f"{o.case.number}: {o.case.kind} x{o.case.size:.3g} at {o.case.bad} of {plan.steps}; "
        f"{plan.net} {plan.optimizer} {plan.schedule} {plan.precision} clip {plan.clip}; twin "
        f"{o.twin:.4g} unguarded {o.unguarded:.4g} guarded {o.guarded:.4g}; left out {o.left_out}; "
        f"healthy same {o.is_same_when_healthy} acts {o.healthy_actions}"
    )


def _is_missed(o: Outcome) -> bool:
    is_bad = o.is_worse or not o.is_near_twin or o.is_same_when_healthy is False
    return bool(is_bad or o.healthy_actions or set(o.left_out) - set(o.case.bad))


def main() -> int:
    """Train, tell, and write a first look down."""
    options = read_options()
    torch.set_num_threads(1)
    if options.cost:
        print(cost())
        return 0
    seed = secrets.randbelow(10**8) if options.draw else options.seed
    name = f"{seed}, from case {options.first}" if options.first else str(seed)
    if options.first_look and (when := looked_at(FIRST_LOOKS, name)):
        print(when)
        return 2
    warnings.filterwarnings("ignore")
    logging.getLogger("ampwatch.guard").setLevel(logging.ERROR)
    begun, outcomes, number = started(), [], options.first
    until = time.monotonic() + 60 * options.minutes
    while number < options.runs and time.monotonic() < until:
        outcome = perform(drawn(seed, number))
        if outcome is not None:
            outcomes.append(outcome)
            if options.rows is not None:
                with options.rows.open("a") as rows:
                    rows.write(json.dumps(asdict(outcome)) + "\n")
        number += 1
        print(f"{number} of {options.runs}", file=sys.stderr, flush=True)
    done = number - options.first
    about = (
        f"{begun}: {done} spiking bf16 trainings under `ampwatch.guard` (`benchmarks/guard.py`); "
        f"{done - len(outcomes)} of them learnt at no rate; torch {torch.__version__}, "
        f"{torch.backends.cpu.get_cpu_capability()}."
    )
    wrong = [_miss(outcome) for outcome in outcomes if _is_missed(outcome)]
    tell(options, FIRST_LOOKS, f"Number {name}", about, table(outcomes), wrong)
    return 0


def read_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--draw", action="store_true", help="a number nobody has seen")
    which.add_argument("--cost", action="store_true", help="what a guard costs, and no more")
    parser.add_argument("--runs", type=int, default=200, help="as many, from case 0 on")
    parser.add_argument("--from", type=int, default=0, dest="first", help="leave out those before")
    parser.add_argument("--minutes", type=float, default=math.inf, help="at most so long")
    parser.add_argument("--rows", type=Path, help="add a line of JSON to it for each training")
    add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
