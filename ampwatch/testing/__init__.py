"""For tests of trainings: `assert_healthy`, and the pytest plug-in with its fixture.

pytest loads `fixtures` in every project where ampwatch is installed. So neither file imports
what takes time before a test asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.environment import switched_off

if TYPE_CHECKING:
    from ampwatch.diagnosis import Severity
    from ampwatch.probe import NoWatch, Watch
    from ampwatch.store import Run

project_runs: Path | None = None  # where a baseline is looked for while a test has its own folder


def assert_healthy(
    run: Watch | NoWatch | Run | str | Path,
    *,
    fail_on: str = "warning",
    baseline: str | Path | None = None,
) -> None:
    """Raise AssertionError, with the report as its message, unless the training is healthy.

    `run` is what `attach` returned, which is then closed; a run, its name or folder; or a folder of
    runs, each of which must be healthy. A finding of the severity `fail_on` ("warning" or "error"),
    or a graver one, is not healthy, nor is a run that is too short to judge. With `baseline`, a
    run's name, folder or tag, only findings that are new or worse count, and a loss that is higher
    at the end by more than noise. With AMPWATCH=0 nothing is recorded, and nothing is asserted.
    """
    __tracebackhide__ = True
    if switched_off():
        return
    from ampwatch.diagnosis import Severity

    least = Severity(fail_on)
    letters = [text for one in _runs_of(run) for text in _faults(one, least, baseline)]
    if letters:
        raise AssertionError("\n\n".join(letters))


def _faults(run: Run, least: Severity, baseline: str | Path | None) -> Iterator[str]:
    """The letter on a run that is not healthy, or that could not be judged."""
    from ampwatch.follow import diagnose
    from ampwatch.report.health_check import health_check, open_baseline

    held = None if baseline is None else open_baseline(baseline, project_runs, apart_from=run)
    check = health_check(run, diagnose(run), held, least)
    if check.is_healthy and check.is_judged:
        return
    yield f"{check.letter_text(run.info.name)}\n\nThe run is in {run.path}."


def _runs_of(given: Watch | NoWatch | Run | str | Path) -> Iterator[Run]:
    """The runs that were given, each complete."""
    from ampwatch.store import Run, open_run
    from ampwatch.store.catalogue import run_names
    from ampwatch.store.run_info import RUN_FILE

    if isinstance(given, Run):
        close_watches(given.path)
        given.refresh()
        yield given
        return
    path = given if isinstance(given, (str, Path)) else given.run_folder
    assert path is not None, "This training has no log on disk, so there is nothing to judge."
    folder = Path(path)
    close_watches(folder)
    if not folder.is_dir() or (folder / RUN_FILE).exists():
        yield open_run(path)
        return
    names = run_names(folder)
    assert names, "No training was watched: call ampwatch.attach(scaler, model) in the test."
    for name in names:
        yield open_run(folder / name)


def close_watches(folder: Path) -> None:
    """Close the watches of this process whose run is this folder, or in it."""
    probe = sys.modules.get("ampwatch.probe.watch")
    for watch in probe.live_watches() if probe is not None else ():
        place = watch.run_folder
        if place is not None and folder.absolute() in (place.absolute(), place.absolute().parent):
            watch.close()
