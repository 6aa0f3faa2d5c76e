"""Tables that no sample holds: Keras' scalars, as TensorFlow 2 writes them, and JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub import dtypes
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from ampwatch import diagnose, open_run
from ampwatch.importers import ImportOptions, import_log
from ampwatch.rows import Table


def write_keras_events(folder: Path, courses: dict[str, list[float]]) -> Path:
    """Scalars as tensors, which is what `tf.summary.scalar` writes."""
    writer = EventFileWriter(str(folder))
    for tag, values in courses.items():
        for step, value in enumerate(values):
            tensor = make_tensor_proto(value, dtype=dtypes.float32)
            summary = Summary(value=[Summary.Value(tag=tag, tensor=tensor)])
            writer.add_event(Event(step=step, summary=summary))
    writer.close()
    return next(folder.glob("events.*"))


def test_the_scalars_of_keras_are_read(tmp_path):
    losses, scales = [2.5, 2.25, 2.0, 1.75], [32768.0, 32768.0, 16384.0, 16384.0]
    courses = {"batch_loss": losses, "batch_loss_scale": scales}
    run = open_run(import_log(write_keras_events(tmp_path / "logs", courses), tmp_path / "runs"))
    assert run.info.source == "keras"
    assert run.steps["loss"].to_pylist() == losses
    assert run.steps["scale_after"].to_pylist() == scales


def test_json_lines_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": n, "train/loss": 2.0 / n, "lr": 0.1, "note": "x"} for n in range(1, 9)]
    rows.append({"step": 9, "train/loss": float("nan"), "lr": 0.1})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = open_run(import_log(path, tmp_path / "runs"))
    assert run.info.source == "jsonl"
    assert run.steps["step"].to_pylist() == list(range(1, 10))
    assert run.steps["loss"].to_pylist()[:8] == [2.0 / n for n in range(1, 9)]
    assert run.steps["loss"].to_pylist()[8] != run.steps["loss"].to_pylist()[8]


def test_of_several_runs_that_wandb_has_exported_one_is_told_and_the_others_named(tmp_path):
    """The web's `Export CSV`: a column a run, with its least and its most in each bucket."""
    kinds = ("", "__MIN", "__MAX")
    names = [f"{run} - train/{name}{kind}" for run, name in RUNS for kind in kinds]
    rows = [f'"{n}",' + ",".join(f'"{value}"' for value in (2 + 5 / (1 + n),) * 3 +
            (3.0 if n < 50 else "NaN",) * 3 + (0.1,) * 3) for n in range(100)]  # fmt: skip
    path = tmp_path / "wandb_export.csv"
    path.write_text("\n".join(['"Step",' + ",".join(f'"{name}"' for name in names), *rows]))
    first = open_run(import_log(path, tmp_path / "runs"))
    assert first.info.source == "wandb"
    assert "holds 2 runs" in first.notes[0]
    steps = first.read(Table.STEPS, columns=("loss", "lr")).to_pydict()
    assert steps["loss"][-1] == 2.05
    assert set(steps["lr"]) == {None}  # it is the other run's
    wanted = ImportOptions(columns={"loss": "dusk-2 - train/loss"})
    second = open_run(import_log(path, tmp_path / "runs", wanted))
    assert diagnose(second).verdict.value == "failing"
    assert set(second.read(Table.STEPS, columns=("lr",)).column(0).to_pylist()) == {0.1}


RUNS = (("dawn-1", "loss"), ("dusk-2", "loss"), ("dusk-2", "learning_rate"))
