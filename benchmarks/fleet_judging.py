"""Runs of a place judged: runs a second, CPU, memory, the same findings, and what others take.

    python benchmarks/fleet_judging.py FOLDER [--runs 3000] [--mlflow PYTHON] [--out PAGE]

FOLDER keeps what was made, so that a second call goes on. The runs are real trainings of 2,000
steps, six that differ, and copies of those; for the comparison of findings also a hundred short
trainings that differ in rate, width, batch and length. Ray is a cluster of two nodes on this
machine. TensorBoard and MLflow read the same curves of the same runs, in one process each; they
are compared by CPU time, which hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "fleet"), str(ROOT / "benchmarks")]

import ray_cluster  # noqa: E402
from fleet import Result, cpu_s, make_runs, seconds  # noqa: E402

import ampwatch  # noqa: E402
from ampwatch.fleet import list_published, publish  # noqa: E402
from ampwatch.fleet.chosen_runs import choice_of  # noqa: E402
from ampwatch.fleet.judging import judge_place  # noqa: E402
from ampwatch.fleet.verdicts import findings_text, read_verdicts  # noqa: E402
from ampwatch.fleet.workers import LocalWorkers  # noqa: E402
from ampwatch.report import write_event_files  # noqa: E402

SHORT, COMPARED = 100, 500
OTHERS = 40  # runs that TensorBoard and MLflow read
RAY_TURNS = 3


# --- what is judged -------------------------------------------------------------------------------


def made(folder: Path, count: int) -> Path:
    """The runs, published to a place."""
    place = folder / f"place-{count}"
    if not (place / "done").exists():
        runs = folder / f"logs-{count}"
        if not (runs / "runs").exists():
            make_runs(runs, count, 2000)
        publish(runs / "runs", str(place), workers=os.cpu_count() or 1)
        (place / "done").touch()
    return place


def short_trainings(folder: Path) -> Path:
    """A hundred trainings, no two alike."""
    import torch

    torch.set_num_threads(1)
    for number in range(SHORT):
        if (folder / f"short-{number:03}" / "rank-0").exists():
            continue
        torch.manual_seed(number)
        width, batch = 8 + 4 * (number % 7), 4 << number % 4
        model = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4 * 4 ** (number % 9))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (10 + number % 9))
        told = {"model": f"mlp-{width}", "user": ("ada", "grace", "linus")[number % 3]}
        name = f"short-{number:03}"
        with ampwatch.attach(scaler, model, run=name, log_dir=folder, endpoint="off", config=told):
            for _ in range(60 + 7 * number):
                x = torch.randn(batch, width)
                with torch.autocast("cpu", torch.float16):
                    output = model(x)
                loss = ((output.float() - x.sum(1, keepdim=True)) ** 2).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    return folder


def unjudged(place: Path) -> str:
    """The place as if nobody had judged its runs."""
    for name in ("verdicts", "findings"):
        shutil.rmtree(place / name, ignore_errors=True)
    return str(place)


# --- the same findings ----------------------------------------------------------------------------


def measure_sameness(folder: Path, result: Result) -> None:
    runs = folder / "compared"
    short_trainings(runs)
    for path in sorted((folder / f"logs-{COMPARED}" / "runs").iterdir())[: COMPARED - SHORT]:
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
    result.tell("largest process", f"{largest_mb():.0f} MB")
    before = cpu_s()
    took = seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    result.tell(
        f"the same when nothing is new, {count:,} runs",
        f"{took:.1f} s, of which {cpu_s() - before:.1f} s of CPU, Python's start included",
    )
    listed = seconds(lambda: list_published(str(place)))
    result.tell(f"listed, {count:,} runs", f"{listed:.2f} s")


def largest_mb() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


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


def cluster(folder: Path):
    home = folder / "home"
    home.mkdir(exist_ok=True)
    os.environ.update(ray_cluster.environment(home))
    return ray_cluster.cluster()


# --- what others take -----------------------------------------------------------------------------


def measure_others(folder: Path, mlflow: str | None, result: Result) -> None:
    runs = sorted((folder / f"logs-{COMPARED}" / "runs").iterdir())[:OTHERS]
    place = folder / "place-others"
    publish(runs, str(place))
    workers, choice = LocalWorkers(1), choice_of()
    judge_place(unjudged(place), choice, workers)  # loads what is needed
    bare = unjudged(place)
    ours = cpu_of(lambda: judge_place(bare, choice, workers)) / len(runs)
    result.tell("CPU to read, judge and store a run", f"{ours * 1e3:.0f} ms")
    events = folder / "events"
    for path in runs:
        if not (events / path.name).exists():  # as `ampwatch export --to tensorboard` does
            run = ampwatch.open_run(path)
            write_event_files(run, ampwatch.diagnose(run), events / path.name)
    theirs = cpu_of(lambda: read_events(events)) / len(runs)
    told = f"{theirs * 1e3:.0f} ms, {theirs / ours:.1f} times ours"
    result.tell("CPU to read a run's curves from its TensorBoard folder", told)
    if mlflow:
        told = measure_mlflow(folder, mlflow, runs, ours)
        result.tell("CPU to read a run's curves from MLflow's file store", told)


def read_events(folder: Path) -> int:
    """All scalars, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = 0
    for path in sorted(folder.iterdir()):
        for part in {file.parent for file in path.rglob("*tfevents*")}:
            events = EventAccumulator(str(part), size_guidance={"scalars": 0, "tensors": 0})
            events.Reload()
            read += sum(len(events.Scalars(tag)) for tag in events.Tags()["scalars"])
            read += sum(len(events.Tensors(tag)) for tag in events.Tags()["tensors"])
    return read


def measure_mlflow(folder: Path, python: str, runs: list[Path], ours: float) -> str:
    """The curves of steps alone, without those of layers."""
    import pyarrow.compute as pc
    from pyarrow import parquet

    tables = folder / "tables"
    tables.mkdir(exist_ok=True)
    for path in runs:
        rows = ampwatch.open_run(path).steps
        names = [one.name for one in rows.schema if str(one.type) in {"float", "double"}]
        told = [name for name in names if pc.count(rows.column(name)).as_py()]
        parquet.write_table(rows.select(["step", *told]), tables / f"{path.name}.parquet")
    script = Path(__file__).parent / "fleet_judging_mlflow.py"
    done = subprocess.run([python, str(script), str(tables), str(folder / "mlruns")],
                          check=True, capture_output=True, text=True)  # fmt: skip
    cpu, read, name = done.stdout.split()[-3:]
    theirs = float(cpu) / len(runs)
    return (
        f"{theirs * 1e3:.0f} ms, {theirs / ours:.1f} times ours ({int(read) / len(runs):,.0f} "
        f"values a run, of steps alone; MLflow {name})"
    )


def cpu_of(act) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


# --- the page -------------------------------------------------------------------------------------


def page(result: Result) -> str:
    names = ("deltalake", "obstore", "pyarrow", "ray", "tensorboard")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    machine = (
        f"{os.cpu_count()} cores ({platform.machine()}), {platform.system()}, Python "
        f"{platform.python_version()}, {packages}. Load {os.getloadavg()[0]:.1f} at the end: above "
        "the number of cores others were at work, and times are longer by as much."
    )
    about = " ".join((__doc__ or "").split("\n\n")[2].split()).partition(" so that a second")
    told = about[2].partition("goes on. ")[2]
    rows = [f"| {name} | {value} |" for name, value in result.facts.items()]
    return "\n".join(["## Judged", "", machine, "", told, "", "| what | measured |", "|---|---|",
                      *rows, ""])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--mlflow", help="a Python that has MLflow")
    parser.add_argument("--only", choices=("made", "same", "local", "ray", "others"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    result, folder = Result(), given.folder
    small, large = made(folder, COMPARED), made(folder, given.runs)
    if given.only in (None, "same"):
        measure_sameness(folder, result)
    if given.only in (None, "local"):
        measure_local(small, result)
        measure_local(large, result)
    if given.only in (None, "ray"):
        measure_ray(folder, small, result)
    if given.only in (None, "others"):
        measure_others(folder, given.mlflow, result)
    if given.out:
        with given.out.open("a") as out:
            out.write("\n" + page(result))


if __name__ == "__main__":
    main()
