"""Who may read a run; and what a killed process leaves is swept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_samples import info, write_run

from ampwatch.store import RankWriter, create_run, list_runs

CHILD = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from store_samples import info, write_run
from ampwatch.store import CopyNote, compact, describe_run, write_copies
for umask in (0o000, 0o022, 0o077):
    os.umask(umask)
    for shared in (False, True):
        os.environ["AMPWATCH_SHARED"] = "01"[shared]
        folder = Path(sys.argv[2]) / f"{umask:03o}-{shared}"
        run = write_run(folder / "live", 2)
        write_copies(run, {0: CopyNote()})
        describe_run(run, info())
        compact(write_run(folder / "compacted", 2))
        os.environ["AMPWATCH_SHARED"] = "0"  # who writes on later asks the folder
        write_run(folder / "live", 2)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("umasks")
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", CHILD, here, str(folder)], check=True)
    return folder


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """Of all folders and files within two runs."""
    runs = [folder / kind / "run" for kind in ("live", "compacted")]
    paths = [path for run in runs for path in (run, *run.rglob("*"))]
    assert len(paths) > 12
    folders = {path.stat().st_mode & 0o777 for path in paths if path.is_dir()}
    return folders, {path.stat().st_mode & 0o777 for path in paths if path.is_file()}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_run_is_its_users_alone_whatever_the_umask(made: Path, umask: int) -> None:
    assert modes(made / f"{umask:03o}-False") == ({0o700}, {0o600})


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_on_a_shared_disk_the_umask_decides(made: Path, umask: int) -> None:
    assert modes(made / f"{umask:03o}-True") == ({0o777 & ~umask}, {0o666 & ~umask})


def leftover(folder: Path, name: str, hours: float) -> Path:
    left = create_run(folder / "elsewhere", info()).rename(folder / name)
    then = time.time() - 3600 * hours
    os.utime(left, (then, then))
    return left


def test_what_a_killed_process_left_is_swept_when_it_is_old_and_never_listed(
    tmp_path: Path,
) -> None:
    for sweeper in (list_runs, lambda folder: create_run(folder, info("next"))):
        old = leftover(tmp_path, ".0123456789abcdef.new", 2)
        young = leftover(tmp_path, ".123456789abcdef0.new", 0.5)
        other = leftover(tmp_path, ".cache.new", 99)
        assert not {old, young, other} & {run.path for run in list_runs(tmp_path / "none")}
        sweeper(tmp_path)
        assert not old.exists()
        assert young.exists()
        assert other.exists()
        assert not {young, other} & {run.path for run in list_runs(tmp_path)}
        young.rename(tmp_path / f"y-{id(sweeper)}")
        other.rename(tmp_path / f"o-{id(sweeper)}")


def test_what_somebody_writes_is_never_swept(tmp_path: Path) -> None:
    held = write_run(tmp_path / "elsewhere", 1).rename(tmp_path / ".0123456789abcdef.new")
    writer = RankWriter(held, 0)
    os.utime(held, (0, 0))
    list_runs(tmp_path)
    assert held.exists()
    writer.close()
