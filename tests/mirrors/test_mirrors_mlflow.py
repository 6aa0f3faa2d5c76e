"""A real MLflow store, read with MLflow's own client."""

from __future__ import annotations

import json
import math

import pytest
from mirror_parts import assert_report, logged, skips, train, weights
from written_runs import write_run

from ampwatch import diagnose, open_run

pytest.importorskip("mlflow", reason="no mlflow here: pip install mlflow-skinny sqlalchemy alembic")

READ = """
import json, sys, mlflow
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name(sys.argv[1])
runs = []
for run in client.search_runs([experiment.experiment_id]):
    curves = {
        name: [(m.step, m.value, m.timestamp)
               for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    runs.append({"name": run.info.run_name, "status": run.info.status, "tags": run.data.tags,
                 "params": run.data.params, "curves": curves})
print(json.dumps(runs))
"""
OUTSIDE = """
import sys
from ampwatch import cli
sys.exit(cli.run(["watch", sys.argv[1], "--to", "mlflow:mine"]))
"""


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)


def curve(run, name):
    return [(step, value) for step, value, _ in sorted(run["curves"][f"ampwatch/{name}"])]


def test_a_run_of_its_own_has_every_row_at_its_time_and_the_findings(tmp_path, run_python):
    path = write_run(tmp_path / "runs", accepted=200, skipped=20, config={"rate": 0.25})
    run_python(OUTSIDE, str(path))
    [run] = json.loads(run_python(READ, "mine").splitlines()[-1])
    assert (run["name"], run["status"]) == ("one", "FINISHED")
    assert run["params"] == {"rate": "0.25"}
    assert curve(run, "scale") == logged(path, "scale")
    assert curve(run, "skipped") == skips(path)
    times = [time_ms for _, _, time_ms in sorted(run["curves"]["ampwatch/scale"])]
    assert times == [time_ns // 1_000_000 for _, time_ns in logged(path, "time_ns")]
    assert math.isnan(curve(run, "loss")[-1][1])
    assert run["tags"]["ampwatch.verdict"] == "failing"
    assert run["tags"]["ampwatch.finding.AMP103"].startswith("error since step 200")
    [report] = tmp_path.rglob("report.json")
    assert report.parts[-4:] == ("artifacts", "ampwatch", "one", "report.json")
    assert_report(report, diagnose(open_run(path)))


def test_a_run_that_was_killed_is_marked_so(tmp_path, run_python):
    path = write_run(tmp_path / "runs", ended=False)
    hasty = "from ampwatch.follow import liveness\nliveness.GRACE_S = 0.0\n"
    run_python(hasty + OUTSIDE, str(path))
    [run] = json.loads(run_python(READ, "mine").splitlines()[-1])
    assert run["status"] == "KILLED"


def test_in_the_users_run_theirs_and_ours_stand_side_by_side(tmp_path, run_python, bare_weights):
    mirrored = train(
        tmp_path,
        before="import mlflow\nmlflow.set_experiment('theirs')\nrun = mlflow.start_run()",
        after="ampwatch.mirror(watch, every_s=0.02)",  # the active run is found
        end="mlflow.log_metric('theirs', 1.0, step=7)\nwatch.close()\nmlflow.end_run()",
    )
    assert weights(mirrored) == bare_weights
    [run] = json.loads(run_python(READ, "theirs").splitlines()[-1])
    path = tmp_path / "runs" / "r"
    assert curve(run, "scale") == logged(path, "scale")
    assert curve(run, "skipped")[-1] == (39, 2)
    assert [(step, value) for step, value, _ in run["curves"]["theirs"]] == [(7, 1.0)]
    assert run["tags"]["ampwatch.verdict"]
