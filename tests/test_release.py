"""What is released: the same bytes from whoever builds it, checksums, extras that resolve."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EPOCH = {"SOURCE_DATE_EPOCH": "1700000000", "PYTHON": sys.executable}


def release(folder, out, **environment):
    return subprocess.run(
        [folder / ".ci" / "release", out], env={**os.environ, **EPOCH, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling", reason="no hatchling here to build with")
    out = tmp_path_factory.mktemp("release") / "dist"
    done = release(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


def sums(folder):
    archives = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in archives}


@pytest.mark.slow_starts
def test_the_checksums_are_those_of_a_wheel_and_an_sdist(built):
    lines = (built / "SHA256SUMS").read_text().split()
    assert dict(zip(lines[1::2], lines[::2], strict=True)) == sums(built)
    assert sorted(name.rpartition(".")[2] for name in sums(built)) == ["gz", "whl"]


@pytest.mark.slow_starts
def test_another_folder_with_other_times_and_modes_gives_the_same_bytes(built, tmp_path):
    """Of what a checkout holds, file times, rights and the folder's name are the builder's."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout here")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            copy = tmp_path / "elsewhere" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy)
            copy.chmod(0o775 if os.access(ROOT / name, os.X_OK) else 0o664)
            os.utime(copy, (1e9, 1e9))
    done = release(tmp_path / "elsewhere", tmp_path / "dist", TZ="Pacific/Apia", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert sums(tmp_path / "dist") == sums(built)


@pytest.mark.slow_starts
def test_the_commits_time_is_what_the_bytes_depend_on(built, tmp_path):
    done = release(ROOT, tmp_path / "dist", SOURCE_DATE_EPOCH="1800000000")
    assert done.returncode == 0, done.stderr
    assert sums(tmp_path / "dist") != sums(built)


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    done = release(ROOT, tmp_path)
    assert done.returncode == 2
    assert "is there already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow_starts
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("uv") is None, reason="no uv here: pip install uv")
def test_every_extra_resolves_on_the_oldest_and_the_newest_python():
    done = subprocess.run([ROOT / ".ci" / "resolve"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Python 3.10") == done.stdout.count("Python 3.14") == 10
