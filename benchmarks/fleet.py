"""What do many runs published to a place cost: runs a second, bytes, requests to list and open?

    python benchmarks/fleet.py [--quick] [--runs 1000] [--out benchmarks/results/fleet.md]

The runs are real trainings of 2,000 steps, six that differ; the others are copies of those with ids
and times of their own, spread over a week. The S3 server is moto's, in a process of its own, which
writes down each request; it answers slower than a bucket, so times are of a folder and requests are
of the server.

Results: results/fleet.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts.machine import ROOT, folder_bytes, machine
from parts.options import command_line
from parts.tables import page
from parts.timing import cpu_s, seconds

sys.path.insert(0, str(ROOT / "tests"))

import s3_server

import ampwatch
from ampwatch.fleet import list_published, publish
from ampwatch.report import to_json

WEEK_S = 7 * 86400
BUCKET = "team-runs"
S3_RUNS = 200  # of them are published to the server, in several calls
S3_CALLS = 20
COMPARED = 60


@dataclass
class Result:
    """What was measured."""

    facts: dict[str, str] = field(default_factory=dict)

    def tell(self, name: str, value: str) -> None:
        self.facts[name] = value
        print(f"{name}: {value}", flush=True)


# --- the runs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """A small network's training, told apart by its learning rate and sizes."""

    name: str
    seed: int
    width: int
    rate: float
    steps: int
    batch: int = 16
    layers: int = 3
    scale: float = 2.0**16
    config: dict[str, str] = field(default_factory=dict)

    def run(self, folder: Path) -> None:
        import torch

        torch.manual_seed(self.seed)
        torch.set_num_threads(1)
        hidden = [torch.nn.Linear(self.width, self.width) for _ in range(self.layers)]
        parts = [part for layer in hidden for part in (layer, torch.nn.ReLU())]
        model = torch.nn.Sequential(*parts, torch.nn.Linear(self.width, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.rate)
        scaler = torch.amp.GradScaler("cpu", init_scale=self.scale, growth_interval=200)
        with ampwatch.attach(
            scaler, model, run=self.name, log_dir=folder, endpoint="off", config=self.config
        ):
            for _ in range(self.steps):
                x = torch.randn(self.batch, self.width)
                with torch.autocast("cpu", torch.float16):
                    output = model(x)
                loss = ((output.float() - x.sum(1, keepdim=True)) ** 2).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()


def make_runs(folder: Path, count: int, steps: int) -> Path:
    """So many runs, in a folder."""
    for number in range(6):
        of = Training(f"trained-{number}", number, 16 + 8 * number, 1e-4 * 6**number, steps)
        of.run(folder / "trained")
    trained = sorted((folder / "trained").iterdir())
    for number in range(count):
        run = folder / "runs" / f"run-{number:05d}"
        shutil.copytree(trained[number % len(trained)], run)
        told = json.loads((run / "run.json").read_text())
        told["id"] = f"{number + 1:032x}"
        told["name"] = run.name
        told["started_ns"] -= int(WEEK_S * 1e9 * number / count)
        (run / "run.json").write_text(json.dumps(told))
    return folder / "runs"


# --- a folder -------------------------------------------------------------------------------------


def measure_folder(runs: Path, place: Path, result: Result) -> None:
    count = len(list(runs.iterdir()))
    logs = folder_bytes(runs)
    before = cpu_s()
    took = seconds(lambda: publish(runs, str(place), workers=os.cpu_count() or 1))
    written = folder_bytes(place)
    result.tell("runs", f"{count:,} of {logs / count / 1e6:.2f} MB of log each")
    result.tell("published", f"{count / took:.1f} runs a second, {took:.1f} s in all")
    result.tell("CPU to publish", f"{(cpu_s() - before) / count * 1e3:.0f} ms a run")
    result.tell(
        "bytes", f"{written / count / 1e3:.0f} kB a run, {written / logs:.3f} of their logs"
    )
    result.tell("files", f"{sum(path.is_file() for path in place.rglob('*')):,}")
    took = seconds(lambda: publish(runs, str(place)))
    result.tell("published again, nothing new", f"{took:.1f} s")
    result.tell("listed", f"{seconds(lambda: list_published(str(place))):.2f} s")
    command = [sys.executable, "-m", "ampwatch", "list", str(place)]
    took = seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    result.tell("`ampwatch list PLACE`", f"{took:.2f} s, Python's start included")
    result.tell("findings the same to the byte", same_findings(runs, str(place)))


def same_findings(runs: Path, place: str) -> str:
    paths = sorted(runs.iterdir())
    chosen = paths[:: max(1, len(paths) // COMPARED)][:COMPARED]
    same = 0
    for path in chosen:
        local = to_json(ampwatch.diagnose(ampwatch.open_run(path)))
        same += to_json(ampwatch.diagnose(ampwatch.open_run(f"{place}#{path.name}"))) == local
    return f"{same} of {len(chosen)} runs"


# --- requests -------------------------------------------------------------------------------------


def measure_requests(runs: Path, log: Path, result: Result) -> None:
    import boto3

    server, port = s3_server.start(log)
    os.environ.update(s3_server.environment(port))
    boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).create_bucket(Bucket=BUCKET)
    paths = sorted(runs.iterdir())[:S3_RUNS]
    try:
        place = f"s3://{BUCKET}/place"
        for number in range(S3_CALLS):
            share = paths[number::S3_CALLS]
            asked = requests(log, lambda share=share: publish(share, place))
            if number in (0, 1):
                which = "the first" if number == 0 else "a later"
                result.tell(f"requests of {which} `publish` of {len(share)} runs", f"{asked}")
            if number == 0:
                tell_opening(log, place, paths[0].name, "in a new place", result)
        tell_opening(log, place, paths[0].name, f"after {S3_CALLS} publications", result)
        result.tell("requests to list", f"{requests(log, lambda: list_published(place))}")
    finally:
        server.kill()
        server.communicate()


def tell_opening(log: Path, place: str, name: str, when: str, result: Result) -> None:
    def overview() -> None:
        run = ampwatch.open_run(f"{place}#{name}")
        run.read("steps", ["step", "loss", "scale"])
        run.read("events")

    def judge() -> None:
        ampwatch.diagnose(ampwatch.open_run(f"{place}#{name}"))

    result.tell(f"requests to open a run and read its curves, {when}", f"{requests(log, overview)}")
    result.tell(f"requests to open and judge it, {when}", f"{requests(log, judge)}")


def requests(log: Path, act: Callable[[], Any]) -> int:
    before = len(log.read_text().splitlines())
    act()
    return len(log.read_text().splitlines()) - before


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="twenty runs of a hundred steps")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs, steps = (20, 100) if options.quick else (options.runs, options.steps)
    result = Result()
    with tempfile.TemporaryDirectory(prefix="ampwatch-fleet-") as name:
        folder = Path(name)
        made = make_runs(folder, runs, steps)
        measure_folder(made, folder / "place", result)
        measure_requests(made, folder / "requests", result)
    what = " ".join((__doc__ or "").split("\n\n")[2].split())
    about = f"{machine('deltalake', 'obstore', 'pyarrow')} {what}"
    page("Many runs, published", about, "what | measured", result.facts.items(), options.out)


if __name__ == "__main__":
    main()
