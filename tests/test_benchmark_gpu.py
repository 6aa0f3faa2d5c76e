"""benchmarks/gpu.py, rehearsed on the CPU: each part runs, and what it checks can fail."""

from __future__ import annotations

import os
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow_starts
@pytest.mark.timeout(600)
def test_a_rehearsal_fills_every_part_and_leaves_the_results_alone(tmp_path):
    results = ROOT / "benchmarks" / "results" / "gpu.md"
    before = results.read_bytes() if results.exists() else None
    done = children.run("benchmarks/gpu.py", "--rehearse", tmp_path, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "gpu.md").read_text()
    assert "no figure here is of a card" in page
    assert "Not as it should be: nothing." in page
    assert " 0 passed, 0 failed: as it should be" in page  # each says that it needs a card
    assert "| autocast, scaler |" in page
    assert "float8_e4m3fn/tensorwise/dynamic" in page
    told, truth = page.split("float8_e5m2/tensorwise/dynamic |")[1].split("|")[2].split(",")
    assert float(told) == pytest.approx(float(truth.partition(":")[0]), abs=0.001)
    assert float(told) > 0.05
    after = results.read_bytes() if results.exists() else None
    assert after == before


def test_without_a_card_it_says_so_and_writes_nothing():
    import torch

    if torch.cuda.is_available():
        pytest.skip("a card is here")
    done = children.run("benchmarks/gpu.py", cwd=ROOT, env=os.environ)
    assert done.returncode == 2
    assert "--rehearse FOLDER" in done.stderr


def test_a_part_that_fails_is_named_and_the_others_still_run(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    def broken(here):
        raise RuntimeError("no kernel image")

    def uneven(here):
        return here.check(False, "the watch makes the training wait")

    monkeypatch.setattr(gpu, "PARTS", {"One": broken, "Two": uneven, "Three": gpu.nvml})
    for name in ("XDG_STATE_HOME", "AMPWATCH_CONFIG_DIR", "AMPWATCH_QUIET"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    assert gpu.main(["--rehearse", str(tmp_path)]) == 1
    page = (tmp_path / "gpu.md").read_text()
    assert "One: RuntimeError: no kernel image; the watch makes the training wait." in page
    assert "host_rss_bytes" in page
    assert "## Three" in capsys.readouterr().out


def test_waits_are_counted_where_they_happen(monkeypatch):
    """torch's warning on the training thread counts against it, on another one it does not."""
    import threading
    import warnings

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    class Loop:
        def step(self):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
            warnings.warn("something else", stacklevel=2)
            other = threading.Thread(
                target=warnings.warn, args=("called a synchronizing CUDA operation",)
            )
            other.start()
            other.join()

    here = gpu.Here(card=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert gpu.count_waits(here, Loop(), gpu.Bare()) == (here.steps, here.steps)
