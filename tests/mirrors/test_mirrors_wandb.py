"""Offline runs written by the real W&B, read by its own protocol and by our importer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from alert_parts import wait_for
from mirror_parts import assert_report, logged, skips, train, weights
from written_runs import more, write_run

from ampwatch import cli, diagnose, open_run
from ampwatch.errors import MirrorError
from ampwatch.importers import import_log
from ampwatch.importers.tables import wandb_file
from ampwatch.mirrors import open_mirror

wandb = pytest.importorskip("wandb", reason="no wandb here")
from wandb.proto.wandb_internal_pb2 import Record  # noqa: E402

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    yield
    wandb.teardown()  # it reads the environment once a process


def files(folder):
    """The runs' files, once W&B's own process has written each to its end."""
    found = sorted(Path(folder).rglob("*.wandb"))
    for path in found:
        wait_for(lambda path=path: any(one.HasField("exit") for one in records(path)))
    return found


def records(path):
    """What W&B wrote, as its own classes."""
    with path.open("rb") as file:
        return [Record.FromString(data) for data in wandb_file.records(file.read)]


def value_of(item):
    kind = next(field.name for field, _ in item.ListFields() if "key" not in field.name)
    value = getattr(item, kind)
    return json.loads(value) if kind in ("json", "value_json") else value


def history(path):
    """Each point as a dict."""
    return [
        {item.key or ".".join(item.nested_key): value_of(item) for item in one.history.item}
        for one in records(path)
        if one.HasField("history")
    ]


def curve(rows, name):
    """A curve against our own step."""
    name = f"ampwatch/{name}"
    return [(row["ampwatch/step"], row[name]) for row in rows if name in row]


def as_read(pairs):
    return [(step, float(value)) for step, value in pairs]


def test_a_run_of_its_own_has_every_row_the_config_and_the_findings(tmp_path, capsys):
    path = write_run(tmp_path / "runs", skipped=20, config={"rate": 0.25})
    assert cli.run(["watch", str(path), "--to", "wandb:mine"]) == 0
    [file] = files(tmp_path)
    rows = history(file)
    assert as_read(curve(rows, "scale")) == logged(path, "scale")
    assert as_read(curve(rows, "skipped")) == as_read(skips(path))
    assert as_read(curve(rows, "lr")) == logged(path, "lr")
    found = records(file)
    run = next(one.run for one in found if one.HasField("run"))
    assert (run.project, run.display_name, run.run_id) == ("mine", "one", open_run(path).info.id)
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert settings["rate"] == 0.25
    [alert] = [one.alert for one in found if one.HasField("alert")]
    assert "one is failing" in alert.title
    assert "AMP103" in alert.text
    steps_of = {one.metric.glob_name: one.metric for one in found if one.HasField("metric")}
    assert steps_of["ampwatch/*"].step_metric or steps_of["ampwatch/*"].step_metric_index
    [table] = tmp_path.rglob("*.table.json")
    assert "scale-collapse" in table.read_text("utf-8")
    artifacts = [one.artifact for one in found if one.HasField("artifact")]
    [artifact] = [one for one in artifacts if one.type == "ampwatch-report"]
    diagnosis = diagnose(open_run(path))
    assert artifact.name == "ampwatch-one"
    assert json.loads(artifact.metadata) == {
        "verdict": "failing",
        "findings": [finding.code for finding in diagnosis.findings],
    }
    [entry] = artifact.manifest.contents
    assert entry.path == "report.json"
    assert_report(Path(entry.local_path), diagnosis)
    assert [one.exit.exit_code for one in found if one.HasField("exit")] == [0]


def test_our_own_importer_reads_it_back(tmp_path, capsys):
    path = write_run(tmp_path / "runs", skipped=20)
    assert cli.run(["watch", str(path), "--to", "wandb", "--to-every", "10"]) == 0
    [file] = files(tmp_path)
    again = open_run(import_log(file, tmp_path / "again")).steps
    truth = [
        (step, value) for step, value in logged(path, "scale") if step % 10 == 0 or step >= 100
    ]
    assert list(zip(again["step"].to_pylist(), again["scale"].to_pylist(), strict=True)) == truth


def test_other_ranks_stand_beside_the_first(tmp_path, capsys):
    path = write_run(tmp_path / "runs", accepted=5, world_size=2)
    more(path, accepted=3, first=0, rank=1, ended=True)
    assert cli.run(["watch", str(path), "--to", "wandb"]) == 0
    rows = history(files(tmp_path)[0])
    assert len(curve(rows, "loss")) == 5
    assert [step for step, _ in curve(rows, "rank-1/loss")] == [0, 1, 2]


def test_inside_it_asks_for_a_run_that_is_active():
    with pytest.raises(MirrorError, match=r"wandb\.init\(\)"):
        open_mirror("wandb", is_inside=True)


# W&B's first table loads pandas, which on a busy machine takes as long as these trainings.
ACTIVE = "import pandas, time, wandb\nrun = wandb.init(project='theirs')"
SELDOM = """
    time.sleep(0.02)
    if step % 8 == 0:
        run.log({'theirs': step // 8}, step=step // 8)
"""
THEIRS = "run.log({'theirs': step}, step=step); time.sleep(0.01)"


def test_in_the_users_run_not_one_of_their_points_is_lost_or_moved(tmp_path, bare_weights):
    mirrored = train(
        tmp_path,
        before=ACTIVE,
        after="ampwatch.mirror(watch, every_s=0.02)",  # the active run is found
        each=SELDOM,  # several looks fall between two of their points
        end="watch.close(); run.log({'after': 1.0}, step=5)",
    )
    assert weights(mirrored) == bare_weights
    assert "RuntimeWarning" not in mirrored.stderr
    path = tmp_path / "runs" / "r"
    [file] = files(tmp_path)
    rows = history(file)
    assert [(row["_step"], row["theirs"]) for row in rows if "theirs" in row] == [
        (step, step) for step in range(5)
    ]
    assert [row["_step"] for row in rows] == list(range(6))
    ours = dict(as_read(curve(rows, "scale")))
    assert len(ours) > 1
    truth = dict(logged(path, "scale"))
    assert all(truth[step] == value for step, value in ours.items())
    assert curve(rows, "skipped")[-1] == skips(path)[-1] == (39, 2)  # the last is never missed


@pytest.mark.slow_frameworks
def test_a_run_of_its_own_leaves_the_users_alone_and_ends_with_the_process(tmp_path):
    train(
        tmp_path,
        before="import time, wandb\nrun = wandb.init(project='theirs')",
        after="ampwatch.mirror(watch, to='wandb:ours', every_s=0.02)",
        each=THEIRS,
        end="assert wandb.run is run",
    )
    path = tmp_path / "runs" / "r"
    theirs, ours = sorted(map(history, files(tmp_path)), key=lambda rows: "theirs" not in rows[0])
    assert [row["_step"] for row in theirs] == list(range(40))
    assert not any(name.startswith("ampwatch") for row in theirs for name in row)
    assert as_read(curve(ours, "scale")) == logged(path, "scale")
    assert curve(ours, "skipped")[-1] == (39, 2)


@pytest.mark.slow_frameworks
def test_a_run_that_logs_nothing_itself_is_told_of_the_other_way(tmp_path):
    child = train(
        tmp_path, before=ACTIVE, each="time.sleep(0.01)",
        after="ampwatch.mirror(watch, to='wandb', every_s=0.02)",
    )  # fmt: skip
    assert "to='wandb:PROJECT'" in child.stderr
    rows = history(files(tmp_path)[0])
    assert [row["ampwatch/step"] for row in rows if "ampwatch/step" in row] == [39]


@pytest.mark.slow_frameworks
def test_a_run_finished_too_early_is_said_once_and_hurts_nobody(tmp_path):
    child = train(
        tmp_path, before=ACTIVE, after="m = ampwatch.mirror(watch, to='wandb', every_s=3600)",
        end="run.finish(); watch.close(); assert m.failures and m.lost_rows",
    )  # fmt: skip
    assert child.stderr.count("W&B did not accept") == 1
    assert "did not arrive" in child.stderr
