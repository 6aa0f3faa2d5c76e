"""What does judging the runs of a place cost, and are findings the same wherever it is done?

    python benchmarks/fleet_judging.py FOLDER [--quick] [--runs 3000] [--only PART] [--out PAGE]

FOLDER keeps what was made, so that a second call goes on. The runs are real trainings of 2,000
steps, six that differ, and copies of those; for the comparison of findings also a hundred short
trainings that differ in rate, width, batch and length. Ray is a cluster of two nodes on this
machine. Results: results/fleet.md.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fleet import Result, Training, make_runs
from parts.machine import ROOT, machine
from parts.options import command_line
from parts.tables import table
from parts.timing import cpu_s, seconds

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "fleet")]

import ray_cluster  # noqa: E402

import ampwatch  # noqa: E402
from ampwatch.fleet import list_published, publish  # noqa: E402
from ampwatch.fleet.chosen_runs import choice_of  # noqa: E402
from ampwatch.fleet.judging import judge_place  # noqa: E402
from ampwatch.fleet.verdicts import findings_text, read_verdicts  # noqa: E402
from ampwatch.fleet.workers import LocalWorkers  # noqa: E402

SHORT, COMPARED = 100, 500
RAY_TURNS = 3


# --- what is judged -------------------------------------------------------------------------------


def published(folder: Path, count: int, steps: int) -> Path:
    """The runs, published to a place."""
    place = folder / f"place-{count}"
    if not (place / "done").exists():
        runs = folder / f"logs-{count}"
        if not (runs / "runs").exists():
            make_runs(runs, count, steps)
        publish(runs / "runs", str(place), workers=os.cpu_count() or 1)
        (place / "done").touch()
    return place


def short_trainings(folder: Path, count: int) -> None:
    """So many trainings, no two alike."""
    for number in range(count):
        of = Training(
            f"short-{number:03}", number, width=8 + 4 * (number % 7), layers=1,
            rate=1e-4 * 4 ** (number % 9), steps=60 + 7 * number, batch=4 << number % 4,
            scale=2.0 ** (10 + number % 9), config={"user": ("ada", "grace", "linus")[number % 3]},
        )  # fmt: skip
        if not (folder / of.name / "rank-0").exists():
            of.run(folder)


def unjudged(place: Path) -> str:
    """The place as if nobody had judged its runs."""
    for name in ("verdicts", "findings"):
        shutil.rmtree(place / name, ignore_errors=True)
    return str(place)


# --- the same findings ----------------------------------------------------------------------------


def measure_sameness(folder: Path, count: int, result: Result) -> None:
    runs, short = folder / "compared", count * SHORT // COMPARED
    short_trainings(runs, short)
    for path in sorted((folder / f"logs-{count}" / "runs").iterdir())[: count - short]:
        if not (runs / path.name).exists():
            shutil.copytree(path, runs / path.name)
    place = folder / "place-compared"
    publish(runs, str(place), workers=os.cpu_count() or 1)
    expected = {
        path.name: findings_text(ampwatch.diagnose(ampwatch.open_run(path)).to_json())
        for path in runs.iterdir()
    }
    found = {}
    judge_place(unjudged(place), choice_of(), LocalWorkers(2))
    found["local"] = findings_in(place)
    with cluster(folder) as nodes:
        ampwatch.fleet(unjudged(place), engine="ray", address=nodes.address)
    found["Ray"] = findings_in(place)
    same = {how: sum(told[name] == expected[name] for name in expected)
            for how, told in found.items()}  # fmt: skip
    kinds = len(set(expected.values()))
    result.tell(
        "findings as `report --json` has them, to the byte",
        f"local {same['local']} of {len(expected)} runs, Ray {same['Ray']} of {len(expected)}; "
        f"{kinds} of the reports differ",
    )


def findings_in(place: Path) -> dict[str, str | None]:
    return {one.name: one.findings_json for one in read_verdicts(str(place), findings=True)}


# --- how fast, how large --------------------------------------------------------------------------


def measure_local(place: Path, result: Result) -> None:
    count = len(list_published(str(place)))
    command = [sys.executable, "-m", "ampwatch", "fleet", unjudged(place)]
    load, before = os.getloadavg()[0], cpu_s()
    took = seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    spent = cpu_s() - before
    result.tell(
        f"`ampwatch fleet` over {count:,} runs, cold",
        f"{took:.0f} s, {count / took:.0f} runs a second; {spent / count * 1e3:.0f} ms of CPU a "
        f"run (load {load:.0f} before)",
    )
    largest_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    result.tell("largest process", f"{largest_mb:.0f} MB")
    before = cpu_s()
    took = seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    result.tell(
        f"the same when nothing is new, {count:,} runs",
        f"{took:.1f} s, of which {cpu_s() - before:.1f} s of CPU, Python's start included",
    )
    listed = seconds(lambda: list_published(str(place)))
    result.tell(f"listed, {count:,} runs", f"{listed:.2f} s")


def measure_ray(folder: Path, place: Path, result: Result) -> None:
    """One and two workers of one cluster, in turns."""
    with cluster(folder) as nodes:
        import ray  # it reads the cluster's secret as it is imported

        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        for workers in (2, 1):  # both have loaded all they need
            timed_on_ray(place, nodes.address, workers)
        pairs = [
            [timed_on_ray(place, nodes.address, workers) for workers in (1, 2)]
            for _ in range(RAY_TURNS)
        ]
        ray.shutdown()
    ratios = sorted(one / two for one, two in pairs)
    count = len(list_published(str(place)))
    result.tell(
        "Ray, two workers over one",
        f"{ratios[len(ratios) // 2]:.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f}), {count} "
        f"runs, load {os.getloadavg()[0]:.0f}",
    )


def timed_on_ray(place: Path, address: str, workers: int) -> float:
    bare = unjudged(place)
    return seconds(lambda: ampwatch.fleet(bare, engine="ray", address=address, workers=workers))


def cluster(folder: Path) -> AbstractContextManager[Any]:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    os.environ.update(ray_cluster.environment(home))
    return ray_cluster.cluster()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--only", choices=("same", "local", "ray"))
    parser.add_argument("--quick", action="store_true", help="twenty runs of a hundred steps")
    parser.add_argument("--out", type=Path, help="add the figures to this page")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    result, folder = Result(), options.folder
    few, steps = (20, 100) if options.quick else (COMPARED, 2000)
    small = published(folder, few, steps)
    if options.only in (None, "same"):
        measure_sameness(folder, few, result)
    if options.only in (None, "local"):
        measure_local(small, result)
        if not options.quick:
            measure_local(published(folder, options.runs, steps), result)
    if options.only in (None, "ray"):
        measure_ray(folder, small, result)
    if options.out:
        about = machine("deltalake", "obstore", "pyarrow", "ray")
        figures = table("what | measured", result.facts.items())
        with options.out.open("a") as out:
            out.write(f"\n## Judged\n\n{about}\n\n{figures}\n")


if __name__ == "__main__":
    main()
