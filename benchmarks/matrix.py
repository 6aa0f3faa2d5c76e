"""The test suite in clean environments: everything at its oldest claimed, and at its newest.

pip install uv
python benchmarks/matrix.py                       both, some half an hour; 12 GB in --folder
python benchmarks/matrix.py --only oldest -- tests/probe -x

uv makes the environments, because it alone resolves to the lowest versions that pyproject.toml
claims. It takes the Pythons that it finds on the path. What one came to is kept in --folder, so
that each may run by itself, on another machine too; with both there, benchmarks/results/matrix.md
is written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "matrix.md"
SHOWN = (
    "torch", "numpy", "pyarrow", "pyzmq", "nvidia-ml-py", "typer", "rich",
    "streamlit", "plotly", "tsdownsample", "apprise",
    "lightning", "transformers", "accelerate", "pytest", "hypothesis",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Environment:
    """One column of the matrix."""

    name: str
    python: str
    resolution: str  # uv's word


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the suite came to there, and what it stood on."""

    versions: dict[str, str]
    passed: int
    skipped: int
    failed: int
    minutes: float
    failures: Sequence[str]


ENVIRONMENTS = (
    Environment("oldest", "3.10", "lowest-direct"),
    Environment("newest", "3.14", "highest"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    failed = 0
    for environment in ENVIRONMENTS:
        if options.only in (None, environment.name):
            python = prepare(environment, options.folder)
            outcome = run_suite(python, options.tests)
            failed += outcome.failed
            print(environment.name, json.dumps(asdict(outcome), indent=1))
            if not options.tests:
                kept(environment, options.folder).write_text(json.dumps(asdict(outcome)))
    outcomes = {
        environment.name: Outcome(**json.loads(kept(environment, options.folder).read_text()))
        for environment in ENVIRONMENTS
        if kept(environment, options.folder).exists()
    }
    if len(outcomes) == len(ENVIRONMENTS):
        RESULT.write_text(report(outcomes))
    return int(failed > 0)


def kept(environment: Environment, folder: Path) -> Path:
    """Where what the whole suite came to in an environment is kept."""
    return folder / f"{environment.name}.json"


def prepare(environment: Environment, folder: Path) -> Path:
    """An environment with this checkout in it; returns its Python."""
    home = folder.resolve() / environment.name
    uv("venv", "--clear", "--python", environment.python, str(home))
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    resolution = f"--resolution={environment.resolution}"
    compiled = "--compile-bytecode"  # or every child of the tests compiles torch anew
    uv("pip", "install", f"--python={python}", resolution, compiled, "--editable", f"{ROOT}[dev]")
    return python


def uv(*arguments: str) -> None:
    subprocess.run(["uv", *arguments], check=True)


def run_suite(python: Path, tests: Sequence[str]) -> Outcome:
    """The test command of the README, with what else was asked for."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "outcome.xml"
        command = [str(python), "-m", "pytest", f"--junitxml={told}", *tests]
        begun = time.monotonic()
        subprocess.run(command, cwd=ROOT, check=False)
        minutes = (time.monotonic() - begun) / 60
        cases = list(ET.parse(told).iter("testcase"))
    skipped = [case for case in cases if case.find("skipped") is not None]
    failed = [
        case for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    return Outcome(
        versions=versions(python),
        passed=len(cases) - len(skipped) - len(failed),
        skipped=len(skipped),
        failed=len(failed),
        minutes=minutes,
        failures=[f"{case.get('classname')}::{case.get('name')}" for case in failed],
    )


def versions(python: Path) -> dict[str, str]:
    """The packages' versions there, and Python's."""
    text = (
        "import importlib.metadata as m, json, platform, sys; "
        "print(json.dumps({'Python': platform.python_version(), "
        "**{name: m.version(name) for name in sys.argv[1:]}}))"
    )
    told = subprocess.run(
        [str(python), "-c", text, *SHOWN], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, str] = json.loads(told.stdout)
    return found


def report(outcomes: dict[str, Outcome]) -> str:
    """The page: a column an environment."""
    columns = list(outcomes.values())
    lines = [
        "# The test suite on the oldest and the newest that is claimed",
        "",
        "Made by `python benchmarks/matrix.py`: clean environments, `python -m pytest`, the whole",
        "suite. Oldest is the lowest version that pyproject.toml allows of each package it names,",
        "newest the highest that there was.",
        "",
        "| | " + " | ".join(outcomes) + " |",
        "|---" * (len(outcomes) + 1) + "|",
    ]
    counts = ("passed", "skipped", "failed")
    lines += [row(f"**{name}**", [f"{getattr(one, name):,}" for one in columns]) for name in counts]
    lines.append(row("minutes", [f"{one.minutes:.0f}" for one in columns]))
    lines += [row(name, [one.versions[name] for one in columns]) for name in ("Python", *SHOWN)]
    for environment, one in outcomes.items():
        lines += ["", f"Failed on the {environment}:", ""] if one.failures else []
        lines += [f"- `{failure}`" for failure in one.failures]
    return "\n".join([*lines, ""])


def row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[environment.name for environment in ENVIRONMENTS])
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix", help="for the Pythons")
    parser.add_argument("tests", nargs="*", help="what to pass on to pytest, after --")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
