"""Curves in MLflow's file store, written and read back: `fleet_judging_mlflow.py TABLES STORE`.

Prints the CPU seconds to read all, how many values there were, and MLflow's version.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # what MLflow 3 asks of who still uses it

import mlflow
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
from pyarrow import parquet

_AT_ONCE = 1000  # metrics in a call


def write(client: MlflowClient, experiment: str, table: Path) -> None:
    rows = parquet.read_table(table)
    steps = rows.column("step").to_pylist()
    run = client.create_run(experiment, run_name=table.stem).info.run_id
    metrics = [
        Metric(name, value, 0, step)
        for name in rows.column_names[1:]
        for step, value in zip(steps, rows.column(name).to_pylist(), strict=True)
        if value is not None
    ]
    for start in range(0, len(metrics), _AT_ONCE):
        client.log_batch(run, metrics=metrics[start : start + _AT_ONCE])
    client.set_terminated(run)


def read(client: MlflowClient, experiment: str) -> int:
    count = 0
    for run in client.search_runs([experiment], max_results=5000):
        for name in run.data.metrics:
            count += len(client.get_metric_history(run.info.run_id, name))
    return count


def main() -> None:
    tables, store = sorted(Path(sys.argv[1]).glob("*.parquet")), Path(sys.argv[2])
    client = MlflowClient(f"file://{store}")
    known = client.get_experiment_by_name("runs")
    experiment = known.experiment_id if known else client.create_experiment("runs")
    if known is None:
        for table in tables:
            write(client, experiment, table)
    start = time.process_time()
    count = read(client, experiment)
    print(time.process_time() - start, count, mlflow.__version__)


if __name__ == "__main__":
    main()
