"""Event files that grow beside a run, read by TensorBoard itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from alert_parts import wait_for
from mirror_parts import logged, skips, train, weights
from written_runs import more, write_run

import ampwatch
from ampwatch import cli
from ampwatch.mirrors import MirrorWorker, open_mirror

pytest.importorskip("tensorboard", reason="no tensorboard here to read it back")
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

SAMPLES = Path(__file__).parents[1] / "importers" / "samples"


def read_back(folder):
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def curve(found, name):
    return [(event.step, event.value) for event in found.Scalars(f"ampwatch/{name}")]


def as_kept(pairs):
    """TensorBoard keeps float32."""
    return [(step, float(np.float32(value))) for step, value in pairs]


def texts(found):
    tensors = found.Tensors("ampwatch/findings/text_summary")
    return [event.tensor_proto.string_val[0].decode() for event in tensors]


def test_it_grows_with_the_run_and_is_read_meanwhile(tmp_path):
    path = write_run(tmp_path / "runs", ended=False)
    worker = MirrorWorker(
        open_mirror(f"tensorboard:{tmp_path}/tb", is_inside=False), print, every_s=0.02
    )
    worker.follow(path)
    out = tmp_path / "tb" / "one"
    wait_for(lambda: list(out.glob("*")) and read_back(out).Tags()["scalars"])
    assert curve(read_back(out), "scale") == logged(path, "scale")
    more(path, skipped=20, ended=True)
    wait_for(lambda: len(curve(read_back(out), "scale")) == 120)
    worker.close()
    found = read_back(out)
    assert curve(found, "scale") == logged(path, "scale")
    assert curve(found, "skipped") == skips(path)
    assert curve(found, "lr") == as_kept(logged(path, "lr"))
    times = [event.wall_time for event in found.Scalars("ampwatch/scale")]
    assert times == [value / 1e9 for _, value in logged(path, "time_ns")]
    assert "AMP103" in texts(found)[-1]
    assert "AMP103" not in texts(found)[0]


def test_mirrored_again_a_run_stands_there_once_and_ranks_are_runs(tmp_path, capsys):
    path = write_run(tmp_path / "runs", world_size=2)
    more(path, accepted=5, first=0, rank=1, ended=True)
    for _ in range(2):
        assert cli.run(["watch", str(path), "--to", f"tensorboard:{tmp_path}/tb"]) == 0
    out = tmp_path / "tb" / "one"
    assert curve(read_back(out / "rank-0"), "scale") == [(s, 65536.0) for s in range(100)]
    assert len(curve(read_back(out / "rank-1"), "loss")) == 5
    assert "Mirrored to TensorBoard" in capsys.readouterr().err


def test_a_training_that_is_mirrored_ends_with_the_same_bits_and_all_rows(tmp_path, bare_weights):
    asked = f"ampwatch.mirror(watch, to='tensorboard:{tmp_path}/tb', every_s=0.05)"
    mirrored = train(tmp_path, after=asked, each="assert not watch.closed")
    assert weights(mirrored) == bare_weights
    assert mirrored.stderr == ""
    path = tmp_path / "runs" / "r"
    found = read_back(tmp_path / "tb" / "r")  # the interpreter's end closed it: all is there
    assert curve(found, "scale") == logged(path, "scale")
    assert curve(found, "skipped") == skips(path)
    assert curve(found, "skipped")[-1] == (39, 2)
    assert ampwatch.open_run(path).clean_end


def test_a_training_that_fails_is_shown_to_its_end_and_its_exception_is_kept(tmp_path):
    asked = f"ampwatch.mirror(watch, to='tensorboard:{tmp_path}/tb', every_s=3600)"
    child = train(tmp_path, after=asked, end="raise RuntimeError('boom')", fails=True)
    assert child.stderr.rstrip().endswith("RuntimeError: boom")
    path = tmp_path / "runs" / "r"
    assert "exception" in ampwatch.open_run(path).events["kind"].to_pylist()
    assert curve(read_back(tmp_path / "tb" / "r"), "scale") == logged(path, "scale")


def test_another_trainers_log_is_mirrored_too(tmp_path, monkeypatch, run_python):
    monkeypatch.setenv("AMPWATCH_DIR", str(tmp_path / "runs"))
    watching = """
import sys
from ampwatch import cli
sys.exit(cli.run(["watch", "--text", "-", "--to", "tensorboard:tb"]))
"""
    run_python(watching, given=(SAMPLES / "apex_collapse.txt").read_text("utf-8"))
    [path] = (tmp_path / "runs").iterdir()
    [out] = (tmp_path / "tb").iterdir()
    found = read_back(out)
    assert curve(found, "scale") == logged(path, "scale_after")
    assert curve(found, "skipped") == skips(path)
    assert curve(found, "skipped")[-1][1] > 0
