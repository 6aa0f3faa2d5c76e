"""MLflow: metrics with their own steps and times, findings as tags, at the end the report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ampwatch.diagnosis import Finding
from ampwatch.errors import MirrorError
from ampwatch.follow import State
from ampwatch.mirrors.mirroring import client
from ampwatch.mirrors.updates import Update
from ampwatch.printable_text import printable
from ampwatch.report import to_json
from ampwatch.store import RunInfo

_METRICS_AT_ONCE = 1000  # MLflow's own limits, of a request and of a value
_PARAMS_AT_ONCE = 100
_LONGEST_VALUE = 500
_VERDICT, _FINDING, _RUN = "ampwatch.verdict", "ampwatch.finding.", "ampwatch.run"


def is_active() -> bool:
    """Whether this thread has an active MLflow run."""
    return client("mlflow", "mlflow").active_run() is not None


def open_mirror(rest: str, *, is_inside: bool) -> MlflowMirror:
    """A mirror to the active MLflow run, or to new runs in the experiment `rest`."""
    mlflow = client("mlflow", "mlflow")
    server = mlflow.MlflowClient(mlflow.get_tracking_uri())
    if rest or not is_inside:
        return MlflowMirror(mlflow, server, experiment=rest or "ampwatch")
    active = mlflow.active_run()  # the active run belongs to the thread that began it
    if active is None:
        raise MirrorError(
            "No MLflow run is active: call mlflow.start_run() before ampwatch.mirror(), or name an "
            "experiment, as in mlflow:EXPERIMENT, for a run of its own."
        )
    return MlflowMirror(mlflow, server, active_id=active.info.run_id)


class MlflowMirror:
    """Logs to the given run, or to a new run for each of ours."""

    label = "MLflow"

    def __init__(
        self, mlflow: Any, server: Any, *, active_id: str | None = None, experiment: str = ""
    ) -> None:
        self._entities, self._server = mlflow.entities, server
        self._active_id, self._experiment = active_id, experiment
        self.shows_past = active_id is None
        self._own: dict[str, str] = {}  # MLflow's id by ours
        self._tags: dict[str, dict[str, str]] = {}  # the current tags by MLflow's id

    def take(self, update: Update) -> None:
        """Log every row, a thousand numbers per request, and the tags that have changed."""
        run_id = self._active_id or self._begun(update.info)
        metrics = self._metrics(update)
        while portion := list(islice(metrics, _METRICS_AT_ONCE)):
            self._server.log_batch(run_id, metrics=portion)
        if update.diagnosis is not None:
            self._tag(run_id, _tags(update))
            if update.is_over:
                report = to_json(update.diagnosis)
                self._server.log_text(run_id, report, f"ampwatch/{update.info.name}/report.json")
        if update.is_over and update.info.id in self._own:
            how = "KILLED" if update.state is State.LOST else "FINISHED"
            self._server.set_terminated(self._own.pop(update.info.id), how)

    def close(self) -> None:
        """End the new runs that have not ended; the user ends the active run."""
        while self._own:
            self._server.set_terminated(self._own.popitem()[1], "KILLED")

    def _metrics(self, update: Update) -> Iterator[Any]:
        for points in update.points:
            for step, time_ns, readings in points.one_by_one():
                for name, value in readings.items():
                    yield self._entities.Metric(name, value, time_ns // 1_000_000, step)

    def _tag(self, run_id: str, tags: dict[str, str]) -> None:
        standing = self._tags.setdefault(run_id, {})
        for name, text in tags.items():
            if standing.get(name) != text:
                self._server.set_tag(run_id, name, text)
                standing[name] = text
        for name in [name for name in standing if name not in tags]:
            self._server.delete_tag(run_id, name)
            del standing[name]

    def _begun(self, info: RunInfo) -> str:
        if info.id not in self._own:
            name = self._experiment
            known = self._server.get_experiment_by_name(name)
            place = known.experiment_id if known else self._server.create_experiment(name)
            began_ms = info.started_ns // 1_000_000 or int(time.time() * 1000)
            run = self._server.create_run(
                place, start_time=began_ms, tags={_RUN: info.id}, run_name=info.name
            )
            self._own[info.id] = run.info.run_id
            params = [
                self._entities.Param(str(key), str(value)[:_LONGEST_VALUE])
                for key, value in islice(info.config.items(), _PARAMS_AT_ONCE)
            ]
            self._server.log_batch(run.info.run_id, params=params)
        return self._own[info.id]


def _tags(update: Update) -> dict[str, str]:
    assert update.diagnosis is not None
    found = update.diagnosis.findings
    lines = {f"{_FINDING}{f.code}": _line(f)[:_LONGEST_VALUE] for f in found}
    return {_VERDICT: update.diagnosis.verdict.value, **lines}


def _line(finding: Finding) -> str:
    """One finding as the text of an MLflow tag."""
    since = "" if finding.first_step is None else f" since step {finding.first_step}"
    layer = f", layer {finding.layer}" if finding.layer else ""
    return printable(f"{finding.severity.value}{since}{layer}: {finding.summary}")
