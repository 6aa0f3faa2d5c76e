"""W&B: the active run, or a separate run with every step.

W&B drops what is logged at a step below its newest one, and each point of ours would raise that. So
in the user's run our values wait for theirs: they are added, uncommitted, to the next point that
the loop logs, and the run's steps stay as they were. A separate run gets every row.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.errors import MirrorError, warn
from ampwatch.follow import State
from ampwatch.mirrors.mirroring import client
from ampwatch.mirrors.updates import PREFIX, READINGS, STEP, Update
from ampwatch.report import to_json

_LEVELS = {Severity.INFO: "INFO", Severity.WARNING: "WARN", Severity.ERROR: "ERROR"}
_COLUMNS = ["code", "name", "severity", "first step", "layer", "summary", "action"]


def is_active() -> bool:
    """Whether this process has an active W&B run."""
    return client("wandb", "wandb").run is not None


def open_mirror(rest: str, *, is_inside: bool) -> WandbActive | WandbOwn:
    """A mirror to the active W&B run, or to new runs in the project `rest`."""
    wandb = client("wandb", "wandb")
    if rest or not is_inside:
        return WandbOwn(wandb, rest or os.environ.get("WANDB_PROJECT") or "ampwatch")
    if wandb.run is None:
        raise MirrorError(
            "No W&B run is active: call wandb.init() before ampwatch.mirror(), or name a project, "
            "as in wandb:PROJECT, for a run of its own."
        )
    return WandbActive(wandb, wandb.run)


class WandbActive:
    """The user's run: the newest readings are added to the next point that the user logs."""

    label = "W&B"
    shows_past = False

    def __init__(self, wandb: Any, run: Any) -> None:
        self._run = run
        self._shown = _Findings(wandb, run)
        self._rides = self._first_at = self._last_at = 0  # the step of the user's run

    def take(self, update: Update) -> None:
        """Add the newest values to the point in progress."""
        self._shown.set_axis()
        newest: dict[str, float] = {}
        for points in update.points:
            for reading in READINGS:
                _, values = points.known(reading.name)
                if len(values):
                    newest[points.full_prefix + reading.name] = float(values[-1])
            newest[STEP] = max(newest.get(STEP, 0), int(points.steps[-1]))
        if newest:
            self._run.log(newest, commit=False)
            self._last_at = self._run.step  # on a finished run it would wait for ever
            self._first_at = self._first_at if self._rides else self._last_at
            self._rides += 1
        self._shown.show(update)

    def close(self) -> None:
        """Nothing to do: the user finishes the run."""
        if self._rides > 1 and self._first_at == self._last_at:
            warn(
                "nothing else was logged to this W&B run meanwhile, so ampwatch's curves there "
                "have one point; to='wandb:PROJECT' makes a separate run with every step.",
                RuntimeWarning,
            )


class WandbOwn:
    """A separate run for each of ours; every row is a point."""

    label = "W&B"
    shows_past = True

    def __init__(self, wandb: Any, project: str) -> None:
        self._wandb, self._project = wandb, project
        self._runs: dict[str, tuple[Any, _Findings]] = {}

    def take(self, update: Update) -> None:
        """Log every row."""
        run, shown = self._begun(update)
        shown.set_axis()
        for points in update.points:
            for step, _, readings in points.one_by_one():
                run.log({STEP: step, **readings})
        shown.show(update)
        if update.is_over:
            self._finish(update.info.id, exit_code=int(update.state is State.LOST))

    def close(self) -> None:
        """Finish the runs that have not ended."""
        for run_id in list(self._runs):
            self._finish(run_id, exit_code=1)

    def _begun(self, update: Update) -> tuple[Any, _Findings]:
        info = update.info
        if info.id not in self._runs:
            settings = self._wandb.Settings(console="off", x_disable_stats=True, silent=True)
            run = self._wandb.init(
                project=self._project,
                id=info.id,  # mirrored again, it replaces the earlier one
                name=info.name,
                config=dict(info.config),
                job_type="ampwatch",
                reinit="create_new",  # other active runs stay active
                settings=settings,
            )
            self._runs[info.id] = (run, _Findings(self._wandb, run))
        return self._runs[info.id]

    def _finish(self, run_id: str, *, exit_code: int) -> None:
        run, _ = self._runs.pop(run_id)
        run.finish(exit_code=exit_code)


class _Findings:
    """A run's findings: alerts as they come, the verdict, a table of all, at the end the report."""

    def __init__(self, wandb: Any, run: Any) -> None:
        self._wandb, self._run = wandb, run
        self._said: tuple[object, ...] = ()
        self._has_axis = False

    def set_axis(self) -> None:
        """Use our own step as the x axis of our curves."""
        if not self._has_axis:
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric(f"{PREFIX}*", step_metric=STEP)
            self._has_axis = True

    def show(self, update: Update) -> None:
        """Send what changed."""
        alert = update.alert
        if alert is not None:
            level = getattr(self._wandb.AlertLevel, _LEVELS[alert.severity])
            self._run.alert(title=alert.title, text=alert.body, level=level)
        diagnosis = update.diagnosis
        if diagnosis is None:
            return
        said = (diagnosis.verdict, *((f.code, f.severity) for f in diagnosis.findings))
        if said != self._said:
            self._said = said
            self._run.summary[f"{PREFIX}verdict"] = diagnosis.verdict.value
            self._run.log({f"{PREFIX}findings": self._table(diagnosis)}, commit=False)
        if update.is_over:
            self._log_report(update.info.name, diagnosis)

    def _log_report(self, name: str, diagnosis: Diagnosis) -> None:
        """The report as an artifact, with the verdict beside it."""
        plain = re.sub(r"[^\w.-]", "-", name)[:100]  # of W&B's letters
        codes = [finding.code for finding in diagnosis.findings]
        artifact = self._wandb.Artifact(
            f"ampwatch-{plain}",
            "ampwatch-report",
            metadata={"verdict": diagnosis.verdict.value, "findings": codes},
        )
        with artifact.new_file("report.json", encoding="utf-8") as file:
            file.write(to_json(diagnosis))
        self._run.log_artifact(artifact)

    def _table(self, diagnosis: Diagnosis) -> Any:
        rows = [
            [f.code, f.name, f.severity.value, f.first_step, f.layer, f.summary, f.action]
            for f in diagnosis.findings
        ]
        return self._wandb.Table(columns=_COLUMNS, data=rows)
