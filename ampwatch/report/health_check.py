"""Whether a run is healthy, for CI and tests: no grave finding, and as good as its baseline.

A baseline is another run that somebody holds to be good. A run is as good if it has no finding that
is new or worse, and if its loss is not higher at the end, by more than noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampwatch.diagnosis import Diagnosis, Finding, Severity, Verdict
from ampwatch.diagnosis.rule import title_of
from ampwatch.errors import NotARunError
from ampwatch.follow import NewFindings, diagnose
from ampwatch.report.divergence import Divergence, divergence_of
from ampwatch.report.letter import letter_of
from ampwatch.report.terminal_report import letter_lines
from ampwatch.store import Run, list_runs, open_run

_WIDTH = 100  # of a letter's lines where no terminal sets it


@dataclass(frozen=True, slots=True)
class Baseline:
    """The run that another one must be as good as: its findings, and how their losses differ."""

    name: str
    diagnosis: Diagnosis
    divergence: Divergence

    @property
    def loss_text(self) -> str:
        """The sentence on both losses at the last step that both recorded."""
        end, noise = self.divergence.loss_end, self.divergence.loss_noise
        if end is None:
            return "The losses have no step in common."
        both = f"{end.second:.4g}, the baseline's {end.first:.4g}"
        if noise is None:
            return f"The loss at step {end.step:,} is {both}: too few steps to compare them."
        more = "higher by more than noise" if self.divergence.ends_higher else "not higher"
        return f"The loss at step {end.step:,} is {both}: {more}."


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """What speaks against a run: findings as grave as was asked, and a loss above the baseline's.

    With a baseline, only findings that are new or worse count.
    """

    run: Run
    diagnosis: Diagnosis
    findings: tuple[Finding, ...]
    baseline: Baseline | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether nothing speaks against the run."""
        ends_higher = self.baseline is not None and self.baseline.divergence.ends_higher
        return not self.findings and not ends_higher

    @property
    def is_judged(self) -> bool:
        """Whether the log says enough to judge the run."""
        return self.diagnosis.verdict is not Verdict.INCOMPLETE

    @property
    def baseline_text(self) -> str:
        """The sentences on the baseline; empty without one."""
        return "" if self.baseline is None else " ".join(self._sentences(self.baseline))

    def _sentences(self, baseline: Baseline) -> Iterator[str]:
        yield f"{'As' if self.is_healthy else 'Not as'} good as {baseline.name}."
        for finding in self.findings:
            yield f"New or worse: {title_of(finding)} ({finding.code})."
        yield baseline.loss_text

    def letter_text(self, name: str) -> str:
        """The letter on the run as plain text, with what was held against its baseline."""
        letter = letter_lines(letter_of(name, self.run, self.diagnosis), _WIDTH)
        lines = [line.plain for line in letter]
        return "\n".join([*lines, *(["", self.baseline_text] if self.baseline else [])])

    def baseline_json(self) -> dict[str, Any]:
        """The key `baseline` of `report --json`."""
        assert self.baseline is not None
        return {
            "name": self.baseline.name,
            "as_good": self.is_healthy,
            "new_or_worse": [finding.code for finding in self.findings],
            "text": self.baseline_text,
        }


def health_check(
    run: Run,
    diagnosis: Diagnosis,
    baseline: Run | None = None,
    least: Severity = Severity.WARNING,
) -> HealthCheck:
    """Check a run's findings from a severity on and, with a baseline, its loss."""
    if baseline is None:
        return HealthCheck(run, diagnosis, NewFindings(least=least).of(diagnosis))
    judged = diagnose(baseline)
    known = {finding.code: finding.severity for finding in judged.findings}
    fresh = NewFindings(least=least, reported=known).of(diagnosis)
    held = Baseline(baseline.info.name, judged, divergence_of(baseline, run))
    return HealthCheck(run, diagnosis, fresh, held)


def open_baseline(named: str | Path, folder: Path | None = None, *, apart_from: Run) -> Run:
    """Open a run by its folder, its name, its place or, of several the newest, by its tag.

    `folder` holds the runs that may be tagged; without it, all known ones.
    """
    inside = None if folder is None else folder / named
    try:
        return open_run(named if inside is None or not inside.is_dir() else inside)
    except NotARunError as problem:
        unknown = problem
    for summary in list_runs(folder):
        if str(named) in summary.tags and summary.id != apart_from.info.id:
            return open_run(summary.path)
    raise NotARunError(
        f"{unknown} No other run has the tag {named}: `ampwatch tag RUN {named}` puts it on one.",
        path=named,
    )
