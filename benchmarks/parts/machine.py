"""What was measured on, without saying whose it is; and what a measurement leaves nowhere else."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def machine(*packages: str) -> str:
    """Cores, system, Python, these packages and the load, in a sentence."""
    versions = "".join(f", {name} {installed(name)}" for name in packages)
    return (
        f"{os.cpu_count()} cores ({cpu_model()}), {platform.system()}, "
        f"Python {platform.python_version()}{versions}. Load {os.getloadavg()[0]:.1f}: above the "
        "number of cores others were at work, and times are longer by as much."
    )


def cpu_model() -> str:
    """The processor's name, as the system gives it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def installed(package: str) -> str:
    """A package's version, or that there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "(absent)"


def commit() -> str:
    """The checkout's commit; with a plus if the package was changed since."""
    changed = _git("status", "--porcelain", "--", "ampwatch")
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + "+" * bool(changed)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def keep_state_in(folder: Path | str) -> None:
    """Runs, keys and verdicts of a measurement go to this folder, and nowhere else."""
    os.environ["XDG_STATE_HOME"] = os.environ["AMPWATCH_CONFIG_DIR"] = f"{folder}/home"


def folder_bytes(folder: Path) -> int:
    """What a folder's files hold."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
