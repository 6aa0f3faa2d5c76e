"""`ampwatch export --format tensorboard`, read back by TensorBoard: number for number."""

from __future__ import annotations

import math

import numpy as np
import pytest
from written_runs import step_columns, write_run

from ampwatch import cli, codec, open_run, store
from ampwatch.importers import import_log
from ampwatch.report.tensorboard_event_files import event_file
from ampwatch.rows import Table

tensorboard = pytest.importorskip("tensorboard", reason="no tensorboard here to read it back")
from tensorboard.backend.event_processing.event_accumulator import (  # noqa: E402
    EventAccumulator,
)

ALL = {"scalars": 0, "tensors": 0}


def read_back(folder):
    found = EventAccumulator(str(folder), size_guidance=ALL)
    found.Reload()
    return found


def export(capsys, path, out):
    assert cli.run(["export", str(path), "--format", "tensorboard", "-o", str(out)]) == 0
    capsys.readouterr()
    return read_back(out)


def points(found, tag):
    return [(event.step, event.value) for event in found.Scalars(tag)]


def same(value, wanted):
    """As a float32, which is what TensorBoard keeps; nan equals itself."""
    with np.errstate(over="ignore"):
        return np.array_equal(np.float32(value), np.float32(wanted), equal_nan=True)


def test_every_scalar_comes_back_at_its_step_and_time(capsys, tmp_path):
    path = write_run(tmp_path, skipped=30)
    found = export(capsys, path, tmp_path / "out")
    rows = open_run(path).steps
    for column in ("loss", "scale", "lr", "grad_norm", "skipped"):
        wanted = list(zip(rows["step"].to_pylist(), rows[column].to_pylist(), strict=True))
        drawn = points(found, column)
        assert [step for step, _ in drawn] == [step for step, _ in wanted]
        pairs = zip(drawn, wanted, strict=True)
        assert all(same(value, truth) for (_, value), (_, truth) in pairs)
    assert math.isnan(points(found, "loss")[-1][1])
    times = [event.wall_time for event in found.Scalars("loss")]
    assert times == [time_ns / 1e9 for time_ns in rows["time_ns"].to_pylist()]


def test_the_findings_are_a_text(capsys, tmp_path):
    found = export(capsys, write_run(tmp_path, skipped=30), tmp_path / "out")
    tensor = found.Tensors("findings/text_summary")[0].tensor_proto
    text = tensor.string_val[0].decode()
    assert "FAILING" in text
    assert "AMP103 scale-collapse" in text
    assert all(
        line.startswith("    ") for line in text.splitlines() if line
    )  # as it is, in Markdown
    assert found.SummaryMetadata("findings/text_summary").plugin_data.plugin_name == "text"


def test_what_is_absent_is_left_out(capsys, tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="gaps"))
    writer = store.RankWriter(path, 0)
    columns = step_columns(6, 0, 10**18)
    columns["loss"] = [1.0, None, 3.0, None, None, 6.0]
    columns["grad_norm"] = [None] * 6
    writer.append(codec.encode(Table.STEPS, columns))
    writer.close()
    found = export(capsys, path, tmp_path / "out")
    assert points(found, "loss") == [(0, 1.0), (2, 3.0), (5, 6.0)]
    assert "grad_norm" not in found.Tags()["scalars"]


def test_layers_devices_and_the_users_own_scalars_come_too(capsys, tmp_path):
    path = write_run(tmp_path, accepted=100)
    began = open_run(path).steps["time_ns"][0].as_py()
    writer = store.RankWriter(path, 0)
    name = "block.0/ünï <b>"
    writer.append(codec.encode(Table.LAYER_INFO, {"step": [0], "layer": [0], "name": [name]}))
    layers = {"step": [0, 50], "layer": [0, 0], "grad_norm": [0.5, 0.25]}
    writer.append(codec.encode(Table.LAYERS, layers))
    device = {"time_ns": [began + 41_500_000], "device": ["cuda:0"], "used_bytes": [1 << 30]}
    writer.append(codec.encode(Table.DEVICES, device))
    extra = {"step": [7], "name": ["val_loss"], "value": [2.5]}
    writer.append(codec.encode(Table.EXTRAS, extra))
    writer.close()
    found = export(capsys, path, tmp_path / "out")
    assert points(found, f"layers grad_norm/{name}") == [(0, 0.5), (50, 0.25)]
    assert points(found, "device cuda:0/used_bytes") == [(42, float(1 << 30))]  # the one under way
    assert points(found, "val_loss") == [(7, 2.5)]


def test_ranks_are_runs_of_their_own(capsys, tmp_path):
    path = write_run(tmp_path)
    writer = store.RankWriter(path, 1)
    writer.append(codec.encode(Table.STEPS, step_columns(5, 0, 0)))
    writer.close()
    export(capsys, path, tmp_path / "out")
    assert len(points(read_back(tmp_path / "out" / "rank-0"), "loss")) == 100
    assert len(points(read_back(tmp_path / "out" / "rank-1"), "loss")) == 5


def test_two_optimizers_do_not_mix(capsys, tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="gan"))
    writer = store.RankWriter(path, 0)
    columns = step_columns(4, 0, 0) | {"step": [0, 0, 1, 1], "optimizer": [0, 1, 0, 1]}
    writer.append(codec.encode(Table.STEPS, columns | {"loss": [1.0, 2.0, 3.0, 4.0]}))
    writer.close()
    found = export(capsys, path, tmp_path / "out")
    assert points(found, "loss") == [(0, 1.0), (1, 3.0)]
    assert points(found, "optimizer 1/loss") == [(0, 2.0), (1, 4.0)]


@pytest.mark.parametrize("step", [0, 127, 128, 2**31, 2**62])
@pytest.mark.parametrize("tag", ["a", "b" * 127, "ü" * 200])
def test_steps_and_names_of_any_length_are_read(tmp_path, step, tag):
    with event_file(tmp_path / "events.out.tfevents.1.x") as file:
        steps = np.array([0, step], np.int64)
        file.scalars(tag, steps, np.array([1.5, 2.5]), np.array([0.1, 1e300]))
    assert points(read_back(tmp_path), tag) == [(0, float(np.float32(0.1))), (step, math.inf)]


def test_a_broken_checksum_is_noticed_by_tensorboard_so_ours_are_right(tmp_path):
    path = tmp_path / "events.out.tfevents.1.x"
    with event_file(path) as file:
        file.scalars("a", np.arange(3), np.zeros(3), np.arange(3.0))
    whole = path.read_bytes()
    assert len(points(read_back(tmp_path), "a")) == 3
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert len(points(read_back(tmp_path), "a")) == 2


def test_our_own_importer_reads_it_back(capsys, tmp_path):
    path = write_run(tmp_path, skipped=30)
    export(capsys, path, tmp_path / "out")
    (file,) = (tmp_path / "out").iterdir()
    again = open_run(import_log(file, tmp_path / "again")).steps
    wanted = open_run(path).steps
    assert again["step"].to_pylist() == wanted["step"].to_pylist()
    assert np.array_equal(
        np.float32(again["loss"].to_numpy()), np.float32(wanted["loss"].to_numpy()), equal_nan=True
    )


def test_a_failed_export_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), event_file(tmp_path / "events.out.tfevents.1.x"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
